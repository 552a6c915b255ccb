"""A probe of two seconds: how fast the cores of this machine are now, and whether other programs use them."""

from typing import NamedTuple

from manyhands.calibration.cores import time_cores
from manyhands.machine import facts
from manyhands.machine.load import CoreMeter, others_of
from manyhands.record.calibration import CoreTimes
from manyhands.record.run import Others


class Probe(NamedTuple):
    """The state of this machine."""

    cores: CoreTimes
    others: Others | None


def take_probe() -> Probe:
    """Time bare threads on one core and on all."""
    cores, meter = facts.cores(), CoreMeter()
    times = time_cores(cores, sorted({1, cores}))
    return Probe(times, others_of([meter.read(cores).to_json()]))
