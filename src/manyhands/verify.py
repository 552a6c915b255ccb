"""Prove that parallel equals serial: run both on the same global batches and compare the weights step by step."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from manyhands import sync, tasks
from manyhands.config import RunConfig
from manyhands.data.order import cut
from manyhands.launch.base import Observer
from manyhands.record import RunDir, RunRecord
from manyhands.replica.traits import traits_of
from manyhands.run import execute, ignore, preflight
from manyhands.tasks import Task
from manyhands.tasks.setup import load_data, make_replica, trial_device

TOLERANCE = 1e-3
"""Largest share of what training has changed by which round-off may part two runs; real causes give far more."""

Floats = NDArray[np.floating[Any]]


class Verdict(BaseModel):
    """Whether n workers gave the answer of one."""

    equal: bool
    bit_equal: bool
    steps: int
    max_ulps: int
    """Largest difference of any weight after any step, counted in representable numbers between the two."""
    max_relative: float
    """The same, relative to the largest weight."""
    share_of_change: float
    """Length of the difference over the length of what training has changed."""
    first_step: int | None
    """First step after which they differ by more than round-off (or by any bit, with --exact)."""
    cause: str
    """The likely cause, where they differ."""
    serial: RunRecord
    parallel: RunRecord


@dataclass(frozen=True)
class Difference:
    """How far two sets of weights are apart after one step."""

    ulps: int
    relative: float
    share: float


def verify(config: RunConfig, *, steps: int = 20, observe: Observer = ignore) -> Verdict:
    """Train both ways for some steps and compare."""
    steps = config.steps or steps
    parallel_config = config.model_copy(update={"steps": steps, "checkpoint_every": 0})
    serial_config = parallel_config.model_copy(
        update={"engine": "serial", "workers": 1, "threads": 1, "sync": "allreduce"}
    )
    task = tasks.load(config.task)
    preflight(parallel_config, task)
    start = _initial_weights(serial_config)
    with TemporaryDirectory(prefix="manyhands-verify-") as folder:
        serial, expected = _run(serial_config, task, Path(folder), observe)
        parallel, found = _run(parallel_config, task, Path(folder), observe)
        differences = [compare(start, a, b) for a, b in zip(expected, found, strict=True)]
    limit = 0.0 if config.exact else TOLERANCE
    # Written so that a NaN is a difference.
    apart = [i for i, d in enumerate(differences) if not d.share <= limit or (config.exact and d.ulps > 0)]
    first = apart[0] + 1 if apart else None
    return Verdict(
        equal=first is None,
        bit_equal=all(d.ulps == 0 for d in differences),
        steps=steps,
        max_ulps=max(d.ulps for d in differences),
        max_relative=max(d.relative for d in differences),
        share_of_change=max(d.share for d in differences),
        first_step=first,
        cause=likely_cause(config, first, differences) if first else "",
        serial=serial,
        parallel=parallel,
    )


def compare(start: Floats, expected: Floats, found: Floats) -> Difference:
    """Measure the distance between two sets of weights that began at `start`."""
    if np.array_equal(expected, found):
        return Difference(0, 0.0, 0.0)
    gap = np.abs(expected.astype(np.float64) - found)
    change = float(np.linalg.norm(expected.astype(np.float64) - start))
    share = float(np.linalg.norm(gap)) / change if change else float("inf")
    largest = float(np.abs(expected).max())
    relative = float(gap.max()) / largest if largest else float("inf")
    a, b = _ordered(expected), _ordered(found)
    return Difference(int((np.maximum(a, b) - np.minimum(a, b)).max()), relative, share)


def likely_cause(config: RunConfig, first: int, differences: list[Difference]) -> str:
    """Name what most likely parted the runs, from the network, the strategy and the step at which they parted."""
    task = tasks.load(config.task)
    data = load_data(task, config)
    replica = make_replica(task, config, data, trial_device(config))
    sample, _ = data.train.batch(slice(0, min(2, len(data.train))), replica.params.dtype)
    traits = traits_of(replica.module, sample.to(replica.params.device))
    if not sync.make(config.sync).exact:
        return f"the strategy: '{config.sync}' does not promise the serial answer"
    if traits.global_random:
        return (
            "a random layer: the model draws from torch's process-wide generator (F.dropout, torch.rand), so each "
            "worker draws other numbers; nn.Dropout layers draw by position and are equal"
        )
    if traits.batch_statistics and not config.exact:
        return (
            f"BatchNorm: {', '.join(traits.batch_statistics)} normalises with the statistics of each worker's slice; "
            "--exact fixes the slices, so that every number of workers gives the same"
        )
    if _uneven(config, len(data.train), first - 1):
        return (
            f"an uneven batch: step {first}'s batch does not divide by {config.size} workers, and the strategy "
            "seems not to weight the slices by their sample counts"
        )
    worst = max(d.share for d in differences)
    return (
        f"the order of summation: round-off that grew over the steps (now {worst:.1e} of the change); "
        "--exact sums in one fixed order, --dtype float64 makes it a billion times smaller"
    )


def _uneven(config: RunConfig, samples: int, step: int) -> bool:
    size = samples if config.batch_size == "full" else min(config.batch_size, samples)
    per_epoch = -(-samples // size)
    rows = min(size, samples - (step % per_epoch) * size)
    widths = {b - a for a, b in (cut(rows, config.size, r) for r in range(config.size))}
    return len(widths) > 1


def _run(config: RunConfig, task: Task, out: Path, observe: Observer) -> tuple[RunRecord, Floats]:
    opened: list[RunDir] = []
    record = execute(config, task=task, out=out, observe=observe, keep_weights=True, started=opened.append)
    if record.status == "interrupted":
        raise KeyboardInterrupt
    weights: Floats = np.memmap(opened[0].weights, dtype=config.dtype, mode="r").reshape(record.steps, -1)
    return record, weights


def _initial_weights(config: RunConfig) -> Floats:
    task = tasks.load(config.task)
    replica = make_replica(task, config, load_data(task, config), trial_device(config))
    weights: Floats = replica.params.detach().cpu().numpy()
    return weights


def _ordered(values: Floats) -> NDArray[np.unsignedinteger[Any]]:
    """Map floats to whole numbers so that neighbours differ by one: their distance counts ulps."""
    kind = np.dtype(f"u{values.dtype.itemsize}")
    bits = values.view(kind)
    sign = kind.type(1) << kind.type(8 * kind.itemsize - 1)
    # Negative numbers count down from the middle, and both zeros are there.
    ordered: NDArray[np.unsignedinteger[Any]] = np.where(bits & sign, sign - (bits & ~sign), sign + bits)
    return ordered
