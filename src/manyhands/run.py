"""Run a request: check it completely, launch the workers, return the record."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import launch, sync, tasks
from manyhands.config import RunConfig, read_toml
from manyhands.data import Dataset, SampleSplit
from manyhands.data.checks import unsteady
from manyhands.data.order import cut
from manyhands.errors import UserError, check, listed
from manyhands.launch.base import Launcher, Observer
from manyhands.launch.blas_threads.trial import with_chosen_threads
from manyhands.launch.environment import outer_world
from manyhands.launch.failures import sharing_failures
from manyhands.machine.load import CoreMeter
from manyhands.record.run import RunDir, RunRecord, new_id, open_run
from manyhands.record.status import noting_failure, own_run
from manyhands.replica import Batch, Replica
from manyhands.replica.batchnorm import first_norm
from manyhands.replica.nested import moved
from manyhands.replica.traits import traits_of
from manyhands.request import newest_to_resume, resolve, resume_config
from manyhands.sync.base import check_features
from manyhands.tasks import Task
from manyhands.tasks.init import untaken
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.tasks.setup import load_data, make_replica, trial_device, without_init
from manyhands.tasks.trial import saying, try_parts
from manyhands.training.caveats import check_norms, check_own_optimizer, check_rates, notes_of, warnings_of
from manyhands.training.checkpoint import check_fits, check_workers, newest_sound, read_cursor
from manyhands.training.evaluate import chunked_metrics
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.plan import Plan
from manyhands.training.watch import ignore as ignore


def print_warning(sentence: str) -> None:
    """Print a warning, which the record contains too."""
    print(f"warning: {sentence}", file=sys.stderr)


@sharing_failures()
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

    task: What to train.
    resume: True goes on with the newest run of this task that has a checkpoint; an id, part of one, a folder or
        'last' with that one.
    out: Folder of all runs.
    observe: Called with a `manyhands.Pulse` about four times a second, more seldom where steps take longer, and at
        the end of every epoch: steps done, mean training loss since the last call, last test accuracy, samples per
        second, time left, and where the time went. It is called in the thread that called `train`, for rank 0 only,
        whatever the engine; what it raises ends the run.
    options: The settings of a run, with `_` for `-`: engine, workers, sync, batch_size, lr, epochs, …;
        `manyhands train --help` explains them.

    >>> record = train("mlp", observe=lambda pulse: print(pulse.step, pulse.loss))  # doctest: +SKIP
    """
    check_not_importing()
    name, task = (task, tasks.load(task)) if isinstance(task, str) else (name_of(task), task)
    run = _run_to_resume(Path(out), name, resume) if resume else None
    config = resume_config(run, name, options, task) if run else resolve(name, options, task, out=Path(out))
    return execute(config, task=task, out=Path(out), observe=observe, resume=run)


def execute(
    config: RunConfig,
    *,
    out: Path,
    task: Task,
    observe: Observer = ignore,
    resume: RunDir | None = None,
    keep_weights: bool = False,
) -> RunRecord:
    """Check and run a config; return the record, which is also in the run's folder.

    `keep_weights` keeps the weights after every step for `verify`, which needs no warnings: it explains differences.
    """
    launcher, meter = launch.make(config.engine), CoreMeter()
    launcher.check(config)
    # Ranks that were started from outside meet here, before one that reads much data keeps the others waiting.
    run = RunDir(Path(launcher.agree(str(resume.path if resume else out / new_id(config)))))
    data, replica, read_s, warnings = try_step(without_init(config) if resume else config, task)
    size, samples, explains = config.batch_size, len(data.train), launcher.leads and not keep_weights
    if explains and size != "full" and size > samples:
        _say(f"a batch of {size} is more than the {samples} training samples; every step takes all {samples}")
    for note in data.notes if explains else ():
        _say(note)
    if explains and config.data_workers and not isinstance(data.train, SampleSplit):
        _say("--data-workers does nothing here: the data is in memory, not read sample by sample")
    if explains and config.init and not resume:
        _say_untaken(replica, config.init)
    config = with_chosen_threads(config, data, replica, meter, _say)

    def choose() -> str:
        return _checkpoint_to_resume(run, replica, Plan(config, data.train, 0, 1)) if resume else ""

    with opened(run, config, launcher, choose) as checkpoint:
        for sentence in warnings if explains else ():
            print_warning(sentence)
        job = Job(
            config,
            run,
            resume=checkpoint,
            keep_weights=keep_weights,
            warnings=tuple(warnings),
            task=task,
            data=data,
            read_s=read_s,
        )
        results = launcher.launch(train_rank, job, observe)
    return RunRecord.model_validate(results[0])


@contextmanager
def opened(run: RunDir, config: RunConfig, launcher: Launcher, choose: Callable[[], str] = lambda: "") -> Iterator[str]:
    """Own the run's folder during the run; yield the checkpoint to resume from, the same in every process."""
    with ExitStack() as stack:

        def prepare() -> str:
            stack.enter_context(own_run(run, _say))
            checkpoint = choose()
            open_run(run, config)
            stack.enter_context(noting_failure(run))
            return checkpoint

        yield decide(launcher, prepare)


def decide(launcher: Launcher, choose: Callable[[], str]) -> str:
    """Return the choice of the leading process to all processes; where it raises an error, all of them end."""
    return launcher.agree(choose() if launcher.leads else "")


class Ready(NamedTuple):
    """The data and the replica that the checks have made."""

    data: Dataset
    replica: Replica
    read_s: float
    warnings: Sequence[str] = ()
    """Why the run will differ from that of one worker although the strategy is exact."""


def preflight(config: RunConfig, task: Task | None = None) -> Ready:
    """Check the whole request before any worker starts; return the data, and a replica that has tried a step."""
    launch.make(config.engine).check(config)
    return try_step(config, task)


def try_step(config: RunConfig, task: Task | None = None) -> Ready:
    """Check data, model and strategy with a trial step in this process, whatever processes were started."""
    launcher, task = launch.make(config.engine), task or tasks.load(config.task)
    strategy = sync.make(config.sync)
    check_features(strategy, launcher.features, config.engine)
    check(strategy.exact or not config.exact, f"--exact needs an exact sync, and '{config.sync}' is not one")
    check(
        config.precision != "fp16" or strategy.lockstep,
        f"fp16 leaves out a step in which some gradient overflows, which workers of '{config.sync}' cannot agree on, "
        "since they do not wait for each other; use --precision bf16",
    )
    device = trial_device(config)
    started = time.perf_counter()
    data = load_data(task, config, scan=launcher.leads)
    read_s = time.perf_counter() - started
    samples = len(data.train)
    plan = Plan(config, data.train, 0, config.size)
    strategy.check_run(config, plan.steps, plan.steps_per_epoch)
    check(
        config.eval_steps == 0 or not math.isinf(strategy.meet_s()),
        f"the workers of '{config.sync}' meet at the end of an epoch only; leave --eval-steps out",
    )
    check(
        config.size <= samples,
        f"{config.size} workers cannot share {samples} training samples; use at most {samples} workers",
    )
    try_parts(task, config, data, device)
    with saying("a trial step failed", config):
        replica = make_replica(task, config, data, device)
        check_norms(config, replica)
        check_own_optimizer(config, task, replica)
        check_rates(task, replica, plan)
        rows = min(2, samples)
        x, y = data.train.batch(slice(0, rows), replica.params.dtype)
        replica.forward_backward(Batch(x, y, told_rows=rows).to(device), 1.0)
        _check_slices(config, replica, data)
        warnings = [
            *warnings_of(config, task, replica, data),
            *notes_of(task, replica, plan),
            *unsteady(data),
            *chunked_metrics(replica.module, data.test, task.metrics, device),
        ]
    return Ready(data, replica, read_s, warnings)


def _check_slices(config: RunConfig, replica: Replica, data: Dataset) -> None:
    """Refuse models that cannot share a batch: with shared random numbers, or statistics over a single row."""
    rows = min(2, len(data.train))
    x, single_x = (
        moved(data.train.batch(slice(0, n), replica.params.dtype)[0], replica.params.device) for n in (rows, 1)
    )
    traits = traits_of(replica.module, x)
    check(
        not (traits.global_random and config.exact and config.engine in ("threads", "hybrid")),
        "--exact cannot share out a model that draws from a process-wide generator among threads; "
        "draw with torch along the batch, or use --engine mpi",
    )
    single = [1 in _global_batches(config, len(data.train)), _smallest_slice(config, len(data.train)) == 1]
    if not (replica.meets and single[0]) and not (traits.batch_statistics and single[1]):
        return
    try:
        traits_of(replica.module, single_x)
    except ValueError:
        layer = first_norm(replica.module) or traits.batch_statistics[0]
        if replica.meets and single[0]:
            raise UserError(
                f"{layer} cannot normalise a single row, which is all that some global batch has: {len(data.train)} "
                "samples leave a last batch of one; use another --batch-size"
            ) from None
        raise UserError(
            f"{layer} cannot normalise a single row, which is what some worker or lane would get "
            f"of a batch; use another --batch-size or --micro-batch, or fewer workers"
        ) from None


def _global_batches(config: RunConfig, samples: int) -> tuple[int, ...]:
    """Return the rows of a whole batch, and of a short one at the end of an epoch, which may be 0."""
    size = samples if config.batch_size == "full" else min(config.batch_size, samples)
    return size, samples % size


def _smallest_slice(config: RunConfig, samples: int) -> int:
    """Return the smallest number of rows above 0 that a worker or lane computes at once in an epoch."""
    parts = config.lanes if config.exact else config.size
    cuts = [cut(rows, parts, i) for rows in _global_batches(config, samples) for i in range(parts)]
    widths = [stop - start for start, stop in cuts if stop > start]
    micro = config.micro_batch
    return min((width % micro or micro) if 0 < micro < width else width for width in widths)


def _run_to_resume(out: Path, task: str, resume: bool | str) -> RunDir:
    """Return the run to resume: the one named, or the newest, as rank 0 sees the files."""
    outer = outer_world()

    def choose() -> str:
        return str((RunDir.find(out, resume) if isinstance(resume, str) else newest_to_resume(out, task)).path)

    return RunDir(Path(decide(launch.make(outer.engine if outer else "serial"), choose)))


def _checkpoint_to_resume(run: RunDir, replica: Replica, plan: Plan) -> str:
    """Return the newest sound checkpoint; refuse a complete run, unless its weights are missing."""
    path, damaged = newest_sound(run.checkpoints)
    if path:
        check_fits(path, replica)
    record = run.read_or_none()
    check(
        record is None or record.status != "complete" or plan.steps > record.steps or bool(record.weights_missing),
        f"run '{run.path.name}' is complete: it has made its {record.steps if record else 0} steps; "
        "raise --epochs or --steps to go on, or name another run with --resume-from",
    )
    check(
        not (record and record.stopped_early and 0 < plan.config.patience <= record.config.patience),
        f"run '{run.path.name}' has stopped early at step {record.steps if record else 0}; raise --patience to go on",
    )
    _check_same_evaluations(run, replica, plan.config)
    if path is None:
        why = f"all {len(damaged)} are damaged" if damaged else "there is none"
        raise UserError(f"run '{run.path.name}' has no checkpoint to resume from: {why}")
    for bad in damaged:
        _say(f"checkpoint '{bad.name}' is damaged; going on from '{path.name}'")
    check_workers(path, plan.config.size)
    done = read_cursor(path).step
    check(
        done <= plan.steps,  # a run that was killed after its last step still lacks record and weights
        f"run '{run.path.name}' is at step {done} already, beyond {plan.steps}; raise --epochs or --steps to go on",
    )
    return str(path.resolve())


def _check_same_evaluations(run: RunDir, replica: Replica, config: RunConfig) -> None:
    """Refuse to test a resumed run at other steps, where the learning rate depends on the figures."""
    rates = replica.update.rates
    if rates is None or not rates.watches:
        return
    stored = read_toml(run.toml)
    for key in ("eval_every", "eval_steps"):
        old, new = stored.get(key), getattr(config, key)
        check(
            old == new,
            f"run '{run.path.name}' has {key.replace('_', '-')} {old}, and ReduceLROnPlateau goes by its evaluations; "
            f"a resumed run cannot change it to {new}",
        )


def _say_untaken(replica: Replica, path: str) -> None:
    """Say which of the network's tensors begin with random values, since the file of initial weights has them not."""
    names = untaken(replica.module, path)
    if names:
        _say(f"not in '{path}' with this shape, so made anew: {listed(names)}")


def _say(sentence: str) -> None:
    print(f"manyhands: {sentence}", file=sys.stderr)
