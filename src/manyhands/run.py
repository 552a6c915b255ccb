"""From a request to a record: fill in the task's defaults, check everything, launch, bring back the record."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from manyhands import launch, sync, tasks
from manyhands.checkpoint import check_fits, newest_sound
from manyhands.config import RunConfig, make_config, read_toml
from manyhands.data import Dataset
from manyhands.errors import ManyhandsError, UserError, check, unknown
from manyhands.launch.base import Observer
from manyhands.launch.environment import outer_world
from manyhands.record import Pulse, RunDir, RunRecord, find_run, list_runs, new_id, open_run
from manyhands.sync.base import check_features
from manyhands.tasks import Task
from manyhands.tasks.load import spec_of
from manyhands.tasks.setup import device_of, load_data, make_replica
from manyhands.training import Job, train_rank

LR_SCALING = ("none", "linear", "sqrt")
MAY_CHANGE = {
    "engine", "workers", "threads", "blas_threads", "epochs", "steps", "device", "checkpoint_every",
    "keep", "eval_every", "mpiexec",
}  # fmt: skip
"""What a resumed run may change: the rest decides the mathematics."""


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
    name = task if isinstance(task, str) else spec_of(task)
    if resume:
        run = find_run(Path(out), resume) if isinstance(resume, str) else _newest_to_resume(Path(out))
        config = resume_config(run, name, options)
    else:
        run, config = None, resolve(name, options)
    return execute(config, out=Path(out), observe=observe, resume=run)


def resolve(task_name: str, options: dict[str, Any]) -> RunConfig:
    """Fill in what the user left open: the task's defaults, and the processes that mpiexec started."""
    task = tasks.load(task_name)
    given = {key: value for key, value in options.items() if value is not None}
    per_worker = given.pop("batch_per_worker", None)
    scaling = given.pop("lr_scaling", "none")
    outer = outer_world()
    if outer is not None and outer.size > 1:
        given = {"engine": "mpi", "workers": outer.size, **given}
    given.setdefault("engine", "serial" if given.get("workers", 1) == 1 else "mpi")
    values = {
        "batch_size": task.batch_size,
        "lr": task.lr,
        "epochs": task.epochs,
        "micro_batch": task.micro_batch,
        "eval_every": task.eval_every,
        "replicate": task.replicate if "data" not in given else 1,
        "data": task.data if isinstance(task.data, str) else "",
        **given,
        "task": _absolute(task_name),
    }
    if per_worker is not None:
        check("batch_size" not in given, "give --batch-size or --batch-per-worker, not both")
        check(per_worker >= 1, f"batch-per-worker must be at least 1, got {per_worker}")
        values["batch_size"] = per_worker * make_config({**values, "exact": False}).size
    config = make_config(values)
    return config.model_copy(update={"lr": config.lr * _lr_factor(scaling, config, task)})


def resume_config(run: RunDir, task_name: str, options: dict[str, Any]) -> RunConfig:
    """Take the settings of the run to go on with; what decides its mathematics cannot be changed."""
    stored = make_config(read_toml(run.toml))
    given = {key: value for key, value in options.items() if value is not None}
    check(
        _absolute(task_name) == stored.task,
        f"run '{run.path.name}' trains '{stored.task}', not '{task_name}'",
    )
    for key, value in given.items():
        if key not in MAY_CHANGE and value != getattr(stored, key, None):
            was = getattr(stored, key, "not given")
            raise UserError(
                f"run '{run.path.name}' has {key.replace('_', '-')} {was}; a resumed run cannot change it to {value}"
            )
    changes = {k: v for k, v in given.items() if k in MAY_CHANGE}
    return make_config({**stored.model_dump(), **changes})


def preflight(config: RunConfig) -> None:
    """Find every bad request before any worker starts."""
    launcher = launch.make(config.engine)
    launcher.check(config)
    check_features(sync.make(config.sync), launcher.features, config.engine)
    task = tasks.load(config.task)
    device = device_of(config, 0)
    data = load_data(task, config, scan=launcher.leads)
    _check_data(config, data)
    try:
        make_replica(task, config, data.to(device), device)
    except ManyhandsError:
        raise
    except Exception as error:
        shape = tuple(data.shape)
        raise UserError(
            f"the model of '{config.task}' does not take samples of shape {shape}: {_first_line(error)}"
        ) from error


def execute(
    config: RunConfig,
    *,
    out: Path,
    observe: Observer = ignore,
    resume: RunDir | None = None,
    keep_weights: bool = False,
    started: Callable[[RunDir], None] = lambda run: None,
) -> RunRecord:
    """Check and run a config; the record is also in the run's folder."""
    preflight(config)
    launcher = launch.make(config.engine)
    run = resume or RunDir(out / launcher.agree(new_id(config)))
    checkpoint = _checkpoint_to_resume(run, config) if resume else ""
    if launcher.leads:
        open_run(run, config)
    started(run)
    job = Job(config, run, resume=checkpoint, keep_weights=keep_weights)
    results = launcher.launch(train_rank, job, observe)
    return RunRecord.model_validate(results[0])


def _lr_factor(scaling: str, config: RunConfig, task: Task) -> float:
    if scaling not in LR_SCALING:
        unknown("lr-scaling", scaling, LR_SCALING)
    if scaling == "none":
        return 1.0
    check(
        isinstance(config.batch_size, int) and isinstance(task.batch_size, int),
        f"lr-scaling {scaling} needs a batch size that is a number, not 'full'",
    )
    ratio = int(config.batch_size) / int(task.batch_size)
    return ratio if scaling == "linear" else math.sqrt(ratio)


def _check_data(config: RunConfig, data: Dataset) -> None:
    samples = len(data.train)
    check(
        config.size <= samples,
        f"{config.size} workers cannot share {samples} training samples; use at most {samples} workers",
    )


def _newest_to_resume(out: Path) -> RunDir:
    runs = [r for r in list_runs(out) if any(r.checkpoints.glob("step-*"))]
    check(
        bool(runs),
        f"there is no checkpoint under '{out}' to resume from; train with --checkpoint-every first",
    )
    return runs[-1]


def _checkpoint_to_resume(run: RunDir, config: RunConfig) -> str:
    path, damaged = newest_sound(run.checkpoints)
    if path is None:
        why = f"all {len(damaged)} are damaged" if damaged else "there is none"
        raise UserError(f"run '{run.path.name}' has no checkpoint to resume from: {why}")
    for bad in damaged:
        print(f"manyhands: checkpoint '{bad.name}' is damaged; going on from '{path.name}'", file=sys.stderr)
    task = tasks.load(config.task)
    device = torch.device("cpu")
    check_fits(path, make_replica(task, config, load_data(task, config), device))
    return str(path.resolve())


def _absolute(task_name: str) -> str:
    path, colon, variable = task_name.rpartition(":") if ".py:" in task_name else (task_name, "", "")
    return f"{os.path.abspath(path)}{colon}{variable}" if path.endswith(".py") else task_name


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
