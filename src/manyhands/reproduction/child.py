"""One run of a setting in a process of its own, and the figures that it gave."""

import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from manyhands.crossval.record import CrossvalRecord
from manyhands.errors import UserError
from manyhands.measurement.measure import measure, run_for_record
from manyhands.record.papers import ReproductionDir, Taken
from manyhands.record.profile import ProfileRecord
from manyhands.record.run import RunDir
from manyhands.reproduction.base import Setting

PATIENCE = 20.0
"""How many times as long as expected a run may take."""
LEAST_TIMEOUT_S = 300.0


def take(setting: Setting, folder: ReproductionDir, repeat: int) -> Taken:
    """Run a setting once; a failed run is a `Taken` that says why."""
    begun = time.perf_counter()
    run = {"train": _train, "crossval": _crossval, "profile": _profile}[setting.command]
    result: dict[str, Any]
    try:
        name, values = run(setting, folder)
        result = {"run": f"{folder.runs.name}/{name}", "values": values}
    except UserError as error:
        result = {"failed": str(error)}
    return Taken(setting=setting.key, repeat=repeat, took_s=time.perf_counter() - begun, **result)


def _train(setting: Setting, folder: ReproductionDir) -> tuple[str, dict[str, float]]:
    run = measure(setting.task, setting.options, folder.runs, timeout_s=_timeout_s(setting), cell=setting.key)
    if run.failed:
        raise UserError(run.failed)
    step_s = run.step_ms / 1e3
    values = {name: float(value) for name, value in run if isinstance(value, int | float)}
    values |= {"step_s": step_s, "epoch_s": run.steps_per_epoch * step_s}
    if record := RunDir(folder.path / run.run).read_or_none():
        values["parameters"] = float(record.parameters)
    return Path(run.run).name, values


def _crossval(setting: Setting, folder: ReproductionDir) -> tuple[str, dict[str, float]]:
    options, timeout_s = setting.options, _timeout_s(setting)
    record = run_for_record("crossval", setting.task, options, folder.runs, CrossvalRecord, timeout_s=timeout_s)
    _drop_models(folder.runs / record.id)
    values = record.model_dump(include={"accuracy", "loss", "total_s", "wall_s", "longest_node_s"})
    if held := record.hold_out:
        values |= {"hold_out_accuracy": held.accuracy, "train_accuracy": held.train_accuracy}
    return record.id, values


def _profile(setting: Setting, folder: ReproductionDir) -> tuple[str, dict[str, float]]:
    """Return the share of the training loop that each function takes itself, and its calls per step."""
    options, timeout_s = setting.options, _timeout_s(setting)
    record = run_for_record("profile", setting.task, options, folder.runs, ProfileRecord, timeout_s=timeout_s)
    _drop_models(folder.runs / record.id)
    rank = record.ranks[0]
    values: defaultdict[str, float] = defaultdict(float)
    for function in rank.functions:
        values[f"share {function.name}"] += 100 * function.self_s / rank.loop_s
        values[f"calls {function.name}"] += function.calls / rank.steps
    return record.id, dict(values)


def _drop_models(run: Path) -> None:
    """Delete the weights of a run, which would fill a disk, and keep its records."""
    for path in run.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix in (".safetensors", ".npy"):
            path.unlink(missing_ok=True)


def _timeout_s(setting: Setting) -> float:
    return max(LEAST_TIMEOUT_S, PATIENCE * setting.about_s)
