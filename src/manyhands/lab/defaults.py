"""What the command line must know of sweeps and profiles before it imports what runs them."""

from typing import TYPE_CHECKING

from manyhands.errors import unknown

if TYPE_CHECKING:
    from manyhands.model.fit_comm import CommModel
    from manyhands.record import Kind

KINDS = ("strong", "weak")
BUDGET = "5m"
ENOUGH_REPEATS = 5
"""The fewest runs whose least and greatest say something: they hold the true median in 93.75 % of cases."""
THREADS = 2
BELONG_TO_CELLS = {
    "engine": "engines",
    "sync": "syncs",
    "batch_size": "batch_sizes",
    "batch_per_worker": "batch_sizes",
    "image_size": "image_sizes",
}
"""Settings of a run that differ from cell to cell, and the option that takes several."""
SET_BY_SWEEP = {*BELONG_TO_CELLS, "trace", "eval_every", "checkpoint_every", "keep"}
"""Settings of a run that a sweep sets itself."""

PROFILE_S = 4.0
"""How long the steps of a profile take together, if neither steps nor epochs were asked for."""
TRACE = 20
"""Steps in a profile's timeline, if not asked for otherwise: fewer in a short run."""

MODELS: "dict[str, CommModel]" = {"threads": "slices", "mpi": "messages", "torch": "messages"}
"""The engines that can be measured, and the formulas that are fitted to their calls."""


def check_calibrated(engines: str, kind: str = "engine that can be calibrated") -> None:
    """Refuse engines, several with commas between them, of which no calibration can tell."""
    for engine in filter(None, cut_list(engines)):
        if engine not in MODELS:
            unknown(kind, engine, MODELS)


def check_kind(kind: str) -> "Kind":
    """Return the kind of scaling that is meant."""
    if kind not in KINDS:
        unknown("kind of scaling", kind, KINDS)
    return "strong" if kind == "strong" else "weak"


def cut_list(text: str) -> list[str]:
    """Cut a text at its commas; `ratio=0.01` goes on with the strategy before it."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and "=" in part.partition(":")[0]:
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return parts
