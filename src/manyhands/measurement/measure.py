"""Run a command in a process of its own, so that a crashed rank or a lack of memory does not end a sweep."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pydantic import BaseModel, ValidationError

from manyhands.errors import UserError
from manyhands.machine.energy import EnergyMeter
from manyhands.machine.load import CoreMeter, others_of
from manyhands.machine.parent import die_with_parent
from manyhands.record.run import RankSteps, RunDir, RunRecord
from manyhands.record.sweep import Measure

PREFIX = "manyhands: "
"""How the line on stderr begins that says why a command failed."""
TOO_LONG = "and was ended"
"""How the reason of a run ends that exceeded its time limit."""
STOP_GRACE_S = 5.0
"""How long a run may take to end its ranks by itself before all its processes are killed."""
SECOND_SIGNAL_S = 0.3
"""Delay between SIGTERM, which asks a run to finish its step, and SIGINT, which stops it at once: Python must see two
separate signals."""
KEPT = {
    *("batch_size", "steps", "steps_per_epoch", "read_s", "eval_s", "total_s"),
    *("test_loss", "test_accuracy", "warnings", "others"),
}
"""Fields of a run's record that a `Measure` keeps as they are."""

Record = TypeVar("Record", bound=BaseModel)


def measure(
    task: str, options: Mapping[str, Any], out: Path, *, timeout_s: float, cell: str = "", repeat: int = 0
) -> Measure:
    """Train once with the options of `manyhands train`; a failed run returns a `Measure` with the reason.

    The run's folder, without the weights, stays in `out`.
    """
    meter, cores = EnergyMeter(), CoreMeter(children=True)
    try:
        record = run_for_record("train", task, options, out, RunRecord, timeout_s=timeout_s)
    except UserError as error:
        return Measure(cell=cell, repeat=repeat, failed=str(error))
    energy_j = meter.joules()
    RunDir(out / record.id).model.unlink(missing_ok=True)  # a sweep is not for keeping weights
    run = figures(record)
    if run.others is None:  # the run was too short to tell, but its process took longer
        run.others = others_of([cores.read(len(record.ranks) * max(1, record.blas_threads)).to_json()])
    return run.model_copy(
        update={"cell": cell, "repeat": repeat, "run": f"{out.name}/{record.id}", "energy_j": energy_j}
    )


def run_for_record(
    command: str, task: str, options: Mapping[str, Any], out: Path, kind: type[Record], *, timeout_s: float
) -> Record:
    """Run a manyhands command in a process of its own, and return its record; raise UserError with why it failed."""
    try:
        status, stdout, stderr = run_command(_command(command, task, options, out), timeout_s)
    except subprocess.TimeoutExpired:
        raise UserError(f"took longer than {timeout_s:.0f} s {TOO_LONG}") from None
    except OSError as error:
        raise UserError(f"could not be started: {error.strerror}") from None
    if status != 0:
        raise UserError(reason_of(status, stderr))
    try:
        return kind.model_validate_json(stdout)
    except ValidationError:
        raise UserError("ended without a record that can be read") from None


def _command(command: str, task: str, options: Mapping[str, Any], out: Path) -> list[str]:
    words = [_option_word(name, value) for name, value in options.items() if value is not None]
    return [sys.executable, "-m", "manyhands", command, task, *words, "--json", f"--out={out}"]


def _option_word(name: str, value: Any) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed}={value}"


def run_command(command: list[str], timeout_s: float) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a command; no process of it survives a time-out or Ctrl-C."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches only us
        preexec_fn=partial(die_with_parent, signal.SIGKILL),
    )
    with child:
        try:
            stdout, stderr = child.communicate(timeout=timeout_s)
        except BaseException:
            _end(child)
            raise
    return child.returncode, stdout, stderr


def _end(child: "subprocess.Popen[str]") -> None:
    """Ask a run to stop, then kill it and all its descendants."""
    started = _descendants(child.pid)
    try:
        for number, grace_s in ((signal.SIGTERM, SECOND_SIGNAL_S), (signal.SIGINT, STOP_GRACE_S)):
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace_s)
    finally:  # a second Ctrl-C comes here at once
        for process in [*_descendants(child.pid), *started]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        child.kill()
        child.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def reason_of(status: int, stderr: str) -> str:
    """Say in one sentence why a run ended with this exit status."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    messages = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    if messages:
        sentence = messages[-1]
    elif status < 0:
        sentence = f"killed by signal {-status}"
    else:
        sentence = f"ended with status {status}" + (f": {lines[-1]}" if lines else "")
    killed = f"killed by signal {signal.SIGKILL.value}"
    return f"{sentence}, perhaps for lack of memory" if killed in sentence else sentence


def figures(record: RunRecord) -> Measure:
    """Return the figures of a run that a sweep keeps."""
    steps = max(1, record.steps)
    workers = [rank.steady for rank in record.ranks if rank.steady]
    return Measure(
        cell="",
        repeat=0,
        hosts=len({rank.host for rank in record.ranks}),
        bytes_per_step=record.bytes_sent / steps,
        messages_per_step=record.messages / steps,
        train_loss=record.train_loss[-1],
        max_rss_bytes=max(rank.max_rss_bytes for rank in record.ranks),
        typical=typical_of(workers),
        slowest=max(workers, key=usual_ms, default=None),
        **record.model_dump(include=KEPT),
        **record.steady.model_dump(exclude={"steps"}),
        by_sample=record.by_sample,
        data_workers=record.config.data_workers,
    )


def typical_of(workers: Sequence[RankSteps]) -> RankSteps | None:
    """Return the worker with the median time per row, of two the faster one; None of none."""
    by_row = sorted(workers, key=lambda worker: worker.median_ms / max(1, worker.rows))
    return by_row[(len(by_row) - 1) // 2] if by_row else None


def usual_ms(worker: RankSteps) -> float:
    """Return the time that a worker takes for its own work in a usual step."""
    return worker.median_ms + worker.serial_ms
