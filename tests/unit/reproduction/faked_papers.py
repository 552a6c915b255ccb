"""Runs that nobody ran: what a machine of known speed would have measured for a paper's settings."""

from collections.abc import Callable

from manyhands.record.papers import ReproductionDir, Taken
from manyhands.reproduction.base import Setting
from manyhands.reproduction.papers import p000

Take = Callable[[Setting, ReproductionDir, int], Taken]

ALONE_MS = 100.0


def values_of(setting: Setting, *, efficiency: float = 0.9, accuracy: float = 0.98) -> dict[str, float]:
    """Return the figures of a run whose workers are so efficient, the rest of the step being communication."""
    workers = setting.workers
    ideal_ms = ALONE_MS / workers
    step_ms = ideal_ms / efficiency if workers > 1 else ALONE_MS
    train = {
        "batch_size": 128.0,
        "steps": 20.0,
        "steps_per_epoch": 10.0,
        "step_ms": step_ms,
        "compute_ms": ideal_ms,
        "serial_ms": 0.0,
        "comm_ms": step_ms - ideal_ms,
        "wait_ms": 0.0,
        "read_s": 0.5,
        "total_s": step_ms,
        "train_loss": 3.4,
        "test_loss": 0.05,
        "test_accuracy": accuracy,
        "parameters": 235_146.0,
        "step_s": step_ms / 1e3,
        "epoch_s": step_ms / 100,
        "train_s": step_ms / 50,
    }
    folds = {
        "accuracy": accuracy,
        "loss": 0.1,
        "total_s": step_ms,
        "wall_s": step_ms,
        "longest_node_s": step_ms,
        "hold_out_accuracy": accuracy,
        "train_accuracy": accuracy,
    }
    functions = {f"{what} {ours}": 50.0 for *_, ours in p000.FUNCTIONS for what in ("share", "calls")}
    return {"train": train, "crossval": folds, "profile": functions}[setting.command]


def taken(setting: Setting, repeat: int = 0, **how: float) -> Taken:
    """Return a run that went well."""
    return Taken(setting=setting.key, repeat=repeat, took_s=1.0, values=values_of(setting, **how))


def taker(seen: list[tuple[str, int]], fails: Callable[[Setting], str] = lambda setting: "") -> Take:
    """Return a `take` that runs nothing, notes what it was asked for, and fails where told."""

    def take(setting: Setting, folder: ReproductionDir, repeat: int) -> Taken:
        seen.append((setting.key, repeat))
        if why := fails(setting):
            return Taken(setting=setting.key, repeat=repeat, failed=why)
        return taken(setting, repeat)

    return take
