"""Why n workers may not give the answer of one: networks and losses whose gradient cannot be computed slice by slice.

The gradient of a batch is shared out by rows: it is the mean of its slices' gradients, weighted by their rows. A trial
finds networks and losses that break this, whatever their layers are called.
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
from manyhands.replica.criterion import Loss
from manyhands.replica.elementwise import check_optimizer
from manyhands.replica.fused import FusedReplica
from manyhands.replica.random import KeyedDropout
from manyhands.replica.traits import traits_of, untouched_generator
from manyhands.tasks import Task
from manyhands.tasks.setup import recipe_of
from manyhands.training.plan import Plan

TRIAL_ROWS = 8
"""Rows of a trial batch, spread over the data, which may be sorted by label."""
CUT = 3
"""Rows of the trial batch's first slice; the second has the rest."""
MOST_ROWS = 256
"""Rows of a run's own batch that are tried at most."""

MOST_RATES = 20_000
"""Steps of a scheduler that are tried at most."""

Kind = Literal["random", "random loss", "rows", "loss", "sum", "positions", "statistics", "memory", "unknown"]

NEVER_EXACT: tuple[Kind, ...] = ("random loss", "memory")
"""Causes that --exact does not help against."""

_RANDOM = (
    "a random {}: the {} draws from a process-wide generator (F.dropout, torch.rand, np.random, dropout inside an LSTM "
    "or an attention layer), so each worker draws other numbers; nn.Dropout layers draw by position and are equal"
)
SAYS: dict[Kind, str] = {
    "random": _RANDOM.format("layer", "model"),
    "random loss": _RANDOM.format("loss", "loss"),
    "rows": "{} computes each row from the other rows of its slice of the batch, as BatchNorm does with its statistics",
    "loss": "the loss of a batch is not the mean of its rows' losses, as with class weights or pairs of rows, so "
    "the losses of its slices do not add up to it",
    "sum": "it is a sum over the rows, and must be their mean, such as reduction='mean', so that slices of a batch can "
    "be weighted by their rows",
    "positions": "a dropout layer gets a tensor whose first dimension is not the batch, as with batch_first=False, so "
    "each worker drops other values",
    "statistics": "running statistics of the model are no mean over the rows of a batch, so that slices of it change "
    "them",
    "memory": "the model remembers something from one call to the next that is no buffer, such as a generator or a "
    "hidden state of its own, and each worker makes other calls",
    "unknown": "the gradient of a batch is not the mean of its slices' gradients",
}


class Cause(NamedTuple):
    """Why slices of a batch do not add up to the batch."""

    kind: Kind
    layer: str = ""
    """Name of the layer, for `rows`."""

    @property
    def says(self) -> str:
        """The cause in words."""
        return SAYS[self.kind].format(self.layer)


def warnings_of(config: RunConfig, task: Task, replica: Replica, data: Dataset) -> list[str]:
    """Return a sentence for each reason why this run will not give the answer of one worker on whole batches.

    A loss that is a sum over the rows is refused where batches are cut: n workers would divide its gradient by n.
    """
    cut = config.size > 1 or config.exact or 0 < config.micro_batch < Plan(config, data.train, 0, 1).batch_size
    if not cut:
        return []
    causes = causes_of(task, replica, data)
    for cause in causes:
        check(cause.kind != "sum", f"the loss of '{config.task}' cannot be shared out: {cause.says}")
    several = "several workers will not give the answer of one"
    pieces = f"batches computed {config.micro_batch} rows at a time will not give the answer of whole ones"
    return [f"{several if config.size > 1 else pieces}: {reason}" for reason in reasons(causes, config)]


def check_own_optimizer(config: RunConfig, task: Task, replica: Replica) -> None:
    """Refuse a task's own optimiser if n workers could not do what one does with it; the named ones are known."""
    if not task.optimizer_name(config):
        recipe = recipe_of(task, config.model_copy(update={"lr": config.lr or 0.01}), replica.module)
        check_optimizer(recipe, replica.params.device, replica.update.groups)  # a rate of 0 would hide any difference


def check_rates(replica: Replica, plan: Plan) -> None:
    """Refuse a scheduler that fails before the end of the run, such as OneCycleLR after its last step."""
    if replica.update.rates is not None and not replica.update.rates.watches:
        replica.update.rates.at(min(plan.steps, MOST_RATES) - 1, plan.steps_per_epoch)


def reasons(causes: Iterable[Cause], config: RunConfig) -> list[str]:
    """Return in words the causes that make this run differ from one worker's, each with a hint where one helps.

    A strategy that is not exact promises nothing. With --exact the slices are the same for any number of workers, and
    so are the model's random numbers in each, unless it has a generator of its own. One worker who cuts a batch to
    bound memory only draws other numbers, which are as good.
    """
    if not sync.make(config.sync).exact:
        return []
    if config.size == 1:
        relevant = [cause for cause in causes if not config.exact and not cause.kind.startswith("random")]
        return [f"{cause.says}; --micro-batch 0 computes whole batches" for cause in relevant]
    relevant = [cause for cause in causes if not config.exact or cause.kind in NEVER_EXACT]
    return [f"{cause.says}{_hint(config, cause)}" for cause in relevant]


def _hint(config: RunConfig, cause: Cause) -> str:
    shared_generator = cause.kind == "random" and config.engine in ("threads", "hybrid")
    never_equal = shared_generator or cause.kind in NEVER_EXACT
    return "" if never_equal else "; --exact fixes the slices, so that every number of workers gives the same"


def causes_of(task: Task, replica: Replica, data: Dataset) -> list[Cause]:
    """Find by trial what makes the gradient of a batch differ from the mean of its slices' gradients."""
    if isinstance(replica, FusedReplica):
        return []  # Linear layers and a known loss
    batch = trial_batch(replica, data)
    if len(batch.x) <= CUT:
        return []
    traits = traits_of(replica.module, batch.x)
    loss_kind = None if isinstance(task.loss, str) else _try_loss(replica.module, batch, task.loss)
    causes = [Cause("random")] if traits.global_random else []
    if loss_kind == "random loss":
        causes.append(Cause(loss_kind))
    if traits.batch_statistics:
        causes.append(Cause("rows", traits.batch_statistics[0]))
    if loss_kind in ("sum", "loss"):
        causes.append(Cause(loss_kind))
    if traits.remembers:
        causes.append(Cause("memory"))
    return causes or _by_gradients(replica, batch, CUT)


def causes_of_batch(replica: Replica, plan: Plan) -> list[Cause]:
    """Find causes by trial of the first global batch itself, where a few rows showed nothing."""
    indices = plan.batches(0)[0]
    rows = min(plan.rows_of(0), MOST_ROWS)
    if rows < 2:
        return []
    x, y = plan.split.batch(slice(0, rows) if isinstance(indices, slice) else indices[:rows], replica.params.dtype)
    device = replica.params.device
    return _by_gradients(replica, Batch(x, y, told_rows=rows).to(device), rows // 2)


def trial_batch(replica: Replica, data: Dataset) -> Batch:
    """Return a few rows from all over the training data, with as many labels as can be: losses may weight them."""
    labels = data.train.y
    spread = torch.linspace(0, len(labels) - 1, min(TRIAL_ROWS, len(labels))).long()
    firsts = [int((labels == label).nonzero()[0, 0]) for label in labels.unique()[:TRIAL_ROWS]]  # type: ignore[no-untyped-call]
    indices = torch.tensor([*firsts, *spread.tolist()][: len(spread)])
    x, y = data.train.batch(indices, replica.params.dtype)
    return Batch(x, y, told_rows=len(indices)).to(replica.params.device)


def apart_when_cut(replica: Replica, batch: Batch, at: int) -> Tensor:
    """Return which gradients (and moves of statistics) of a batch are not those of its two slices together.

    A value is apart when it differs by more than round-off could make of the slices' gradients.
    """
    rows = len(batch.x)
    replica.forward_backward(batch, 1.0)
    whole, together, size = replica.grads.clone(), torch.zeros_like(replica.grads), torch.zeros_like(replica.grads)
    for a, b in ((0, at), (at, rows)):
        part = Batch(batch.x[a:b], batch.y[a:b], batch.first + a, batch.key, b - a)
        replica.forward_backward(part, (b - a) / rows)
        together += replica.grads
        size += replica.grads.abs()
    most = torch.finfo(whole.dtype).eps ** 0.5 * max(float(size.max()), float(whole.abs().max()))
    return torch.gt((whole - together).abs(), most)


def _by_gradients(replica: Replica, batch: Batch, at: int) -> list[Cause]:
    """Compare gradients, where neither the layers nor the loss show why they should differ."""
    try:
        apart = apart_when_cut(replica, batch, at)
    except Exception:  # a slice may be too small for the model or the loss; those of the run may be larger
        return []
    if not apart.any():
        return []
    if not apart[: replica.update.num_weights].any():
        return [Cause("statistics")]
    dropped = [layer for layer in replica.module.modules() if isinstance(layer, KeyedDropout)]
    before = [layer.p for layer in dropped]
    for layer in dropped:
        layer.p = 0.0
    only_dropout = bool(dropped) and not apart_when_cut(replica, batch, at).any()
    for layer, p in zip(dropped, before, strict=True):
        layer.p = p
    return [Cause("positions" if only_dropout else "unknown")]


def _try_loss(module: nn.Module, batch: Batch, loss: Loss) -> Literal["random loss", "sum", "loss"] | None:
    """Tell whether the loss draws random numbers, or is another function of the rows than their mean."""
    with untouched_generator(batch.x.device) as drawn:
        out, y = copy.deepcopy(module).train()(batch.x), batch.y
        if not isinstance(out, Tensor) or len(out) != len(y):
            return None
        drawn()
        try:
            whole = _loss_and_slope(loss, out, y)
            if drawn():
                return "random loss"
            slices = _loss_and_slope(loss, out[:CUT], y[:CUT]), _loss_and_slope(loss, out[CUT:], y[CUT:])
        except Exception:  # as above
            return None
    share = CUT / len(out)
    if _add_up(slices, (share, 1 - share), whole):
        return None
    return "sum" if _add_up(slices, (1, 1), whole) else "loss"


LossAndSlope = tuple[Tensor, Tensor]
"""A loss, and its gradient with respect to the model's output."""


def _loss_and_slope(loss: Loss, out: Tensor, y: Tensor) -> LossAndSlope:
    with torch.enable_grad():
        out = out.detach().clone().requires_grad_()
        value = loss(out, y)
        value.backward()  # type: ignore[no-untyped-call]
    return value.detach(), torch.zeros_like(out) if out.grad is None else out.grad


def _add_up(slices: tuple[LossAndSlope, LossAndSlope], weights: tuple[float, float], whole: LossAndSlope) -> bool:
    """Tell whether two weighted slices give the loss and the slope of the whole batch, up to round-off."""
    (a, slope_a), (b, slope_b) = slices
    both = weights[0] * a + weights[1] * b, torch.cat((weights[0] * slope_a, weights[1] * slope_b))
    most = torch.finfo(slope_a.dtype).eps ** 0.5
    return all(bool((ours - its).abs().max() <= most * its.abs().max()) for ours, its in zip(both, whole, strict=True))
