"""Loss, accuracy and metrics on the test data, shared out over the ranks."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from manyhands.comm import Comm
from manyhands.config import RunConfig
from manyhands.data import AnySplit, Dataset
from manyhands.data.order import cut
from manyhands.replica.criterion import Criterion
from manyhands.replica.drawing import keyed_whole
from manyhands.replica.nested import Nested, call, moved, num_rows, rows_of
from manyhands.replica.random import mix_key
from manyhands.tasks import Task
from manyhands.tasks.metrics import MetricSet, means_accuracy
from manyhands.tasks.setup import criterion_of

CHUNK = 500
"""Samples that are evaluated at once."""
EVALUATION = 0x7E57
"""Part of the keys of what a network draws while it is evaluated."""
TRIAL_ROWS, TRIAL_CUT = 16, 5
"""Rows on which metrics are tried, and the rows of the first of the two slices that are compared with the whole."""


class Figures(NamedTuple):
    """The figures of some weights on the test data."""

    loss: float
    """Mean over the rows, or their weighted mean; of a summed loss, the sum divided by the rows."""
    accuracy: float | None
    """Share of hits among the rows that the loss does not ignore; None where the targets are no classes."""
    metrics: dict[str, float]


@final
@dataclass(frozen=True)
class Scoring:
    """What is measured on the test data."""

    criterion: Criterion
    classes: int = 0
    top: int = 1
    """A sample is a hit when its label is among as many best guesses."""
    metrics: Mapping[str, Any] = field(default_factory=dict)


def scoring_of(task: Task, config: RunConfig, data: Dataset, module: nn.Module) -> Scoring:
    """Return what a task's network is measured by."""
    return Scoring(criterion_of(task, module), data.classes, config.top, task.metrics)


@torch.no_grad()
def evaluate(module: nn.Module, split: AnySplit, scoring: Scoring, comm: Comm) -> Figures:
    """Return the figures of a network on `split`, the same on every rank.

    The chunks do not depend on the number of ranks, and each chunk's figures are computed by one rank and added to
    zeros elsewhere: so equal weights give equal figures, to the bit. A network that draws while it is evaluated, as
    a VAE does, draws by the chunk, and the same in every evaluation.
    """
    num_chunks = -(-len(split) // CHUNK)
    metrics, states = MetricSet(scoring.metrics), dict[str, Tensor]()
    rows = [min(CHUNK, len(split) - CHUNK * chunk) for chunk in range(num_chunks)]
    sums = torch.zeros(num_chunks, 5 + len(metrics.of_rows), dtype=torch.float64)
    first, last = cut(num_chunks, comm.size, comm.rank)
    dtype = next(module.parameters()).dtype
    for chunk in range(first, last):
        x, y = split.batch(slice(chunk * CHUNK, chunk * CHUNK + rows[chunk]), dtype)
        with _in_eval(module), keyed_whole(mix_key(EVALUATION, chunk)):
            out = call(module, x)
            loss, amount = _loss_and_amount(scoring.criterion, out, y, rows[chunk])
        counts = means_accuracy(scoring.criterion, scoring.classes, out, y)
        hits = _hits_and_rows(out, y, scoring.top, scoring.criterion.ignored) if counts else (0.0, 0.0)
        means = [mean * rows[chunk] for mean in metrics.means(out, y)]
        sums[chunk] = torch.tensor([loss, amount, *hits, float(counts), *means], dtype=torch.float64)
        states |= metrics.states(chunk, out, y)
    comm.all_reduce_(sums)
    loss, amount, hits, tried, counted, *totals = sums.sum(0).tolist()
    values = metrics.values([total / len(split) for total in totals], metrics.gather(comm, states), rows)
    accuracy = hits / tried if counted == num_chunks and tried else None
    return Figures(loss / amount if amount else float("nan"), accuracy, _first_ranks(comm, values))


@contextmanager
def _in_eval(module: nn.Module) -> Iterator[None]:
    """Put all layers into evaluation mode, and each back into its own afterwards."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training


@torch.no_grad()
def chunked_metrics(module: nn.Module, split: AnySplit, metrics: Mapping[str, Any], device: torch.device) -> list[str]:
    """Return a sentence on metrics that are no means over the rows, where several chunks would be evaluated."""
    means, rows = MetricSet(metrics), min(TRIAL_ROWS, len(split))
    if not means.of_rows or len(split) <= CHUNK:
        return []
    x, y = (moved(part, device) for part in split.batch(slice(0, rows), next(module.parameters()).dtype))
    with _in_eval(module):
        out = call(module, x)
    if num_rows(out) != rows or num_rows(y) != rows:
        return []
    whole, *parts = (
        means.means(rows_of(out, part), rows_of(y, part))
        for part in (slice(0, rows), slice(0, TRIAL_CUT), slice(TRIAL_CUT, rows))
    )
    together = [(a * TRIAL_CUT + b * (rows - TRIAL_CUT)) / rows for a, b in zip(*parts, strict=True)]
    apart = [
        name
        for name, a, b in zip(means.of_rows, whole, together, strict=True)
        if math.isfinite(a - b) and not math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6)
    ]
    return [
        f"metric '{name}' is no mean over the rows, so its figure will be the mean of those of {CHUNK} samples each; "
        "a torchmetrics object is computed from all"
        for name in apart
    ]


def _loss_and_amount(criterion: Criterion, out: Nested, y: Nested, rows: int) -> tuple[float, float]:
    """Return a chunk's part of the sum of losses, and of what that sum is divided by."""
    amount = criterion.amount(y, rows)
    if amount == 0:  # of a weighted mean: no row counts, and the loss is 0 / 0
        return 0.0, 0.0
    loss = float(criterion.loss(out, y))
    return (loss, amount) if criterion.reduction == "sum" else (loss * amount, amount)


def _hits_and_rows(out: Tensor, y: Tensor, top: int, ignored: int) -> tuple[float, float]:
    """Return the number of rows that hit, and of those that are tried: ones that the loss ignores are not.

    A row with a class for each of several places counts by its share.
    """
    if top == 1:
        right = out.argmax(1) == y
    else:
        right = (out.topk(min(top, out.shape[1]), dim=1).indices == y.unsqueeze(1)).any(1)
    told = y != ignored
    if y.dim() == 1:
        return float((right & told).sum()), float(told.sum())
    hits, places = (t.flatten(1).double().sum(1) for t in (right & told, told))
    return float((hits / places.clamp(min=1)).sum()), float((places > 0).sum())


def _first_ranks(comm: Comm, values: dict[str, float]) -> dict[str, float]:
    """Return the first rank's values: hosts of different kinds may compute others from the same states."""
    if comm.size == 1 or not values:
        return values
    shared = torch.tensor(list(values.values()), dtype=torch.float64)
    comm.broadcast_(shared)
    return dict(zip(values, shared.tolist(), strict=True))
