"""One run in a process of its own, so that a rank that dies or memory that runs out never takes a sweep down."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from manyhands.launch.signals.interrupt import die_with_parent
from manyhands.machine.energy import EnergyMeter
from manyhands.machine.load import CoreMeter, others_of
from manyhands.record import Measure, RunDir, RunRecord

SAYS = "manyhands: "
"""How a line on stderr begins that says why a command failed."""
TOO_LONG = "and was ended"
"""How the reason of a run ends that took too long."""
STOP_GRACE_S = 5.0
"""How long a run may take to end its ranks by itself before all its processes are killed."""
SECOND_SIGNAL_S = 0.3
"""SIGTERM asks a run to finish its step, SIGINT after that to stop at once; Python must see them one by one."""


def measure(
    task: str, options: Mapping[str, Any], out: Path, *, timeout_s: float, cell: str = "", repeat: int = 0
) -> Measure:
    """Train once with the options of `manyhands train`; a run that fails is a `Measure` that says why.

    The run's folder, without the weights, stays in `out`.
    """
    meter, cores = EnergyMeter(), CoreMeter(children=True)
    try:
        status, stdout, stderr = run_command(_command(task, options, out), timeout_s)
    except subprocess.TimeoutExpired:
        return Measure(cell=cell, repeat=repeat, failed=f"took longer than {timeout_s:.0f} s {TOO_LONG}")
    except OSError as error:
        return Measure(cell=cell, repeat=repeat, failed=f"could not be started: {error.strerror}")
    energy_j = meter.joules()
    if status != 0:
        return Measure(cell=cell, repeat=repeat, failed=reason_of(status, stderr))
    try:
        record = RunRecord.model_validate_json(stdout)
    except ValidationError:
        return Measure(cell=cell, repeat=repeat, failed="ended without a record that can be read")
    RunDir(out / record.id).model.unlink(missing_ok=True)  # a sweep is not for keeping weights
    found = figures(record)
    if found.others is None:  # too short a run to tell, but its process took longer
        found.others = others_of([cores.read(len(record.ranks) * max(1, record.blas_threads)).to_json()])
    return found.model_copy(
        update={"cell": cell, "repeat": repeat, "run": f"{out.name}/{record.id}", "energy_j": energy_j}
    )


def _command(task: str, options: Mapping[str, Any], out: Path) -> list[str]:
    words = [option_word(name, value) for name, value in options.items() if value is not None]
    return [sys.executable, "-m", "manyhands", "train", task, *words, "--json", f"--out={out}"]


def option_word(name: str, value: Any) -> str:
    """Return the word of a command line that gives the option `name` this value."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed}={value}"


def run_command(command: list[str], timeout_s: float) -> tuple[int, str, str]:
    """Run a command to its end, or until the time is up or Ctrl-C is pressed; leave no process of its behind."""
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
    """Ask a run to stop, then kill it, and what it has started."""
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
    """Say in one sentence why a run ended with this status."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS)]
    if said:
        sentence = said[-1]
    elif status < 0:
        sentence = f"killed by signal {-status}"
    else:
        sentence = f"ended with status {status}" + (f": {lines[-1]}" if lines else "")
    killed = f"killed by signal {signal.SIGKILL.value}"
    return f"{sentence}, perhaps for lack of memory" if killed in sentence else sentence


def figures(record: RunRecord) -> Measure:
    """Return what a sweep keeps of a run."""
    steps = max(1, record.steps)
    return Measure(
        cell="",
        repeat=0,
        hosts=len({rank.host for rank in record.ranks}),
        batch_size=record.batch_size,
        steps=record.steps,
        steps_per_epoch=record.steps_per_epoch,
        step_ms=record.steady.step_ms,
        compute_ms=record.steady.compute_ms,
        serial_ms=record.steady.serial_ms,
        comm_ms=record.steady.comm_ms,
        wait_ms=record.steady.wait_ms,
        read_s=record.read_s,
        eval_s=record.eval_s,
        total_s=record.total_s,
        bytes_per_step=record.bytes_sent / steps,
        messages_per_step=record.messages / steps,
        train_loss=record.train_loss[-1],
        test_loss=record.test_loss,
        test_accuracy=record.test_accuracy,
        max_rss_bytes=max(rank.max_rss_bytes for rank in record.ranks),
        warnings=record.warnings,
        others=record.others,
    )
