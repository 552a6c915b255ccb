"""Defaults and names of a sweep's options, which the command line imports before torch."""

from typing import TYPE_CHECKING

from manyhands.errors import unknown

if TYPE_CHECKING:
    from manyhands.record.sweep import Kind

KINDS = ("strong", "weak")
BUDGET = "5m"
THREADS = 2
BELONG_TO_CELLS = {
    "engine": "engines",
    "sync": "syncs",
    "batch_size": "batch_sizes",
    "batch_per_worker": "batch_sizes",
    "image_size": "image_sizes",
}
"""Settings of a run that differ from cell to cell, and the sweep's option that takes several values."""
SET_BY_SWEEP = {
    *BELONG_TO_CELLS,
    "trace",
    "eval_every",
    "eval_steps",
    "patience",
    "keep_best",
    "checkpoint_every",
    "keep",
}
"""Settings of a run that a sweep sets itself."""


def check_kind(kind: str) -> "Kind":
    """Return `kind` where it is strong or weak; raise UserError otherwise."""
    if kind not in KINDS:
        unknown("kind of scaling", kind, KINDS)
    return "strong" if kind == "strong" else "weak"
