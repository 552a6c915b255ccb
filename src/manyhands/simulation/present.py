"""Choose the calibration that was made in the present state of this machine, and say where there is none."""

from collections.abc import Callable, Sequence
from typing import Literal

from manyhands.calibration.probe import Probe, take_probe
from manyhands.machine import facts
from manyhands.model.runs.state import in_state, slow_down
from manyhands.record.calibration import Calibration, machine_name
from manyhands.record.texts import day

SLOWER = 1.05
"""Ratios nearer to 1 are called as fast as then."""

GivenProbe = Probe | Literal[False] | None
"""A probe; False for none, and None to take one where the calibration is of this machine."""


def present_calibration(
    calibration: Calibration, task: str, engines: Sequence[str], probe: GivenProbe, say: Callable[[str], None]
) -> tuple[Calibration, str]:
    """Return the newest calibration in the present state, and the circumstances of the one that is used.

    Where none is, `say` is called with how far off the machine is, and the newest is used.
    """
    probe = probe_for(calibration) if probe is None else probe
    if not probe:
        return calibration, calibration.circumstances()
    chosen, now = in_state(calibration, probe.cores, task, engines), _speed(calibration, probe)
    if chosen is None:
        load = f", and {probe.others}" if probe.others and probe.others.disturbed else ""
        say(f"this machine is {now} when it was calibrated, {day(calibration.made)}{load}: calibrate again")
        chosen = calibration
    elif chosen.made != calibration.made:
        say(
            f"this machine is {now} at its newest calibration, {day(calibration.made)}, but in the state of the one of "
            f"{day(chosen.made)}, which is used"
        )
    return chosen, f"{chosen.circumstances()}; this machine is now {_speed(chosen, probe)} then"


def probe_for(calibration: Calibration) -> Probe | Literal[False]:
    """Take a probe where the calibration is of this machine; of another, its present state is not known."""
    return take_probe() if calibration.machine == machine_name(facts.hardware()) else False


def _speed(calibration: Calibration, probe: Probe) -> str:
    ratio = slow_down(calibration.cores, probe.cores)
    if 1 / SLOWER < ratio < SLOWER:
        return "as fast as"
    return f"{ratio:.1f} × slower than" if ratio > 1 else f"{1 / ratio:.1f} × faster than"
