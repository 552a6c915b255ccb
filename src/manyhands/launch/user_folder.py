"""Where manyhands keeps what belongs to the user and no single run."""

import os
import re
from pathlib import Path

from manyhands.machine import facts
from manyhands.record.calibration import machine_name


def data_folder() -> Path:
    """Return the user's folder for data, as the XDG base directory specification has it."""
    given = os.environ.get("XDG_DATA_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "share") / "manyhands"


def calibration_path() -> Path:
    """Return the file with this machine's calibration; hosts may share a home, so each has its own."""
    return data_folder() / "calibration" / f"{_machine()}.json"


def chosen_threads_path() -> Path:
    """Return the file with the numbers of BLAS threads that were chosen on this machine."""
    return data_folder() / "blas_threads" / f"{_machine()}.json"


def _machine() -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", machine_name(facts.hardware()))
