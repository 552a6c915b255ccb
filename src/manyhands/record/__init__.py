"""Records: the results of runs, sweeps, profiles and predictions, and their store. Needs neither torch nor MPI."""

from typing import TYPE_CHECKING

from manyhands._lazy import lazy

if TYPE_CHECKING:
    from manyhands.record.files import write_atomically
    from manyhands.record.profile import FunctionRow, LineRow, ProfileRecord, RankProfile
    from manyhands.record.run import (
        Others,
        Pulse,
        Quantiles,
        RankRecord,
        RunDir,
        RunRecord,
        Steady,
        new_id,
        open_run,
        read_events,
    )
    from manyhands.record.sweep import (
        Cause,
        Cell,
        Finding,
        Fit,
        Interval,
        Kind,
        LostShare,
        Measure,
        Remedy,
        Row,
        SweepDir,
        SweepRecord,
    )

__all__ = [
    "Cause",
    "Cell",
    "Finding",
    "Fit",
    "FunctionRow",
    "Interval",
    "Kind",
    "LineRow",
    "LostShare",
    "Measure",
    "Others",
    "ProfileRecord",
    "Pulse",
    "Quantiles",
    "RankProfile",
    "RankRecord",
    "Remedy",
    "Row",
    "RunDir",
    "RunRecord",
    "Steady",
    "SweepDir",
    "SweepRecord",
    "new_id",
    "open_run",
    "read_events",
    "write_atomically",
]

_SWEEPS = {
    "Cause", "Cell", "Finding", "Fit", "Interval", "Kind", "Measure", "LostShare", "Remedy", "Row", "SweepDir",
    "SweepRecord",
}  # fmt: skip
_PROFILES = {"FunctionRow", "LineRow", "ProfileRecord", "RankProfile"}

_HOMES = {
    "write_atomically": "files",
    **dict.fromkeys(_SWEEPS, "sweep"),
    **dict.fromkeys(_PROFILES, "profile"),
}

__getattr__, __dir__ = lazy(__name__, {name: _HOMES.get(name, "run") for name in __all__})
