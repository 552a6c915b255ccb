"""Tasks whose optimisers have groups, schedulers, clipping or whole tensors; and the same training in plain torch."""

import math
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR, OneCycleLR, ReduceLROnPlateau, StepLR

from manyhands import Dataset, Task
from manyhands.config import RunConfig
from manyhands.tasks.seeding import seeded
from manyhands.tasks.setup import criterion_of, load_data
from manyhands.training.plan import Plan

FLAT = "synthetic:samples=97,features=12,classes=3,test=23,seed=5"
STEPS = 23
"""Two epochs of 10 steps, and some."""


def stack(data: Dataset) -> nn.Module:
    """Build what the fused replica can hold."""
    return nn.Sequential(
        nn.Linear(math.prod(data.shape), 10), nn.ReLU(), nn.Linear(10, 7), nn.Sigmoid(), nn.Linear(7, 3)
    )


def matrices(data: Dataset) -> nn.Module:
    """Build a network that has matrices alone."""
    width = math.prod(data.shape)
    return nn.Sequential(nn.Linear(width, 10, bias=False), nn.Tanh(), nn.Linear(10, 3, bias=False))


def by_dimensions(model: nn.Module) -> list[dict[str, Any]]:
    """Decay matrices alone, and let the biases go slower."""
    params = list(model.parameters())
    return [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in params if p.dim() < 2], "lr": 0.02},
    ]


def later(model: nn.Module) -> list[dict[str, Any]]:
    """Train the last layer alone at first."""
    first, last = list(model.parameters())[:-2], list(model.parameters())[-2:]
    return [{"params": first, "from_epoch": 1, "weight_decay": 0.01}, {"params": last}]


def some_momentum(model: nn.Module) -> list[dict[str, Any]]:
    """Give some weights momentum and others none."""
    params = list(model.parameters())
    return [{"params": params[:1], "momentum": 0.9}, {"params": params[1:3]}, {"params": params[3:], "momentum": 0.5}]


class TrustRatio(Optimizer):
    """Scales each tensor's step by its norm, and remembers that norm (LARS)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Step each tensor."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(velocity=torch.zeros_like(p), seen=0.0, recent=torch.zeros(3, dtype=p.dtype))
                ratio = float(p.norm() / (p.grad.norm() + 1e-9))
                state["seen"] += ratio
                state["recent"] = torch.cat([state["recent"][1:], p.norm().reshape(1)])
                state["velocity"].mul_(group["momentum"]).add_(p.grad, alpha=ratio)
                p.sub_(state["velocity"], alpha=group["lr"] * 0.1 * (1 + float(state["recent"].mean())))


class MatricesApart(optim.AdamW):
    """Makes nearly orthogonal steps of matrices, in full precision, and those of AdamW of all other tensors."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step the matrices by themselves, and leave the others to AdamW."""
        kept = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() == 2 and p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state["momentum_buffer"] = torch.zeros_like(p)
                    state["momentum_buffer"].mul_(0.9).add_(p.grad)
                    x = state["momentum_buffer"] / (state["momentum_buffer"].norm() + 1e-9)
                    for _ in range(3):
                        x = 1.5 * x - 0.5 * x @ x.T @ x
                    p.sub_(x, alpha=group["lr"])
                    kept.append((p, p.grad))
                    p.grad = None
        super().step(closure)
        for p, grad in kept:
            p.grad = grad


class Clipped(SGD):
    """Clips by the common norm."""

    def step(self, closure: Any = None) -> Any:
        """Clip all gradients together, then step."""
        clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.3)
        return super().step(closure)


def _sgd(params: Any, lr: float) -> Optimizer:
    return SGD(params, lr=lr, momentum=0.9)


USUAL: dict[str, Any] = {"model": stack, "data": FLAT, "lr": 0.05, "batch_size": 10}

groups = Task(**USUAL, optimizer="momentum", param_groups=by_dimensions)
adamw = Task(**USUAL, optimizer="adamw", param_groups=by_dimensions)
mixed = Task(**USUAL, param_groups=some_momentum)
own = Task(**USUAL, optimizer=_sgd, param_groups=by_dimensions)
adafactor = Task(**USUAL, optimizer="adafactor")
adafactor_groups = Task(**USUAL, optimizer="adafactor", param_groups=by_dimensions)
muon = Task(**{**USUAL, "model": matrices}, optimizer="muon")
trust = Task(**USUAL, optimizer=TrustRatio)
apart = Task(**USUAL, optimizer=MatricesApart, param_groups=by_dimensions)
together = Task(**USUAL, optimizer=Clipped)
clip = Task(**USUAL, optimizer="momentum", clip_norm=0.3)
clip_groups = Task(**USUAL, optimizer="adam", param_groups=by_dimensions, clip_norm=0.2)
clip_tensors = Task(**USUAL, optimizer="adafactor", clip_norm=0.2)
clip_large = Task(**USUAL, clip_norm=1e6)
step_lr = Task(**USUAL, scheduler=lambda o: StepLR(o, 4, 0.5))
cosine = Task(**USUAL, optimizer="adam", scheduler=lambda o: CosineAnnealingLR(o, 3), scheduler_every="epoch")
one_cycle = Task(
    **USUAL, optimizer="momentum", param_groups=by_dimensions, scheduler=lambda o: OneCycleLR(o, [0.1, 0.2], STEPS)
)
one_cycle_adam = Task(**USUAL, optimizer="adam", scheduler=lambda o: OneCycleLR(o, 0.02, STEPS))
cyclic = Task(**USUAL, scheduler=lambda o: CyclicLR(o, 0.01, 0.1, 5))
plateau = Task(**USUAL, optimizer="momentum", scheduler=lambda o: ReduceLROnPlateau(o, threshold=10.0, patience=0))
unfreeze = Task(**USUAL, optimizer="adamw", param_groups=later, clip_norm=0.5)

TASKS = {name: value for name, value in vars().items() if isinstance(value, Task)}


def plain_weights(name: str, config: RunConfig) -> Tensor:
    """Train in plain torch, with nothing of ours but the order of samples; return the weights."""
    task = TASKS[name]
    data, dtype = load_data(task, config), getattr(torch, config.dtype)
    with seeded(config.seed):
        module = task.make_model(data).to(dtype).train()
    groups = task.param_groups(module) if task.param_groups else None
    first_epochs = [group.pop("from_epoch", 0) for group in groups or [{}]]
    optimizer = task.make_optimizer(groups or list(module.parameters()), config)
    scheduler = task.scheduler(optimizer) if task.scheduler else None
    plan, loss_of = Plan(config, data.train, 0, 1), criterion_of(task, module).loss
    for step in range(plan.steps):
        epoch, place = divmod(step, plan.steps_per_epoch)
        x, y = data.train.batch(plan.batches(epoch)[place], dtype)
        optimizer.zero_grad()
        loss_of(module(x), y).backward()
        for group, first in zip(optimizer.param_groups, first_epochs, strict=True):
            for p in group["params"] if epoch < first else ():
                p.grad = None
        if config.clip:
            clip_grad_norm_(module.parameters(), config.clip)
        optimizer.step()
        ends = place + 1 == plan.steps_per_epoch
        if isinstance(scheduler, ReduceLROnPlateau):
            if ends:
                scheduler.step(_test_loss(module, data, loss_of, dtype))
        elif scheduler is not None and (ends or task.scheduler_every == "step"):
            scheduler.step()
    state = module.state_dict()
    return torch.cat([state[key].flatten() for key in sorted(state)])


def _test_loss(module: nn.Module, data: Dataset, loss_of: Any, dtype: torch.dtype) -> float:
    x, y = data.test.batch(slice(0, len(data.test)), dtype)
    with torch.no_grad():
        return float(loss_of(module(x), y))
