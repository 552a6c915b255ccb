"""Why n workers may not give the answer of one: networks and losses whose gradient cannot be computed slice by slice.

The gradient of a batch is shared out by rows: it is the mean of its slices' gradients, weighted by their rows. A trial
finds networks and losses that break this, whatever their layers are called.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from manyhands import sync
from manyhands.comm import Comm
from manyhands.config import RunConfig
from manyhands.data import AnySplit, Dataset
from manyhands.errors import check
from manyhands.record.texts import count
from manyhands.replica import Batch, Replica
from manyhands.replica.batchnorm import GLOBAL, fixed_norms
from manyhands.replica.criterion import Criterion, Loss
from manyhands.replica.drawing import TRIAL_SEED, keyed, learn_places
from manyhands.replica.elementwise import check_optimizer
from manyhands.replica.flat import FlatReplica
from manyhands.replica.fused import FusedReplica
from manyhands.replica.nested import Nested, call, map_tensors, num_rows, rows_of, set_training, tensors_in
from manyhands.replica.random import Draws
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

Kind = Literal[
    "random", "random loss", "rows", "loss", "weights", "sum", "mean", "positions", "statistics", "memory", "unknown",
]  # fmt: skip

REFUSED: tuple[Kind, ...] = ("sum", "mean")
"""Losses that the task calls what they are not: n workers would scale their gradient by n."""

NEVER_EXACT: tuple[Kind, ...] = ("random loss", "memory")
"""Causes that --exact does not help against."""

_RANDOM = (
    "a random {}: the {} draws numbers that have no place in the batch (np.random, torch.randperm, packed sequences in "
    "an LSTM with dropout, activation checkpoints), so each worker draws others; dropout, torch.rand and torch.randn "
    "draw by position and are equal"
)
SAYS: dict[Kind, str] = {
    "random": _RANDOM.format("layer", "model"),
    "random loss": _RANDOM.format("loss", "loss"),
    "rows": "{} computes each row from the other rows of its slice of the batch, as BatchNorm does with its statistics",
    "loss": "the loss of a batch is not the mean of its rows' losses, as with class weights or pairs of rows, so "
    "the losses of its slices do not add up to it; with class weights or padding, Task(loss_weight=...) says what "
    "rows count",
    "weights": "the loss of a batch is not the mean of its slices' losses by the weights that loss_weight gives them",
    "sum": 'it is a sum over the rows, where the task says their mean; say reduction="sum" if the sum is meant',
    "mean": 'it is the mean over the rows, where the task says reduction="sum"; leave that out',
    "positions": "the model draws random numbers for a tensor whose rows are not in the order of the batch, such as a "
    "flattened (length, batch), or whose rows are as long as the longest sample of a worker's slice, as in attention "
    "over padded samples, so each worker draws others",
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

    A loss that is a sum where the task says a mean is refused where batches are cut, as is the opposite.
    """
    cut = config.size > 1 or config.exact or 0 < config.micro_batch < Plan(config, data.train, 0, 1).batch_size
    if not cut:
        return []
    causes = causes_of(task, replica, data)
    for cause in causes:
        check(cause.kind not in REFUSED, f"the loss of '{config.task}' cannot be shared out: {cause.says}")
    several = "several workers will not give the answer of one"
    pieces = f"batches computed {config.micro_batch} rows at a time will not give the answer of whole ones"
    return [f"{several if config.size > 1 else pieces}: {reason}" for reason in reasons(causes, config)]


LOCAL = "--batchnorm local normalises over each worker's rows alone"


def check_norms(config: RunConfig, replica: Replica) -> None:
    """Refuse a run whose BatchNorm layers cannot normalise over the global batch."""
    if not replica.meets:
        return
    check(
        not config.exact,
        f"--exact cannot hold with BatchNorm over the global batch, whose sums depend on the slices; {LOCAL}",
    )
    several = config.size if config.engine == "threads" else config.threads
    check(
        several == 1 or not replica.params.is_cuda,
        f"threads of one process cannot meet in a backward pass on a GPU, as BatchNorm over the global batch needs; "
        f"use --engine torch, or {LOCAL}",
    )


def check_meets(replica: Replica, workers: Comm) -> None:
    """Refuse workers that cannot meet in the middle of a pass, as BatchNorm over the global batch needs."""
    check(
        not replica.meets or workers.size == 1 or workers.meets_in_passes,
        "virtual workers take turns and cannot meet in the middle of a backward pass, as BatchNorm over the global "
        f"batch needs; {LOCAL}",
    )


def notes_of(task: Task, replica: Replica, plan: Plan) -> list[str]:
    """Return a sentence for each setting that does not do here what its name says."""
    config, rates, notes = plan.config, replica.update.rates, list[str]()
    tests, watches = (plan.steps - 1) // plan.steps_per_evaluation, rates is not None and rates.watches
    before = f"this run, which is tested {count(tests, 'time')} before its end; --eval-steps tests it more often"
    if tests <= config.patience > 0:
        notes.append(f"--patience {config.patience} cannot end {before}")
    if watches and not tests:
        notes.append(f"ReduceLROnPlateau cannot change the rate of {before}")
    if config.monitor != task.monitor and not (config.patience or config.keep_best or watches):
        notes.append(f"--monitor {config.monitor} does nothing without --patience, --keep-best or ReduceLROnPlateau")
    if replica.meets and config.micro_batch:
        notes.append(
            "BatchNorm normalises over the global batch, so its rows are computed at once; "
            "--batchnorm local cuts them into micro-batches"
        )
    if config.precision == "tf32" and not replica.params.is_cuda:
        notes.append("tf32 is a number type of GPUs, and does nothing on a CPU")
    if name := _left_in_evaluation(replica.module):
        notes.append(
            f"layer '{name}' has trainable weights, but was left in evaluation mode and stays so: no dropout, no "
            "new statistics of BatchNorm; if that is not meant, call .train() on it when the model is made"
        )
    return notes


def _left_in_evaluation(module: nn.Module) -> str:
    """Return the first layer in evaluation mode with trainable weights, as Hugging Face's `from_pretrained` returns."""
    layers = module.named_modules()
    return next((n for n, m in layers if not m.training and any(p.requires_grad for p in m.parameters())), "")


def check_own_optimizer(config: RunConfig, task: Task, replica: Replica) -> None:
    """Refuse a task's own optimiser if n workers could not do what one does with it; the named ones are known."""
    if not task.optimizer_name(config):
        recipe = recipe_of(task, config.model_copy(update={"lr": config.lr or 0.01}), replica.module)
        check_optimizer(recipe, replica.params.device, replica.update.groups)  # a rate of 0 would hide any difference


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
    if cause.kind == "rows" and any(f"({kind.__name__})" in cause.layer for kind in GLOBAL):
        return "; --batchnorm global normalises over the rows of all workers, and --exact fixes the slices"
    shared_generator = cause.kind == "random" and config.engine in ("threads", "hybrid")
    never_equal = shared_generator or cause.kind in NEVER_EXACT
    return "" if never_equal else "; --exact fixes the slices, so that every number of workers gives the same"


def causes_of(task: Task, replica: Replica, data: Dataset) -> list[Cause]:
    """Find by trial what makes the gradient of a batch differ from the mean of its slices' gradients."""
    if isinstance(replica, FusedReplica):
        return []  # Linear layers and a known loss
    indices = trial_rows(data)
    if len(indices) <= CUT:
        return []
    trial = _cut(replica, data.train, indices, CUT)
    batch = trial.whole
    traits = traits_of(replica.module, batch.x)
    loss_kind = None if isinstance(task.loss, str) else _try_loss(replica, batch, replica.criterion)
    causes = [Cause("random")] if traits.global_random else []
    rows = [Cause("rows", layer) for layer in traits.batch_statistics]
    if loss_kind == "random loss":
        causes.append(Cause(loss_kind))
    causes += rows
    if loss_kind and loss_kind != "random loss":
        causes.append(Cause(loss_kind))
    if traits.remembers:
        causes.append(Cause("memory"))
    return causes or _by_gradients(replica, trial)


def causes_of_batch(replica: Replica, plan: Plan) -> list[Cause]:
    """Find causes by trial of the first global batch itself, where a few rows showed nothing."""
    indices = plan.batches(0)[0]
    rows = min(plan.rows_of(0), MOST_ROWS)
    if rows < 2:
        return []
    order = torch.arange(rows) if isinstance(indices, slice) else indices[:rows]
    return _by_gradients(replica, _cut(replica, plan.split, order, rows // 2))


def trial_rows(data: Dataset) -> Tensor:
    """Return a few rows from all over the training data, with as many labels as can be: losses may weight them."""
    labels, rows = data.train.labels, data.train.num_rows
    spread = torch.linspace(0, rows - 1, min(TRIAL_ROWS, rows)).long()
    if labels is None:
        return spread
    firsts = [int((labels == label).nonzero()[0, 0]) for label in labels.unique()[:TRIAL_ROWS]]  # type: ignore[no-untyped-call]
    return torch.tensor([*firsts, *spread.tolist()][: len(spread)])


class CutBatch(NamedTuple):
    """A batch of a trial, and its two slices as workers would gather them: a collate function pads each by itself."""

    whole: Batch
    parts: tuple[Batch, Batch]


def _cut(replica: Replica, split: AnySplit, indices: Tensor, at: int) -> CutBatch:
    """Gather a batch and its two slices."""
    rows, device = len(indices), replica.params.device

    def gathered(a: int, b: int) -> Batch:
        x, y = split.batch(indices[a:b], replica.params.dtype)
        return Batch(x, y, first=a, told_rows=b - a, share=(b - a) / rows).to(device)

    return CutBatch(gathered(0, rows), (gathered(0, at), gathered(at, rows)))


def apart_when_cut(replica: Replica, batch: CutBatch) -> Tensor:
    """Return which gradients (and moves of statistics) of a batch are not those of its two slices together.

    A value is apart when it differs by more than round-off could make of the slices' gradients.
    """
    replica.forward_backward(batch.whole, 1.0)
    whole, together, size = replica.grads.clone(), torch.zeros_like(replica.grads), torch.zeros_like(replica.grads)
    for part, weight in zip(batch.parts, _weights(replica.criterion, batch.parts), strict=True):
        replica.forward_backward(part, weight)
        together += replica.grads
        size += replica.grads.abs()
    most = torch.finfo(whole.dtype).eps ** 0.5 * max(float(size.max()), float(whole.abs().max()))
    return torch.gt((whole - together).abs(), most)


def _weights(criterion: Criterion, parts: Sequence[Batch]) -> list[float]:
    """Return what each slice of a batch counts in the loss of the whole."""
    if criterion.reduction == "sum":
        return [1.0] * len(parts)
    amounts = [criterion.amount(part.y, part.rows) for part in parts]
    return [amount / (sum(amounts) or 1.0) for amount in amounts]


@contextmanager
def _in_trial(replica: Replica) -> Iterator[None]:
    """Let passes inside the block depend on how a batch is cut by nothing that a run makes up for."""
    precision, replica.precision = replica.precision, "fp32"  # whose rounding would hide small differences
    try:
        with fixed_norms(replica.module):
            yield
    finally:
        replica.precision = precision


def _by_gradients(replica: Replica, batch: CutBatch) -> list[Cause]:
    """Compare gradients, where neither the layers nor the loss show why they should differ."""
    try:
        with _in_trial(replica):
            apart = apart_when_cut(replica, batch)
    except Exception:  # a slice may be too small for the model or the loss; those of the run may be larger
        return []
    if not apart.any():
        return []
    if not apart[: replica.update.num_weights].any():
        return [Cause("statistics")]
    assert isinstance(replica, FlatReplica)
    replica.draws.still = True
    with _in_trial(replica):
        only_draws = not apart_when_cut(replica, batch).any()
    replica.draws.still = False
    return [Cause("positions" if only_draws else "unknown")]


def _try_loss(
    replica: Replica, batch: Batch, criterion: Criterion
) -> Literal["random loss", "sum", "mean", "weights", "loss"] | None:
    """Tell whether the loss draws random numbers, or its slices add up otherwise than the task says."""
    draws, loss = Draws(), criterion.loss
    with untouched_generator(replica.params.device) as drawn:
        out, y = call(set_training(copy.deepcopy(replica.module)), batch.x), batch.y
        if num_rows(out) != batch.rows or num_rows(y) != batch.rows:
            return None
        parts = slice(CUT), slice(CUT, batch.rows)

        def of_rows(part: slice) -> LossAndSlopes:
            first, stop, _ = part.indices(batch.rows)
            draws.at(TRIAL_SEED, first, stop - first)
            with keyed(draws):
                return _loss_and_slope(loss, rows_of(out, part), rows_of(y, part))

        try:
            draws.learn(learn_places(draws, lambda rows: loss(rows_of(out, rows), rows_of(y, rows)), batch.rows))
            drawn()
            whole = of_rows(slice(batch.rows))
            if drawn():
                return "random loss"
            slices = [of_rows(part) for part in parts]
            pieces = [
                Batch(None, rows_of(y, p), told_rows=n) for p, n in zip(parts, (CUT, batch.rows - CUT), strict=True)
            ]
            said = _weights(criterion, pieces)
        except Exception:  # as above
            return None
    by_rows, by_nothing = [CUT / batch.rows, 1 - CUT / batch.rows], [1.0, 1.0]
    if criterion.weight is not None:
        return None if _add_up(slices, said, whole) else "weights"
    if criterion.reduction == "sum":
        return None if _add_up(slices, said, whole) else "mean" if _add_up(slices, by_rows, whole) else "loss"
    return None if _add_up(slices, by_rows, whole) else "sum" if _add_up(slices, by_nothing, whole) else "loss"


LossAndSlopes = tuple[Tensor, list[Tensor]]
"""A loss, and its gradient with respect to each tensor of the model's output."""


def _loss_and_slope(loss: Loss, out: Nested, y: Nested) -> LossAndSlopes:
    with torch.enable_grad():
        out = map_tensors(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()), out)
        value = loss(out, y)
        value.backward()  # type: ignore[no-untyped-call]
    floats = [t for t in tensors_in(out) if t.requires_grad]
    return value.detach(), [torch.zeros_like(t) if t.grad is None else t.grad for t in floats]


def _add_up(slices: Sequence[LossAndSlopes], weights: Sequence[float], whole: LossAndSlopes) -> bool:
    """Tell whether two weighted slices give the loss and the slopes of the whole batch, up to round-off."""

    def scaled(t: Tensor, weight: float) -> Tensor:
        return t * weight if weight else torch.zeros_like(t)  # rows that do not count may have a loss of NaN

    losses, slopes = zip(*slices, strict=True)
    pairs = [(torch.stack(list(map(scaled, losses, weights))).sum(), whole[0])]
    for expected, *parts in zip(whole[1], *slopes, strict=True):
        terms = list(map(scaled, parts, weights))
        is_cut = terms[0].shape != expected.shape
        pairs.append((torch.cat(terms) if is_cut else torch.stack(terms).sum(0), expected))
    most = torch.finfo(whole[0].dtype).eps ** 0.5
    return all(bool((ours - its).abs().max() <= most * its.abs().max()) for ours, its in pairs)
