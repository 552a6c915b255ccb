"""Prove that parallel equals serial: run both on the same global batches and compare the weights step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from manyhands import sync, tasks
from manyhands.config import RunConfig
from manyhands.data.order import cut
from manyhands.launch.base import Observer
from manyhands.record import RunDir, RunRecord
from manyhands.replica import Replica
from manyhands.run import Ready, execute, ignore, preflight
from manyhands.tasks import Task
from manyhands.tasks.setup import load_data, make_replica, trial_device
from manyhands.training.agreement import check_repeats, digest_of_data, digest_of_model
from manyhands.training.caveats import Cause, causes_of, causes_of_batch, reasons
from manyhands.training.plan import Plan
from manyhands.verification.roundoff import FACTOR, Floats, changes, distances, round_off_bound


class Verdict(BaseModel):
    """Whether n workers gave the answer of one."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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
    tensor: str = ""
    """The first tensor of the network that differs so after `first_step`; of an equal pair, the one nearest to it."""
    tensor_share: float = 0.0
    """Length of its difference over the length of what training has changed in it."""
    bound: float = 0.0
    """What round-off may make of that share; 0 with --exact."""
    bound_from: str = ""
    """How the bound was found."""
    cause: str
    """The likely cause, where they differ and it is known; several are joined by 'and'."""
    candidates: list[str] = []
    """All causes that are possible, where they differ; known ones first."""
    serial: RunRecord
    parallel: RunRecord


@dataclass(frozen=True)
class Difference:
    """How far two sets of weights are apart after one step."""

    ulps: int
    relative: float
    share: float


CEILING = 0.1
"""The share of a tensor's change beyond which a difference is not called round-off, however far serial runs part."""


class TensorGap(NamedTuple):
    """How far one tensor is apart after a step, and how far round-off may bring it: as shares of what was trained."""

    over: bool
    step: int
    name: str
    share: float
    bound: float


def verify(config: RunConfig, *, steps: int = 20, observe: Observer = ignore) -> Verdict:
    """Train both ways for some steps and compare."""
    steps = config.steps or steps
    parallel_config = config.model_copy(update={"steps": steps, "checkpoint_every": 0})
    serial_config = parallel_config.model_copy(
        update={"engine": "serial", "workers": 1, "threads": 1, "sync": "allreduce"}
    )
    task = tasks.load(config.task)
    ready = preflight(parallel_config, task)
    _check_same_again(serial_config, task, ready)
    start: Floats = ready.replica.params.detach().cpu().numpy().copy()
    causes = _causes(config, task, ready)
    with TemporaryDirectory(prefix="manyhands-verify-") as folder:
        serial, expected = _run(serial_config, task, Path(folder), observe)
        parallel, found = _run(parallel_config, task, Path(folder), observe)
        others = [] if causes or config.exact else _other_sums(serial_config, config.size)
        permuted = [_run(other, task, Path(folder), observe)[1] for other in others]
        differences = [compare(start, a, b) for a, b in zip(expected, found, strict=True)]
        tensors = _by_tensor(ready.replica, start, expected, found, None if config.exact else permuted)
    first = tensors.step if tensors.over else None
    known = known_causes(config, causes) if first else []
    if first and not known and tensors.share <= tensors.bound:
        known = [_CHAOTIC.format(tensors.bound)]
    return Verdict(
        equal=first is None,
        bit_equal=all(d.ulps == 0 for d in differences),
        steps=steps,
        max_ulps=max(d.ulps for d in differences),
        max_relative=max(d.relative for d in differences),
        share_of_change=max(d.share for d in differences),
        first_step=first,
        tensor=tensors.name,
        tensor_share=tensors.share,
        bound=tensors.bound,
        bound_from=_found_by(others, config),
        cause=" and ".join(known),
        candidates=[*known, *possible_causes(config, task, len(ready.data.train), first)] if first else [],
        serial=serial,
        parallel=parallel,
    )


def _by_tensor(
    replica: Replica, start: Floats, expected: Floats, found: Floats, permuted: Sequence[Floats] | None
) -> TensorGap:
    """Return the first tensor beyond its bound, or else the one nearest to it; without `permuted`, any bit counts."""
    spans = {name: span for name, span in replica.spans.items() if span[0] < span[1]}
    starts = [first for first, _ in spans.values()]
    gaps = distances(expected, found, starts)
    if permuted is None:
        bound = np.zeros_like(gaps)
        over = np.stack([np.logical_or.reduceat(a != b, starts) for a, b in zip(expected, found, strict=True)])
    else:
        bound = round_off_bound(start, expected, permuted, starts)
        last_digits = round_off_bound(start, expected, (), starts)
        chaotic = (gaps > last_digits) & (gaps > CEILING * changes(start, expected, starts))
        over = ~(gaps <= bound) | chaotic  # written so that a NaN is a difference
    parts = np.divide(gaps, bound, out=np.zeros_like(gaps), where=bound > 0)
    # Row by row, so that the first of the largest is of the first step, and there the first of the network.
    place = np.unravel_index(int((over if over.any() else parts).argmax()), over.shape)
    change = float(changes(start, expected, starts)[place]) or float("nan")
    name = list(spans)[int(place[1])]
    return TensorGap(
        bool(over.any()), int(place[0]) + 1, name, float(gaps[place]) / change, float(bound[place]) / change
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


_CHAOTIC = (
    "whether this is round-off cannot be told: serial runs that sum in other orders part so far themselves that it "
    "could make {:.1e} of the change; --dtype float64, a smaller --lr or fewer --steps tell more"
)


def known_causes(config: RunConfig, causes: Sequence[Cause]) -> list[str]:
    """Say what parts these runs for certain: the strategy, the network or the loss."""
    if not sync.make(config.sync).exact:
        return [f"the strategy: '{config.sync}' does not promise the serial answer"]
    return reasons(causes, config)


def possible_causes(config: RunConfig, task: Task, samples: int, first: int) -> list[str]:
    """List what else may part runs from step `first` on."""
    found = []
    if _uneven(config, samples, first - 1):
        found.append(
            f"an uneven batch: step {first}'s batch does not divide by {config.size} workers, and the strategy "
            "seems not to weight the slices by their sample counts"
        )
    if not isinstance(task.data, str) and not config.data:
        found.append("different data: the task's data function may not give every worker the same samples")
    if not isinstance(task.optimizer, str):
        found.append("the optimiser: the task's own may not treat every weight alike")
    if not isinstance(task.loss, str):
        found.append("the loss: the task's own may not be a mean over the rows")
    return [*found, f"a fault of sync '{config.sync}' or of engine '{config.engine}'"]


def _causes(config: RunConfig, task: Task, ready: Ready) -> list[Cause]:
    """Return why batches cannot be cut without changing the answer; the first one is tried as well."""
    plan = Plan(config, ready.data.train, 0, 1)
    return causes_of(task, ready.replica, ready.data) or causes_of_batch(ready.replica, plan)


def _other_sums(serial: RunConfig, workers: int) -> list[RunConfig]:
    """Return serial runs that sum over other parts of a batch: as many as workers, and one more.

    One worker sums lanes in a tree, with one thread in each product; here there may be any number of lanes.
    """
    parts = (max(2, workers), max(2, workers) + 1)
    return [serial.model_copy(update={"exact": True, "lanes": lanes}) for lanes in parts]


def _found_by(others: Sequence[RunConfig], config: RunConfig) -> str:
    if config.exact:
        return "--exact: no bit may differ"
    digits = f"last digits of {config.dtype}"
    if not others:
        return f"{digits} alone, since slices of a batch do not add up to it here"
    parts = " and ".join(str(other.lanes) for other in others)
    return f"{FACTOR:g} × how far serial runs part that add up {parts} slices of each batch, and {digits}"


def _uneven(config: RunConfig, samples: int, step: int) -> bool:
    size = samples if config.batch_size == "full" else min(config.batch_size, samples)
    per_epoch = -(-samples // size)
    rows = min(size, samples - (step % per_epoch) * size)
    widths = {b - a for a, b in (cut(rows, config.size, r) for r in range(config.size))}
    return len(widths) > 1


def _run(config: RunConfig, task: Task, out: Path, observe: Observer) -> tuple[RunRecord, Floats]:
    opened: list[RunDir] = []
    record = execute(
        config,
        task=task,
        out=out,
        observe=observe,
        keep_weights=True,
        started=opened.append,
        warn=lambda sentence: None,
    )
    if record.status == "interrupted":
        raise KeyboardInterrupt
    weights: Floats = np.memmap(opened[0].weights, dtype=config.dtype, mode="r").reshape(record.steps, -1)
    return record, weights


def _check_same_again(config: RunConfig, task: Task, ready: Ready) -> None:
    """Make data and weights anew; refuse a task that makes other ones each time."""
    data, device = load_data(task, config), trial_device(config)
    check_repeats(digest_of_data(ready.data), digest_of_data(data), "data")
    before, again = (
        digest_of_model(make_replica(task, config, each, device), exchanged=False) for each in (ready.data, data)
    )
    check_repeats(before, again, "initial weights")


def _ordered(values: Floats) -> NDArray[np.unsignedinteger[Any]]:
    """Map floats to whole numbers so that neighbours differ by one: their distance counts ulps."""
    kind = np.dtype(f"u{values.dtype.itemsize}")
    bits = values.view(kind)
    sign = kind.type(1) << kind.type(8 * kind.itemsize - 1)
    # Negative numbers count down from the middle, and both zeros are there.
    ordered: NDArray[np.unsignedinteger[Any]] = np.where(bits & sign, sign - (bits & ~sign), sign + bits)
    return ordered
