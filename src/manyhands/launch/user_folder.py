"""Where manyhands keeps files that belong to the user and to no single run."""

import os
import re
from pathlib import Path

from manyhands.machine import facts
from manyhands.record.calibration import machine_name


def calibration_path(device: str = "cpu") -> Path:
    """Return the file with the calibration of this machine's CPUs or GPUs; hosts may share a home folder, so each has
    files."""
    return _machine_file("calibration", device)


def chosen_threads_path() -> Path:
    """Return the file with the numbers of BLAS threads that were chosen on this machine."""
    return _machine_file("blas_threads")


def _machine_file(kind: str, device: str = "cpu") -> Path:
    """Return this machine's file in the user's data folder, as the XDG base directory specification places it."""
    given = os.environ.get("XDG_DATA_HOME", "")
    data = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "share"
    machine = re.sub(r"[^A-Za-z0-9.]+", "-", machine_name(facts.hardware(), device))
    return data / "manyhands" / kind / f"{machine}.json"
