"""Turn a request into a `RunConfig`: add the task's defaults, mpiexec's processes, the settings of a resumed run."""

import os
import sys
from pathlib import Path
from typing import Any

from manyhands.config import RunConfig, make_config, read_toml
from manyhands.errors import UserError, check
from manyhands.launch.environment import outer_world
from manyhands.record.run import RunDir
from manyhands.sync.base import make as make_sync
from manyhands.tasks import Task, load
from manyhands.tasks.base import GPU_ROWS
from manyhands.tasks.init import init_path
from manyhands.tasks.setup import is_cpu
from manyhands.training.schedule import scale_lr

MAY_CHANGE = {
    "engine", "workers", "threads", "blas_threads", "chosen_blas_threads", "epochs", "steps", "device",
    "checkpoint_every", "keep", "eval_every", "eval_steps", "patience", "data_workers", "trace",
    "mpiexec", "ray_address",
}  # fmt: skip
"""Settings that a resumed run may change; the others determine the result."""


def resolve(name: str, options: dict[str, Any], task: Task | None = None, *, out: Path = Path("runs")) -> RunConfig:
    """Return the config of a new run; a task without a file must be given besides its name.

    A run whose weights it begins with is looked for in `out`.
    """
    task = task or load(name)
    given = _given(options)
    given.setdefault("engine", _engine(given))
    values = {
        "batch_size": task.batch_size,
        "lr": task.lr,
        "epochs": task.epochs,
        "micro_batch": task.micro_batch * (1 if is_cpu(given.get("device", "cpu")) else GPU_ROWS),
        "eval_every": task.eval_every,
        "top": task.top,
        "precision": task.precision,
        "batchnorm": task.batchnorm,
        "clip": task.clip_norm,
        "ema": task.ema,
        "init": task.init,
        "monitor": task.monitor,
        "data_workers": task.data_workers,
        "replicate": task.replicate if "data" not in given else 1,
        "data": task.data if isinstance(task.data, str) else "",
        "task": absolute(name),
    }
    values |= given
    if values["init"]:
        values["init"] = init_path(str(values["init"]), out)
    return _with_extras(values, task, batch_given="batch_size" in given)


def resume_config(run: RunDir, name: str, options: dict[str, Any], task: Task | None = None) -> RunConfig:
    """Return the config of a resumed run; settings that determine its result cannot be changed."""
    task = task or load(name)
    stored = make_config(read_toml(run.toml))
    given = _given({"sync": stored.sync, **options})
    given.pop("init", None)  # the checkpoint's weights take the place of the first ones
    check(absolute(name) == stored.task, f"run '{run.path.name}' trains '{stored.task}', not '{name}'")
    if "epochs" in given and "steps" not in given:
        given["steps"] = 0
    scaled = {"lr": task.lr} if "lr_scaling" in given and "lr" not in given else {}
    wanted = _with_extras({**stored.model_dump(), **scaled, **given}, task, batch_given="batch_size" in given)
    deciding = ("engine", "workers", "threads", "device", "blas_threads")
    if any(getattr(stored, key) != getattr(wanted, key) for key in deciding):
        wanted = wanted.model_copy(update={"chosen_blas_threads": 0})  # chosen for another number of cores
    length = ("epochs", "steps")
    check(
        stored.lr_decay == "none" or all(getattr(stored, key) == getattr(wanted, key) for key in length),
        f"run '{run.path.name}' has lr-decay {stored.lr_decay}, so its length cannot be changed",
    )
    for key in RunConfig.model_fields:
        old, new = getattr(stored, key), getattr(wanted, key)
        if key not in MAY_CHANGE and old != new:
            name = key.replace("_", "-")
            raise UserError(f"run '{run.path.name}' has {name} {old}; a resumed run cannot change it to {new}")
    return wanted


def newest_to_resume(out: Path, name: str) -> RunDir:
    """Return the newest run with a checkpoint, of this task if there is one; unreadable runs are passed over."""
    with_checkpoint = [r for r in RunDir.all_in(out) if any(r.checkpoints.glob("step-*.safetensors"))]
    tasks = {run: task for run in with_checkpoint if (task := _task_of(run))}
    runs = list(tasks)
    if not runs:
        why = (
            "the run.toml of each run that has one cannot be read"
            if with_checkpoint
            else "train with --checkpoint-every first"
        )
        raise UserError(f"there is no checkpoint under '{out}' to resume from; {why}")
    same = [r for r in runs if tasks[r] == absolute(name)]
    return same[-1] if same else runs[-1]


def _task_of(run: RunDir) -> str:
    """Return the task of a run; empty, with a message, where its settings cannot be read."""
    try:
        task = read_toml(run.toml).get("task")
        check(isinstance(task, str), f"'{run.toml}' names no task")
        return str(task)
    except (UserError, OSError) as error:
        print(f"manyhands: passing over run '{run.path.name}': {error}", file=sys.stderr)
        return ""


def absolute(name: str) -> str:
    """Make the path of a task's file absolute, since ranks may start in another folder."""
    path, colon, variable = name.rpartition(":") if ".py:" in name else (name, "", "")
    return f"{os.path.abspath(path)}{colon}{variable}" if path.endswith(".py") else name


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are not None; inside mpiexec, its processes are the workers."""
    given = {key: value for key, value in options.items() if value is not None}
    outer = outer_world()
    servers = make_sync(str(given.get("sync", "allreduce"))).num_servers()
    return {"engine": outer.engine, "workers": max(1, outer.size - servers), **given} if outer else given


def _engine(given: dict[str, Any]) -> str:
    """Choose an engine by the other options."""
    if given.get("ray_address"):
        return "ray"
    servers = make_sync(str(given.get("sync", "allreduce"))).num_servers()
    return "serial" if given.get("workers", 1) == 1 and servers == 0 else "mpi"


def _with_extras(values: dict[str, Any], task: Task, *, batch_given: bool) -> RunConfig:
    """Resolve the options that are no settings of a config: a batch per worker, and a scaled learning rate."""
    per_worker, scaling = values.pop("batch_per_worker", None), values.pop("lr_scaling", "none")
    if per_worker is not None:
        check(not batch_given, "give --batch-size or --batch-per-worker, not both")
        check(isinstance(per_worker, int) and per_worker >= 1, f"batch-per-worker must be at least 1, got {per_worker}")
        values["batch_size"] = per_worker * make_config({**values, "exact": False}).size
    return scale_lr(make_config(values), scaling, task.batch_size, values)
