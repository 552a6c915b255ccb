"""From a request to a record: check everything, launch, bring back the record."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import launch, sync, tasks
from manyhands.checkpoint import check_fits, check_workers, newest_sound, read_cursor
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.data.order import cut
from manyhands.errors import ManyhandsError, UserError, check
from manyhands.launch.base import Observer
from manyhands.plan import Plan
from manyhands.record import Pulse, RunDir, RunRecord, find_run, new_id, open_run
from manyhands.replica import Batch, Replica
from manyhands.replica.traits import traits_of
from manyhands.request import newest_to_resume, resolve, resume_config
from manyhands.sync.base import check_features
from manyhands.tasks import Task
from manyhands.tasks.load import TaskFileFailed, check_not_importing, name_of
from manyhands.tasks.setup import load_data, make_replica, trial_device
from manyhands.training import Job, train_rank


def ignore(pulse: Pulse) -> None:
    """Show nothing."""


def train(
    task: str | Task,
    *,
    resume: bool | str = False,
    out: str | Path = "runs",
    observe: Observer = ignore,
    **options: Any,
) -> RunRecord:
    """Train a task, given by name, as FILE.py:VARIABLE or as a `Task`, with the options of `manyhands train`.

    >>> record = train("mlp", engine="mpi", workers=4, epochs=2)  # doctest: +SKIP
    """
    check_not_importing()
    own = tasks.load(task) if isinstance(task, str) else task
    name = task if isinstance(task, str) else name_of(task)
    if not resume:
        return execute(resolve(name, options, own), task=own, out=Path(out), observe=observe)
    run = find_run(Path(out), resume) if isinstance(resume, str) else newest_to_resume(Path(out), name)
    return execute(resume_config(run, name, options, own), task=own, out=Path(out), observe=observe, resume=run)


def execute(
    config: RunConfig,
    *,
    out: Path,
    task: Task | None = None,
    observe: Observer = ignore,
    resume: RunDir | None = None,
    keep_weights: bool = False,
    started: Callable[[RunDir], None] = lambda run: None,
) -> RunRecord:
    """Check and run a config; the record is also in the run's folder."""
    launcher, task = launch.make(config.engine), task or tasks.load(config.task)
    data, replica, read_s = preflight(config, task)
    run = resume or RunDir(out / launcher.agree(new_id(config)))
    checkpoint = ""
    if resume:
        checkpoint = _checkpoint_to_resume(run, replica, Plan(config, data.train, 0, 1), say=launcher.leads)
    if launcher.leads:
        open_run(run, config)
    started(run)
    job = Job(config, run, resume=checkpoint, keep_weights=keep_weights, task=task, data=data, read_s=read_s)
    results = launcher.launch(train_rank, job, observe)
    return RunRecord.model_validate(results[0])


class Ready(NamedTuple):
    """What the checks have made already."""

    data: Dataset
    replica: Replica
    read_s: float


def preflight(config: RunConfig, task: Task | None = None) -> Ready:
    """Find every bad request before any worker starts; return the data, and a replica that has tried a step."""
    launch.make(config.engine).check(config)
    return try_step(config, task)


def try_step(config: RunConfig, task: Task | None = None) -> Ready:
    """Find what is wrong with the data or the model for so many workers, whatever processes were started."""
    launcher, task = launch.make(config.engine), task or tasks.load(config.task)
    strategy = sync.make(config.sync)
    check_features(strategy, launcher.features, config.engine)
    check(strategy.exact or not config.exact, f"--exact needs an exact sync, and '{config.sync}' is not one")
    device = trial_device(config)
    started = time.perf_counter()
    data = load_data(task, config, scan=launcher.leads)
    read_s = time.perf_counter() - started
    samples = len(data.train)
    plan = Plan(config, data.train, 0, config.size)
    strategy.check_run(config, plan.steps, plan.steps_per_epoch)
    check(
        config.size <= samples,
        f"{config.size} workers cannot share {samples} training samples; use at most {samples} workers",
    )
    try:
        replica = make_replica(task, config, data, device)
        rows = slice(0, min(2, samples))
        x, y = data.train.batch(rows, replica.params.dtype)
        replica.forward_backward(Batch(x.to(device), y.to(device)), 1.0)
        _check_slices(config, replica, data)
    except ManyhandsError:
        raise
    except Exception as error:
        sentence = f"the model of '{config.task}' does not take samples of shape {data.shape}: {_first_line(error)}"
        own_file = ".py" in config.task
        raise (TaskFileFailed if own_file else UserError)(sentence) from error
    return Ready(data, replica, read_s)


def _check_slices(config: RunConfig, replica: Replica, data: Dataset) -> None:
    """Refuse what sharing a batch would break: shared random numbers, and statistics over a single row."""
    x, _ = data.train.batch(slice(0, min(2, len(data.train))), replica.params.dtype)
    x = x.to(replica.params.device)
    traits = traits_of(replica.module, x)
    check(
        not (traits.global_random and config.exact and config.engine in ("threads", "hybrid")),
        "--exact cannot share out a model that draws from torch's process-wide generator among threads; "
        "use nn.Dropout layers, or --engine mpi",
    )
    if not traits.batch_statistics or _smallest_slice(config, len(data.train)) > 1:
        return
    try:
        traits_of(replica.module, x[:1])
    except ValueError:
        raise UserError(
            f"{traits.batch_statistics[0]} cannot normalise a single row, which is what some worker or lane would get "
            f"of a batch; use another --batch-size or fewer workers"
        ) from None


def _smallest_slice(config: RunConfig, samples: int) -> int:
    """Return the fewest rows, but none, that any worker or lane gets of a whole or a last batch."""
    size = samples if config.batch_size == "full" else min(config.batch_size, samples)
    parts = config.lanes if config.exact else config.size
    cuts = [cut(rows, parts, i) for rows in (size, samples % size) for i in range(parts)]
    return min(stop - start for start, stop in cuts if stop > start)


def _checkpoint_to_resume(run: RunDir, replica: Replica, plan: Plan, *, say: bool) -> str:
    path, damaged = newest_sound(run.checkpoints)
    if path is None:
        why = f"all {len(damaged)} are damaged" if damaged else "there is none"
        raise UserError(f"run '{run.path.name}' has no checkpoint to resume from: {why}")
    for bad in damaged if say else ():
        print(f"manyhands: checkpoint '{bad.name}' is damaged; going on from '{path.name}'", file=sys.stderr)
    check_fits(path, replica)
    check_workers(path, plan.config.size)
    done = read_cursor(path).step
    check(
        done < plan.steps,
        f"run '{run.path.name}' is at step {done} of {plan.steps} already; raise --epochs or --steps to go on",
    )
    return str(path.resolve())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
