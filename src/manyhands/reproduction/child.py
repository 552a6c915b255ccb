"""One run of a setting in a process of its own, and the figures that it gave."""

import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path
from subprocess import TimeoutExpired

from pydantic import ValidationError

from manyhands.crossval.record import CrossvalRecord
from manyhands.measurement.measure import measure, option_word, reason_of, run_command
from manyhands.record import Measure, ProfileRecord, RunDir
from manyhands.record.papers import ReproductionDir, Taken
from manyhands.reproduction.base import Setting

PATIENCE = 20.0
"""How many times as long as expected a run may take."""
TOO_SHORT_S = 300.0


def take(setting: Setting, folder: ReproductionDir, repeat: int) -> Taken:
    """Run a setting once; a run that fails says why."""
    begun = time.perf_counter()
    found = _train(setting, folder) if setting.command == "train" else _other(setting, folder)
    took_s = time.perf_counter() - begun
    return found.model_copy(update={"setting": setting.key, "repeat": repeat, "took_s": took_s})


def _train(setting: Setting, folder: ReproductionDir) -> Taken:
    found = measure(setting.task, setting.options, folder.runs, timeout_s=_timeout_s(setting), cell=setting.key)
    if found.failed:
        return _failed(found.failed)
    record = RunDir(folder.path / found.run).read_or_none()
    parameters = {"parameters": float(record.parameters)} if record else {}
    return Taken(setting="", repeat=0, run=found.run, values=_values(found) | parameters)


def _values(found: Measure) -> dict[str, float]:
    step_s = found.step_ms / 1e3
    numbers = {name: float(v) for name, v in found if isinstance(v, int | float)}
    return numbers | {"step_s": step_s, "epoch_s": found.steps_per_epoch * step_s}


def _other(setting: Setting, folder: ReproductionDir) -> Taken:
    """Run a command other than `train`, and read the record that it prints."""
    words = [option_word(name, value) for name, value in setting.options.items()]
    task = [setting.command, setting.task]
    command = [sys.executable, "-m", "manyhands", *task, *words, "--json", f"--out={folder.runs}"]
    try:
        status, stdout, stderr = run_command(command, _timeout_s(setting))
    except TimeoutExpired:
        return _failed(f"took longer than {_timeout_s(setting):.0f} s and was ended")
    if status != 0:
        return _failed(reason_of(status, stderr))
    try:
        run, values = _profile(stdout) if setting.command == "profile" else _crossval(stdout)
    except ValidationError:
        return _failed("ended without a record that can be read")
    _drop_models(folder.runs / run)
    return Taken(setting="", repeat=0, run=f"{folder.runs.name}/{run}", values=values)


def _crossval(text: str) -> tuple[str, dict[str, float]]:
    record = CrossvalRecord.model_validate_json(text)
    held = record.hold_out
    values = {
        "accuracy": record.accuracy,
        "loss": record.loss,
        "total_s": record.total_s,
        "wall_s": record.wall_s,
        "longest_node_s": record.longest_node_s,
    }
    averaged = {"hold_out_accuracy": held.accuracy, "train_accuracy": held.train_accuracy} if held else {}
    return record.id, values | averaged


def _profile(text: str) -> tuple[str, dict[str, float]]:
    """Return what share of the loop each function takes itself, and how often a step calls it."""
    record = ProfileRecord.model_validate_json(text)
    rank = record.ranks[0]
    values: defaultdict[str, float] = defaultdict(float)
    for function in rank.functions:
        values[f"share {function.name}"] += 100 * function.self_s / rank.loop_s
        values[f"calls {function.name}"] += function.calls / rank.steps
    return record.id, dict(values)


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
