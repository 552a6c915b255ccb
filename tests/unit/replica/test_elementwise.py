"""What an optimiser looks at together, found out by trial; which are refused: those that draw, or undo our rate."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adam, Optimizer

from manyhands.errors import UserError
from manyhands.replica.elementwise import check_optimizer
from manyhands.replica.optimizer.groups import ELEMENTS, TENSORS, Grain, Group, OptimizerRecipe, Weight
from manyhands.tasks.optimizers import OPTIMIZERS as BUILT_IN
from manyhands.tasks.optimizers import grain_of

Make = Callable[[list[Tensor], float], Optimizer]
TOGETHER = Grain(flat=False, apart=False)

CLASSES = {
    name: cls
    for name, cls in vars(optim).items()
    if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer
}
REFUSED = {"Muon": "2D", "LBFGS": "closure", "SparseAdam": "dense gradients"}
"""What torch itself has that needs more than gradients of any tensors; and the reason given."""


def _check(make: Make) -> Grain:
    recipe = OptimizerRecipe(lambda params: make(params, 0.01), task="own.py:task")
    return check_optimizer(recipe, torch.device("cpu"))


@pytest.mark.parametrize("name", CLASSES)
def test_each_of_torchs_own_is_allowed_or_refused_for_its_reason(name: str) -> None:
    def make(params: list[Tensor], lr: float) -> Optimizer:
        return CLASSES[name](params, lr=lr)

    if name not in REFUSED:
        assert _check(make) == (grain_of(name.lower()))
        return
    with pytest.raises(UserError, match=rf"own.py:task.*{REFUSED[name]}"):
        _check(make)


def test_one_of_matrices_is_allowed_for_matrices() -> None:
    matrix = Weight(0, 6, (2, 3), (3, 1))
    recipe = OptimizerRecipe(lambda params: optim.Muon(params, lr=0.01), task="own.py:task")
    assert check_optimizer(recipe, torch.device("cpu"), [Group(0, 6, (matrix,))]) == TENSORS


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
def test_element_wise_ones_are_known(name: str) -> None:
    assert _check(ALLOWED[name]) == ELEMENTS


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
    assert _check(Anchored) == ELEMENTS


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
    "own counter": (Counting, "keeps something outside its state"),
    "noise": (Noisy, "draws random numbers"),
    "own rate": (Slowing, "changes its learning rate by itself or by a scheduler"),
    "scheduler": (_scheduled, "use --warmup and --lr-decay"),
    "parameter groups": (_by_dimensions, "has 2 parameter groups where 1 are wanted; make them with Task(param_groups"),
    "none at all": (lambda p, lr: None, "is a NoneType, not a torch.optim.Optimizer"),  # type: ignore[dict-item, return-value]
    "other parameters": (lambda p, lr: SGD([torch.zeros(3)], lr=lr), "does not hold the parameters"),
    "broken": (lambda p, lr: SGD(p, lr=-1), "cannot be made for the model's weights: Invalid learning rate: -1"),
}


COARSE: dict[str, tuple[Make, Grain]] = {
    "clipped by the norm": (ClippedNorm, TOGETHER),
    "clipped when very large": (ClippedLate, TOGETHER),
    "trust ratio": (TrustRatio, TENSORS),
    "decay of matrices": (lambda p, lr: SGD(p, lr=lr, weight_decay=0.1 * (p[0].dim() > 1)), TOGETHER),
}


@pytest.mark.parametrize("name", COARSE)
def test_others_get_whole_tensors_or_all_of_them(name: str) -> None:
    make, grain = COARSE[name]
    assert _check(make) == grain


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_refused_in_one_sentence(name: str) -> None:
    make, says = OTHERS[name]
    with pytest.raises(UserError, match=re.escape(says)) as refused:
        _check(make)
    assert "\n" not in str(refused.value)


def test_values_may_be_clipped_one_by_one() -> None:
    assert _check(ClippedValues) == ELEMENTS


def test_the_trial_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    _check(BUILT_IN["adam"])
    assert torch.equal(before, torch.get_rng_state())
