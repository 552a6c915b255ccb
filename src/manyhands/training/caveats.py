"""Whether n workers give the answer of one: what a network or a loss does that makes slices of a batch differ from it.

A gradient is shared out by rows: that of a batch is the mean of its slices' gradients, weighted by their rows. What
breaks this is found by trial, whatever the layer or the loss is called.
"""

import copy
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from manyhands import sync
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.errors import check
from manyhands.replica import Batch, Replica
from manyhands.replica.base import Loss
from manyhands.replica.elementwise import check_optimizer
from manyhands.replica.fused import FusedReplica
from manyhands.replica.random import KeyedDropout
from manyhands.replica.traits import traits_of, untouched_generator
from manyhands.tasks import Task
from manyhands.training.plan import Plan

TRIAL_ROWS = 8
"""Rows of a trial batch, spread over the data, which may be sorted by label."""
CUT = 3
"""Rows of its first slice; the other has the rest."""
MOST_ROWS = 256
"""Of a whole batch that is tried."""

Kind = Literal["random", "random loss", "rows", "loss", "sum", "positions", "statistics", "memory", "unknown"]

NEVER_EXACT: tuple[Kind, ...] = ("random loss", "memory")
"""What --exact does not help against."""


class Cause(NamedTuple):
    """Why slices of a batch do not add up to the batch."""

    kind: Kind
    says: str


def warnings_of(config: RunConfig, task: Task, replica: Replica, data: Dataset) -> list[str]:
    """Return a sentence for each reason why this run will not give the answer of one worker on whole batches.

    A loss that is a sum over the rows is refused where batches are cut: n workers would divide its gradient by n.
    """
    if not batches_are_cut(config, len(data.train)):
        return []
    causes = causes_of(task, replica, data)
    for cause in causes:
        check(cause.kind != "sum", f"the loss of '{config.task}' cannot be shared out: {cause.says}")
    return [f"{_what(config)}: {reason}" for reason in reasons(causes, config)]


def check_own_optimizer(config: RunConfig, task: Task, device: torch.device) -> None:
    """Refuse a task's own optimiser unless it treats every weight alike; the named ones do."""
    if not isinstance(task.optimizer, str):
        lr = config.lr or 0.01  # nothing shows at a rate of 0
        check_optimizer(lambda params: task.make_optimizer(params, lr), device, config.task)


def reasons(causes: Iterable[Cause], config: RunConfig) -> list[str]:
    """Say which causes make this run differ from one worker's, and what helps."""
    return [f"{cause.says}{_hint(config, cause)}" for cause in _relevant(causes, config)]


def _relevant(causes: Iterable[Cause], config: RunConfig) -> list[Cause]:
    """Return the causes that matter to this run; a strategy that is not exact promises nothing.

    With --exact the slices are the same for any number of workers, and so is what the model draws in each, unless from
    a generator of its own. One worker who cuts a batch to bound memory only draws other numbers, which are as good.
    """
    if not sync.make(config.sync).exact:
        return []
    if config.size == 1:
        return [] if config.exact else [cause for cause in causes if not cause.kind.startswith("random")]
    return [cause for cause in causes if not config.exact or cause.kind in NEVER_EXACT]


def batches_are_cut(config: RunConfig, samples: int) -> bool:
    """Tell whether some global batch is computed in several pieces."""
    rows = samples if config.batch_size == "full" else min(config.batch_size, samples)
    return config.size > 1 or config.exact or 0 < config.micro_batch < rows


def causes_of(task: Task, replica: Replica, data: Dataset) -> list[Cause]:
    """Find out by trial what makes the gradient of a batch differ from the mean of its slices' gradients."""
    if isinstance(replica, FusedReplica):
        return []  # Linear layers and a known loss
    batch = trial_batch(replica, data)
    if len(batch.x) <= CUT:
        return []
    found = []
    traits = traits_of(replica.module, batch.x)
    loss_draws, of_loss = (False, None) if isinstance(task.loss, str) else _try_loss(replica.module, batch, task.loss)
    if traits.global_random:
        found.append(Cause("random", _RANDOM.format("layer", "model")))
    if loss_draws:
        found.append(Cause("random loss", _RANDOM.format("loss", "loss")))
    if traits.batch_statistics:
        found.append(Cause("rows", _ROWS.format(traits.batch_statistics[0])))
    if of_loss is not None:
        found.append(of_loss)
    if traits.remembers:
        found.append(Cause("memory", _MEMORY))
    return found or _by_gradients(replica, batch, CUT)


def causes_of_batch(replica: Replica, plan: Plan) -> list[Cause]:
    """Try the first global batch itself, where a few rows showed nothing."""
    indices = plan.batches(0)[0]
    rows = indices.stop - indices.start if isinstance(indices, slice) else len(indices)
    rows = min(rows, MOST_ROWS)
    if rows < 2:
        return []
    x, y = plan.split.batch(slice(0, rows) if isinstance(indices, slice) else indices[:rows], replica.params.dtype)
    device = replica.params.device
    return _by_gradients(replica, Batch(x.to(device), y.to(device)), rows // 2)


def trial_batch(replica: Replica, data: Dataset) -> Batch:
    """Return a few rows from all over the training data, with as many labels as can be: losses may weight them."""
    labels = data.train.y
    spread = torch.linspace(0, len(labels) - 1, min(TRIAL_ROWS, len(labels))).long()
    firsts = [int((labels == label).nonzero()[0, 0]) for label in labels.unique()[:TRIAL_ROWS]]  # type: ignore[no-untyped-call]
    indices = torch.tensor([*firsts, *spread.tolist()][: len(spread)])
    x, y = data.train.batch(indices, replica.params.dtype)
    return Batch(x.to(replica.params.device), y.to(replica.params.device))


def apart_when_cut(replica: Replica, batch: Batch, at: int) -> Tensor:
    """Return where the gradients (and moves of statistics) of a batch are not those of its two slices together.

    A value is apart when it differs by more than round-off could make of the slices' gradients.
    """
    rows = len(batch.x)
    replica.forward_backward(batch, 1.0)
    whole, together, size = replica.grads.clone(), torch.zeros_like(replica.grads), torch.zeros_like(replica.grads)
    for a, b in ((0, at), (at, rows)):
        part = Batch(batch.x[a:b], batch.y[a:b], batch.first + a, batch.key)
        replica.forward_backward(part, (b - a) / rows)
        together += replica.grads
        size += replica.grads.abs()
    most = torch.finfo(whole.dtype).eps ** 0.5 * max(float(size.max()), float(whole.abs().max()))
    return torch.gt((whole - together).abs(), most)


def _by_gradients(replica: Replica, batch: Batch, at: int) -> list[Cause]:
    """Compare gradients, where neither the layers nor the loss show why they should differ."""
    try:
        apart = apart_when_cut(replica, batch, at)
    except Exception:  # of a slice that is too small for the model or the loss; those of the run may be larger
        return []
    if not apart.any():
        return []
    if not apart[: replica.update.num_weights].any():
        return [Cause("statistics", _STATISTICS)]
    dropped = [layer for layer in replica.module.modules() if isinstance(layer, KeyedDropout)]
    before = [layer.p for layer in dropped]
    for layer in dropped:
        layer.p = 0.0
    only_dropout = bool(dropped) and not apart_when_cut(replica, batch, at).any()
    for layer, p in zip(dropped, before, strict=True):
        layer.p = p
    return [Cause("positions", _POSITIONS) if only_dropout else Cause("unknown", _UNKNOWN)]


def _try_loss(module: nn.Module, batch: Batch, loss: Loss) -> tuple[bool, Cause | None]:
    """Tell whether the loss draws random numbers, and why it is no mean over the rows, if it is none."""
    with untouched_generator(batch.x.device) as drawn:
        out, y = copy.deepcopy(module).train()(batch.x), batch.y
        if not isinstance(out, Tensor) or len(out) != len(y):
            return False, None
        drawn()
        try:
            whole = _with_slope(loss, out, y)
            if drawn():
                return True, None
            first, rest = _with_slope(loss, out[:CUT], y[:CUT]), _with_slope(loss, out[CUT:], y[CUT:])
        except Exception:  # as above
            return False, None
    share = CUT / len(out)
    if _joined(first, rest, share, 1 - share).is_close_to(whole):
        return False, None
    return False, Cause("sum", _SUM) if _joined(first, rest, 1, 1).is_close_to(whole) else Cause("loss", _LOSS)


class _Sloped(NamedTuple):
    """A loss, and its gradient with respect to the model's output."""

    value: Tensor
    slope: Tensor

    def is_close_to(self, other: "_Sloped") -> bool:
        most = torch.finfo(self.slope.dtype).eps ** 0.5
        return all(bool((a - b).abs().max() <= most * b.abs().max()) for a, b in zip(self, other, strict=True))


def _with_slope(loss: Loss, out: Tensor, y: Tensor) -> _Sloped:
    with torch.enable_grad():
        out = out.detach().clone().requires_grad_()
        value = loss(out, y)
        value.backward()  # type: ignore[no-untyped-call]
    return _Sloped(value.detach(), torch.zeros_like(out) if out.grad is None else out.grad)


def _joined(first: _Sloped, rest: _Sloped, share: float, other_share: float) -> _Sloped:
    """Return what two slices give together when each is weighted by its share."""
    slope = torch.cat((share * first.slope, other_share * rest.slope))
    return _Sloped(share * first.value + other_share * rest.value, slope)


def _what(config: RunConfig) -> str:
    if config.size > 1:
        return "several workers will not give the answer of one"
    return f"batches computed {config.micro_batch} rows at a time will not give the answer of whole ones"


def _hint(config: RunConfig, cause: Cause) -> str:
    if config.size == 1:
        return "; --micro-batch 0 computes whole batches"
    shared_generator = cause.kind == "random" and config.engine in ("threads", "hybrid")
    never_equal = shared_generator or cause.kind in NEVER_EXACT
    return "" if never_equal else "; --exact fixes the slices, so that every number of workers gives the same"


_RANDOM = (
    "a random {}: the {} draws from a process-wide generator (F.dropout, torch.rand, np.random, dropout inside an LSTM "
    "or an attention layer), so each worker draws other numbers; nn.Dropout layers draw by position and are equal"
)
_ROWS = "{} computes each row from the other rows of its slice of the batch, as BatchNorm does with its statistics"
_LOSS = (
    "the loss of a batch is not the mean of its rows' losses, as with class weights or pairs of rows, so slices of it "
    "have another one"
)
_SUM = (
    "it is a sum over the rows, and must be their mean, such as reduction='mean', so that slices of a batch can be "
    "weighted by their rows"
)
_POSITIONS = (
    "a dropout layer gets a tensor whose first dimension is not the batch, as with batch_first=False, so each worker "
    "drops other values"
)
_STATISTICS = "running statistics of the model are no mean over the rows of a batch, so slices of it give others"
_MEMORY = (
    "the model remembers something from one call to the next that is no buffer, such as a generator or a hidden state "
    "of its own, and each worker makes other calls"
)
_UNKNOWN = "the gradient of a batch is not the mean of its slices' gradients"
