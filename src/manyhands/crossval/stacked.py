"""Train the folds of a worker as one batched model: equal to training them in turn, up to round-off."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from manyhands.comm.self_ import SelfComm
from manyhands.config import RunConfig
from manyhands.crossval.units import Unit
from manyhands.data import AnySplit, Dataset, Split
from manyhands.errors import Diverged
from manyhands.record.run import Pulse
from manyhands.replica.random import mix_key
from manyhands.replica.stacked import FusedStack, Stack
from manyhands.tasks import Task
from manyhands.tasks.setup import make_stack
from manyhands.training.evaluate import evaluate, scoring_of
from manyhands.training.journal import pulse_of
from manyhands.training.meter import TimeSplit
from manyhands.training.plan import Plan
from manyhands.training.watch import Watch

INTERVAL_S = 0.25
"""Seconds between two reports of progress."""


class TrainedFold(NamedTuple):
    """One trained model of the stack, and its test score."""

    module: nn.Module
    loss: float
    accuracy: float | None
    metrics: dict[str, float]
    steps: int


def plans_of(units: Sequence[Unit], config: RunConfig, train: AnySplit) -> list[Plan]:
    """Return the training plan of each model, as for one worker."""
    return [Plan(config, train.rows(unit.train), 0, 1) for unit in units]


def train_stacked(
    units: Sequence[Unit],
    task: Task,
    config: RunConfig,
    data: Dataset,
    device: torch.device,
    watch: Watch,
    *,
    longest: int,
) -> list[TrainedFold] | None:
    """Train models that have the same number of steps per epoch; None where the network cannot be batched.

    All are padded to the `longest` with that number of steps, on this or another worker, because the number of rows in
    a matrix product affects its last bits.
    """
    plans = plans_of(units, config, data.train)
    assert len({plan.steps_per_epoch for plan in plans}) == 1, "stacked models have the same steps"
    if config.ema:
        return None  # a stack keeps no average of its models' weights
    models = make_stack(task, config, data, device, (unit.of(data) for unit in units))
    if models is None:
        return None
    width = longest if config.batch_size == "full" else min(config.batch_size, longest)
    if 0 < config.micro_batch < width and not isinstance(models, FusedStack):
        return None  # random layers draw by a row's position in the whole batch
    assert isinstance(data.train, Split)
    plan, split = plans[0], replace(data.train, copies=1)
    begun = shown = time.perf_counter()
    losses: list[Tensor] = []
    for step in range(plan.steps):
        watch.at(step)
        epoch, batch = divmod(step, plan.steps_per_epoch)
        if batch == 0:
            rows, weights = _epoch(plans, units, epoch, longest, models.params)
        columns, size = slice(batch * width, (batch + 1) * width), config.micro_batch or width
        pieces = zip(*(torch.split(part[:, columns], size, dim=1) for part in (rows, weights)), strict=True)
        losses.append(_forward_backward(models, split, pieces, mix_key(config.seed, step)))
        models.update.scale = plan.schedule.scale(step)
        models.apply()
        now = time.perf_counter()
        if now - shown > INTERVAL_S or plan.ends_epoch(step):
            shown = now
            mean = _mean_loss(losses, units, step)
            watch.pulse(_pulse(plan, step + 1, mean, now - begun, len(units)))
            if watch.stop_asked():
                break
    trained = []
    for module, unit in zip(models.modules, units, strict=True):
        figures = evaluate(module, unit.of(data).test, scoring_of(task, config, data, module), SelfComm())
        _check_finite(figures.loss, unit, step + 1)
        trained.append(TrainedFold(module, *figures, step + 1))
    return trained


def _epoch(
    plans: Sequence[Plan], units: Sequence[Unit], epoch: int, longest: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (models, longest) rows of the data in the epoch's order, and each row's weight in the mean of its batch.

    The weight of padding, at the end of shorter rows, is 0.
    """
    rows = torch.zeros(len(plans), longest, dtype=torch.int64)
    weights = torch.zeros(len(plans), longest, dtype=like.dtype)
    for i, (plan, unit) in enumerate(zip(plans, units, strict=True)):
        start = 0
        for batch in plan.batches(epoch):
            order = torch.arange(batch.start, batch.stop) if isinstance(batch, slice) else batch
            stop = start + len(order)
            rows[i, start:stop] = unit.train[order % len(unit.train)]
            weights[i, start:stop] = 1 / len(order)
            start = stop
    return rows.to(like.device), weights.to(like.device)


def _forward_backward(models: Stack, split: AnySplit, pieces: Iterable[tuple[Tensor, ...]], key: int) -> Tensor:
    """Set `models.grads` to the sum over the pieces of a batch; return each model's loss."""
    total, losses = None, None
    for rows, weights in pieces:
        if losses is not None:
            total = models.grads.clone() if total is None else total.add_(models.grads)
        x, y = split.batch(rows.reshape(-1), models.params.dtype)
        loss = models.forward_backward(x.view(*rows.shape, *x.shape[1:]), y.view(rows.shape), weights, key)
        losses = loss if losses is None else losses + loss
    if total is not None:
        models.grads.add_(total)
    assert losses is not None, "a batch has at least one piece"
    return losses


def _mean_loss(losses: list[Tensor], units: Sequence[Unit], step: int) -> float:
    """Return the mean of the losses and clear their list; raise an error if a model's loss is not finite."""
    by_model = torch.stack(losses).double().cpu()
    losses.clear()
    for unit, loss in zip(units, by_model.sum(0).tolist(), strict=True):
        _check_finite(loss, unit, step + 1)
    return float(by_model.mean())


def _check_finite(loss: float, unit: Unit, step: int) -> None:
    if not math.isfinite(loss):
        raise Diverged(f"the loss of fold {unit.fold} became {loss} by step {step}; try a smaller --lr")


def _pulse(plan: Plan, step: int, loss: float, seconds: float, models: int) -> Pulse:
    """Return the progress of all models together, as if they had been trained in turn."""
    pulse = pulse_of(plan, step, loss, None, TimeSplit(train_s=seconds))
    total = {"step": models * step, "steps": models * plan.steps, "samples_per_s": models * pulse.samples_per_s}
    return pulse.model_copy(update={**total, "eta_s": 0.0})
