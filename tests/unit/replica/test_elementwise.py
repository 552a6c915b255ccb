"""Which optimisers are refused, found out by trial: those that look at whole tensors, and those that undo our rate."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adam, Optimizer

from manyhands.errors import UserError
from manyhands.replica.elementwise import check_optimizer
from manyhands.tasks.base import OPTIMIZERS as BUILT_IN

Make = Callable[[list[Tensor], float], Optimizer]

CLASSES = {
    name: cls
    for name, cls in vars(optim).items()
    if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer
}
REFUSED = {"Adafactor": "whole tensors", "Muon": "2D", "LBFGS": "closure", "SparseAdam": "dense gradients"}
"""What torch itself has that does not treat every weight alike, or needs more than gradients; and the reason given."""


def _check(make: Make) -> None:
    check_optimizer(lambda params: make(params, 0.01), torch.device("cpu"), "own.py:task")


@pytest.mark.parametrize("name", CLASSES)
def test_each_of_torchs_own_is_allowed_or_refused_for_its_reason(name: str) -> None:
    def make(params: list[Tensor], lr: float) -> Optimizer:
        return CLASSES[name](params, lr=lr)

    if name not in REFUSED:
        _check(make)
        return
    with pytest.raises(UserError, match=rf"own.py:task.*{REFUSED[name]}.*; use one that treats every weight alike"):
        _check(make)


ALLOWED: dict[str, Make] = {
    **BUILT_IN,
    "nesterov": lambda p, lr: SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=0.1),
    "amsgrad": lambda p, lr: optim.AdamW(p, lr=lr, amsgrad=True),
    "foreach": lambda p, lr: Adam(p, lr=lr, foreach=True),
    "started": lambda p, lr: optim.Adagrad(p, lr=lr, initial_accumulator_value=0.2),
    "centered": lambda p, lr: optim.RMSprop(p, lr=lr, momentum=0.5, centered=True),
    "one group": lambda p, lr: SGD([{"params": p, "weight_decay": 0.1}], lr=lr),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_element_wise_ones_pass(name: str) -> None:
    _check(ALLOWED[name])


class ClippedValues(Adam):
    """Clips every gradient by itself."""

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        clip_grad_value_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


class Anchored(SGD):
    """Pulls the weights towards those that it was made with, as a resumed run makes it again."""

    def __init__(self, params, lr):  # type: ignore[no-untyped-def]
        super().__init__(params, lr=lr)
        self.anchors = [p.detach().clone() for p in self.param_groups[0]["params"]]

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        for p, anchor in zip(self.param_groups[0]["params"], self.anchors, strict=True):
            p.grad.add_(p.detach() - anchor, alpha=0.1)
        return super().step(closure)


def test_the_first_weights_may_be_kept_since_a_resumed_run_begins_with_them() -> None:
    _check(Anchored)


class ClippedNorm(SGD):
    """Clips by the common norm."""

    most = 1.0

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        clip_grad_norm_(self.param_groups[0]["params"], self.most)
        return super().step(closure)


class ClippedLate(ClippedNorm):
    """Clips what is very large only."""

    most = 1e5


class TrustRatio(Optimizer):
    """Scales each tensor's step by its norm (LARS, LAMB)."""

    def __init__(self, params: list[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] * float(p.norm() / p.grad.norm()))


class Counting(Optimizer):
    """Counts its steps where no checkpoint finds them."""

    def __init__(self, params: list[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.count += 1
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] / self.count)


class Noisy(SGD):
    """Adds noise (Langevin dynamics)."""

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[no-untyped-def]
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p), alpha=0.01)


class Slowing(SGD):
    """Changes its own rate."""

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        super().step(closure)
        self.param_groups[0]["lr"] *= 0.9


def _scheduled(params: list[Tensor], lr: float) -> Optimizer:
    optimizer = SGD(params, lr=lr)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=30)  # later than any trial looks
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


def _by_dimensions(params: list[Tensor], lr: float) -> Optimizer:
    wide, narrow = [p for p in params if p.dim() > 1], [p for p in params if p.dim() < 2]
    return SGD([{"params": wide, "weight_decay": 0.1}, {"params": narrow}], lr=lr)


OTHERS: dict[str, tuple[Make, str]] = {
    "clipped by the norm": (
        ClippedNorm,
        "the optimiser ClippedNorm of 'own.py:task' gives slices of the weights other",
    ),
    "clipped when very large": (ClippedLate, "as clipping by their common norm does"),
    "trust ratio": (TrustRatio, "looks at whole tensors"),
    "own counter": (Counting, "keeps something outside its state"),
    "noise": (Noisy, "draws random numbers"),
    "own rate": (Slowing, "changes its learning rate by itself or by a scheduler"),
    "scheduler": (_scheduled, "use --warmup and --lr-decay"),
    "parameter groups": (_by_dimensions, "has 2 parameter groups, and one is allowed"),
    "decay of matrices": (lambda p, lr: SGD(p, lr=lr, weight_decay=0.1 * (p[0].dim() > 1)), "looks at whole tensors"),
    "none at all": (lambda p, lr: None, "is a NoneType, not a torch.optim.Optimizer"),  # type: ignore[dict-item, return-value]
    "other parameters": (lambda p, lr: SGD([torch.zeros(3)], lr=lr), "does not hold the parameters"),
    "broken": (lambda p, lr: SGD(p, lr=-1), "cannot be made for one flat vector: Invalid learning rate: -1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_refused_in_one_sentence(name: str) -> None:
    make, says = OTHERS[name]
    with pytest.raises(UserError, match=re.escape(says)) as refused:
        _check(make)
    assert "\n" not in str(refused.value)


def test_values_may_be_clipped_one_by_one() -> None:
    _check(ClippedValues)


def test_the_trial_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    _check(BUILT_IN["adam"])
    assert torch.equal(before, torch.get_rng_state())
