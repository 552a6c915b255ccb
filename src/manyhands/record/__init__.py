"""What came out: of a run, of a sweep, of a profile. Needs neither torch nor MPI."""

from typing import TYPE_CHECKING

from manyhands.lazy import lazy

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
        find_run,
        list_runs,
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
        Measure,
        Part,
        Remedy,
        Row,
        SweepDir,
        SweepRecord,
        find_sweep,
        list_sweeps,
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
    "Measure",
    "Others",
    "Part",
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
    "find_run",
    "find_sweep",
    "list_runs",
    "list_sweeps",
    "new_id",
    "open_run",
    "read_events",
    "write_atomically",
]

_SWEEPS = {
    "Cause", "Cell", "Finding", "Fit", "Interval", "Kind", "Measure", "Part", "Remedy", "Row", "SweepDir",
    "SweepRecord", "find_sweep", "list_sweeps",
}  # fmt: skip
_PROFILES = {"FunctionRow", "LineRow", "ProfileRecord", "RankProfile"}

_HOMES = {
    "write_atomically": "files",
    **dict.fromkeys(_SWEEPS, "sweep"),
    **dict.fromkeys(_PROFILES, "profile"),
}

__getattr__, __dir__ = lazy(__name__, {name: _HOMES.get(name, "run") for name in __all__})
