"""Show that parallel equals serial: run both on the same global batches and compare the weights after every step."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import nn

from manyhands import sync, tasks
from manyhands.config import Precision, RunConfig
from manyhands.data import Dataset
from manyhands.launch.base import Observer
from manyhands.record.run import RunDir, RunRecord
from manyhands.replica import Replica
from manyhands.run import Ready, execute, ignore, preflight
from manyhands.tasks import Task
from manyhands.tasks.setup import load_data, make_network, make_replica, trial_device
from manyhands.training.agreement import check_repeats, digest_of_data, digest_of_model
from manyhands.training.caveats import causes_of, causes_of_batch, reasons
from manyhands.training.plan import Plan
from manyhands.verification.roundoff import FACTOR, Floats, distances, round_off_bound


class Verdict(BaseModel):
    """Whether n workers gave the answer of one worker."""

    equal: bool
    bit_equal: bool
    steps: int
    max_ulps: int
    """Largest difference of any weight after any step, in units in the last place."""
    max_relative: float
    """Largest difference of any weight after any step, relative to the largest weight."""
    share_of_change: float
    """Euclidean length of the difference over that of the change by training."""
    first_step: int | None
    """First step after which the weights differ by more than round-off (with --exact, by any bit); None if equal."""
    tensor: str = ""
    """First tensor of the network that differs after `first_step`; if equal, the one nearest to its bound."""
    tensor_share: float = 0.0
    """Length of that tensor's difference over that of its change by training."""
    bound: float = 0.0
    """Largest `tensor_share` that round-off can explain; 0 with --exact."""
    bound_from: str = ""
    """How the bound was determined."""
    cause: str
    """The known causes of a difference, joined by 'and'; empty where none is known."""
    precision: str = ""
    """How far the precision takes a run from one in fp32; empty with fp32."""
    precision_gap: float | None = None
    """`share_of_change` between serial runs with this precision and with fp32; None with fp32."""
    candidates: list[str] = []
    """All possible causes of a difference, known ones first."""
    serial: RunRecord
    parallel: RunRecord


class Difference(NamedTuple):
    """The distance between two sets of weights after one step; fields as in `Verdict`."""

    ulps: int
    relative: float
    share: float


CEILING = 0.1
"""Share of a tensor's change above which a difference is not called round-off, however far serial runs diverge."""
NEGLIGIBLE = 1e-7
"""Share of the largest change of a tensor below which a difference within the bound counts as round-off in any case."""


class TensorGap(NamedTuple):
    """Difference of one tensor after a step, and its bound by round-off, as shares of the tensor's change."""

    over: bool
    step: int
    name: str
    share: float
    bound: float


def verify(config: RunConfig, *, steps: int = 20, observe: Observer = ignore) -> Verdict:
    """Train serially and in parallel for some steps, and compare the weights."""
    steps = config.steps or steps
    parallel_config = config.model_copy(update={"steps": steps, "checkpoint_every": 0, "patience": 0})
    serial_config = parallel_config.model_copy(
        update={"engine": "serial", "workers": 1, "threads": 1, "sync": "allreduce"}
    )
    task = tasks.load(config.task)
    ready = preflight(parallel_config, task)
    _check_same_again(serial_config, task, ready)
    start: Floats = ready.replica.params.detach().cpu().numpy().copy()
    plan = Plan(config, ready.data.train, 0, 1)
    causes = causes_of(task, ready.replica, ready.data) or causes_of_batch(ready.replica, plan)
    with TemporaryDirectory(prefix="manyhands-verify-") as folder:
        serial, expected = _run(serial_config, task, Path(folder), observe)
        parallel, actual = _run(parallel_config, task, Path(folder), observe)
        others = [] if causes or config.exact else _other_runs(serial_config, task, config.size, ready.replica)
        permuted = [_run(*other, Path(folder), observe)[1] for other in others]
        gap = _gap_to_fp32(serial_config, task, start, expected, Path(folder), observe)
        differences = [compare(start, a, b) for a, b in zip(expected, actual, strict=True)]
        tensors = _by_tensor(ready.replica, start, expected, actual, None if config.exact else permuted)
    first = tensors.step if tensors.over else None
    known: list[str] = []
    if first and not sync.make(config.sync).exact:
        known = [f"the strategy: '{config.sync}' does not promise the serial answer"]
    elif first:
        chaotic = [_CHAOTIC.format(tensors.bound)] if tensors.share <= tensors.bound else []
        known = reasons(causes, config) or chaotic
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
        bound_from=_bound_from(others, config),
        precision=_precision_says(config, gap, steps),
        precision_gap=gap,
        cause=" and ".join(known),
        candidates=[*known, *possible_causes(config, task, plan.rows_of(first - 1), first)] if first else [],
        serial=serial,
        parallel=parallel,
    )


def _by_tensor(
    replica: Replica, start: Floats, expected: Floats, actual: Floats, permuted: Sequence[Floats] | None
) -> TensorGap:
    """Return the first tensor beyond its bound, else the one nearest to it; without `permuted`, any bit counts."""
    spans = {name: span for name, span in replica.spans.items() if span[0] < span[1]}
    starts = [first for first, _ in spans.values()]
    gaps = distances(expected, actual, starts)
    changes = distances(expected, np.broadcast_to(start, expected.shape), starts)
    if permuted is None:
        bound = np.zeros_like(gaps)
        over = np.stack([np.logical_or.reduceat(a != b, starts) for a, b in zip(expected, actual, strict=True)])
    else:
        bound = round_off_bound(start, expected, permuted, starts)
        last_digits = round_off_bound(start, expected, (), starts)
        # A bias before a BatchNorm layer changes by round-off alone, which is small beside the other tensors' change.
        small = max(FACTOR * _rounding(replica.precision, expected.dtype.name), NEGLIGIBLE)
        small = small * changes.max(1, keepdims=True)
        chaotic = (gaps > np.maximum(last_digits, small)) & (gaps > CEILING * changes)
        over = ~(gaps <= bound) | chaotic  # a NaN counts as a difference
    parts = np.divide(gaps, bound, out=np.zeros_like(gaps), where=bound > 0)
    # argmax goes row by row: the first step, and in it the first tensor of the network.
    place = np.unravel_index(int((over if over.any() else parts).argmax()), over.shape)
    change = float(changes[place]) or float("nan")
    name = list(spans)[int(place[1])]
    return TensorGap(
        bool(over.any()), int(place[0]) + 1, name, float(gaps[place]) / change, float(bound[place]) / change
    )


def compare(start: Floats, expected: Floats, actual: Floats) -> Difference:
    """Return the distance between two sets of weights that were trained from `start`."""
    if np.array_equal(expected, actual):
        return Difference(0, 0.0, 0.0)
    gap = np.abs(expected.astype(np.float64) - actual)
    change = float(np.linalg.norm(expected.astype(np.float64) - start))
    share = float(np.linalg.norm(gap)) / change if change else float("inf")
    largest = float(np.abs(expected).max())
    relative = float(gap.max()) / largest if largest else float("inf")
    a, b = _ordered(expected), _ordered(actual)
    return Difference(int((np.maximum(a, b) - np.minimum(a, b)).max()), relative, share)


_CHAOTIC = (
    "whether this is round-off cannot be told: serial runs that sum in other orders diverge so far themselves that it "
    "could make {:.1e} of the change; --dtype float64, a smaller --lr or fewer --steps tell more"
)


def possible_causes(config: RunConfig, task: Task, rows: int, first: int) -> list[str]:
    """Return what else may make runs differ from step `first` on, whose batch has `rows` rows."""
    causes = []
    if rows % config.size:
        causes.append(
            f"an uneven batch: step {first}'s batch does not divide by {config.size} workers, and the strategy "
            "seems not to weight the slices by their sample counts"
        )
    if not isinstance(task.data, str) and not config.data:
        causes.append("different data: the task's data function may not give every worker the same samples")
    if not isinstance(task.optimizer, str):
        causes.append("the optimiser: the task's own may not treat every weight alike")
    if not isinstance(task.loss, str):
        causes.append("the loss: the task's own may not be a mean over the rows")
    return [*causes, f"a fault of sync '{config.sync}' or of engine '{config.engine}'"]


OtherRun = tuple[RunConfig, Task]
"""A serial run that differs from the first in its rounding alone."""


def _other_runs(serial: RunConfig, task: Task, workers: int, replica: Replica) -> list[OtherRun]:
    """Return serial runs that sum a batch in other parts: one part per worker, and one part more.

    With `exact`, one worker sums its lanes in a tree; here, any number of lanes is allowed. BatchNorm over the global
    batch cannot be cut: these runs begin with weights that differ in their last digits.
    """
    if replica.meets:
        random = serial.model_copy(update={"init": ""})  # the weights of a file would take the place of nudged ones
        return [(random, replace(task, model=partial(_nudged, task, serial, seed))) for seed in (1, 2)]
    parts = (max(2, workers), max(2, workers) + 1)
    return [(serial.model_copy(update={"exact": True, "lanes": lanes}), task) for lanes in parts]


UNIT = {"fp32": 0.0, "tf32": 2.0**-11, "bf16": 2.0**-9, "fp16": 2.0**-12}
"""Rounding error of the factors of a product, relative; that of fp32 is the number type's own."""
DIGITS = {"tf32": 11, "bf16": 8, "fp16": 11}
"""Bits of a factor that are kept."""


@torch.no_grad()
def _nudged(task: Task, config: RunConfig, seed: int, data: Dataset) -> nn.Module:
    """Make the task's network, with weights that differ by about one rounding error each."""
    module, draws = make_network(task, config, data), torch.Generator().manual_seed(seed)
    for p in module.parameters():
        signs = torch.randint(2, p.shape, generator=draws).to(p) * 2 - 1
        p.mul_(1 + signs * _rounding(config.precision, str(p.dtype).removeprefix("torch.")))
    return module


def _rounding(precision: Precision, dtype: str) -> float:
    """Return the relative error of a product."""
    return max(UNIT[precision], float(np.finfo(dtype).eps))


def _gap_to_fp32(
    serial: RunConfig, task: Task, start: Floats, expected: Floats, folder: Path, observe: Observer
) -> float | None:
    """Return how far one worker is from itself in fp32, as a share of the change by training."""
    if serial.precision == "fp32":
        return None
    whole = _run(serial.model_copy(update={"precision": "fp32"}), task, folder, observe)[1]
    return compare(start, whole[-1], expected[-1]).share


def _precision_says(config: RunConfig, gap: float | None, steps: int) -> str:
    if gap is None:
        return ""
    if gap == 0:
        return f"{config.precision} made no difference to fp32 here"
    return (
        f"{config.precision} keeps {DIGITS[config.precision]} bits: one worker is {gap:.1e} of the change by training "
        f"away from one with fp32 after {steps} steps; that is no error of the parallel run"
    )


def _bound_from(others: Sequence[OtherRun], config: RunConfig) -> str:
    if config.exact:
        return "--exact: no bit may differ"
    digits = f"last digits of {config.dtype}"
    if not others:
        return f"{digits} alone, since the gradients of a batch's slices do not add up to the batch's here"
    if not others[0][0].exact:
        return f"{FACTOR:g} × the distance of serial runs whose first weights differ in the last digit, and {digits}"
    parts = " and ".join(str(other.lanes) for other, _ in others)
    return f"{FACTOR:g} × the distance of serial runs that add up {parts} slices of each batch, and {digits}"


def _run(config: RunConfig, task: Task, out: Path, observe: Observer) -> tuple[RunRecord, Floats]:
    record = execute(config, task=task, out=out, observe=observe, keep_weights=True)
    if record.status == "interrupted":
        raise KeyboardInterrupt
    weights: Floats = np.memmap(RunDir(out / record.id).weights, dtype=config.dtype, mode="r").reshape(record.steps, -1)
    return record, weights


def _check_same_again(config: RunConfig, task: Task, ready: Ready) -> None:
    """Load the data and make the weights again; refuse a task whose data or weights differ each time."""
    again, device = load_data(task, config), trial_device(config)
    check_repeats(digest_of_data(ready.data), digest_of_data(again), "data")
    first, second = (
        digest_of_model(make_replica(task, config, data, device), exchanged=False) for data in (ready.data, again)
    )
    check_repeats(first, second, "initial weights")


def _ordered(values: Floats) -> NDArray[np.unsignedinteger[Any]]:
    """Map floats to integers so that neighbouring floats differ by one: differences count units in the last place."""
    kind = np.dtype(f"u{values.dtype.itemsize}")
    bits = values.view(kind)
    sign = kind.type(1) << kind.type(8 * kind.itemsize - 1)
    # Negative numbers count down from the middle, to which both zeros are mapped.
    ordered: NDArray[np.unsignedinteger[Any]] = np.where(bits & sign, sign - (bits & ~sign), sign + bits)
    return ordered
