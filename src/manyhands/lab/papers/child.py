"""One run of a setting in a process of its own, and the figures that it gave."""

import shutil
import sys
import time
from pathlib import Path
from subprocess import TimeoutExpired

from pydantic import ValidationError

from manyhands.crossval import CrossvalRecord
from manyhands.lab.measure import _option, _run, _why, measure
from manyhands.lab.papers.base import Setting
from manyhands.record import Measure, RunDir
from manyhands.record.papers import ReproductionDir, Taken

PATIENCE = 20.0
"""How many times as long as expected a run may take."""
TOO_SHORT_S = 300.0


def take(setting: Setting, folder: ReproductionDir, repeat: int) -> Taken:
    """Run a setting once; a run that fails says why."""
    begun = time.perf_counter()
    found = _train(setting, folder) if setting.command == "train" else _crossval(setting, folder)
    took_s = time.perf_counter() - begun
    return found.model_copy(update={"setting": setting.key, "repeat": repeat, "took_s": took_s})


def _train(setting: Setting, folder: ReproductionDir) -> Taken:
    found = measure(setting.task, setting.options, folder.runs, timeout_s=_timeout_s(setting), cell=setting.key)
    if found.failed:
        return _failed(found.failed)
    record = RunDir(folder.path / found.run).read()
    parameters = {"parameters": float(record.parameters)} if record else {}
    return Taken(setting="", repeat=0, run=found.run, values=_values(found) | parameters)


def _values(found: Measure) -> dict[str, float]:
    step_s = found.step_ms / 1e3
    numbers = {name: float(v) for name, v in found if isinstance(v, int | float)}
    times = {"step_s": step_s, "epoch_s": found.steps_per_epoch * step_s, "train_s": found.steps * step_s}
    return numbers | times


def _crossval(setting: Setting, folder: ReproductionDir) -> Taken:
    words = [_option(name, value) for name, value in setting.options.items()]
    command = [sys.executable, "-m", "manyhands", "crossval", setting.task, *words, "--json", f"--out={folder.runs}"]
    try:
        status, stdout, stderr = _run(command, _timeout_s(setting))
    except TimeoutExpired:
        return _failed(f"took longer than {_timeout_s(setting):.0f} s and was ended")
    if status != 0:
        return _failed(_why(status, stderr))
    try:
        record = CrossvalRecord.model_validate_json(stdout)
    except ValidationError:
        return _failed("ended without a record that can be read")
    _drop_models(folder.runs / record.id)
    return Taken(setting="", repeat=0, run=f"{folder.runs.name}/{record.id}", values=_scores(record))


def _scores(record: CrossvalRecord) -> dict[str, float]:
    held = record.hold_out
    values = {
        "accuracy": record.accuracy,
        "loss": record.loss,
        "total_s": record.total_s,
        "wall_s": record.wall_s,
        "longest_node_s": record.longest_node_s,
    }
    return values | ({"hold_out_accuracy": held.accuracy, "train_accuracy": held.train_accuracy} if held else {})


def _drop_models(run: Path) -> None:
    """Keep what a run says, not the weights of its folds, which would fill a disk."""
    for path in run.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix in (".safetensors", ".npy"):
            path.unlink(missing_ok=True)


def _timeout_s(setting: Setting) -> float:
    return max(TOO_SHORT_S, PATIENCE * setting.about_s)


def _failed(why: str) -> Taken:
    return Taken(setting="", repeat=0, failed=why)
