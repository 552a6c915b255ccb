"""An optimiser narrowed to slices makes the steps of the whole one, and its state can be taken out and put back."""

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop, Rprop

from manyhands.errors import UserError
from manyhands.replica.update import ALIGNED, Moments, Update, cut_aligned
from manyhands.tasks.optimizers import OPTIMIZERS as BUILT_IN


class Slowing(Optimizer):
    """A user's own optimiser: it remembers a velocity per weight and two plain numbers."""

    def __init__(self, params: list[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Go along the mean of all gradients, ever slower."""
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(velocity=torch.zeros_like(p), steps=0, slow=1.0)
            state["steps"] += 1
            state["slow"] *= 0.9
            state["velocity"].lerp_(p.grad, 1 / state["steps"])
            p.sub_(state["velocity"], alpha=self.param_groups[0]["lr"] * state["slow"])


OPTIMIZERS: dict[str, Callable[[list[Tensor], float], Optimizer]] = {
    **BUILT_IN,
    "nesterov": lambda p, lr: SGD(p, lr=lr, momentum=0.8, nesterov=True, weight_decay=0.1),
    "plain-adam": lambda p, lr: Adam(p, lr=lr),
    "amsgrad": lambda p, lr: AdamW(p, lr=lr, amsgrad=True),
    "adagrad": lambda p, lr: Adagrad(p, lr=lr, initial_accumulator_value=0.2),
    "adadelta": lambda p, lr: Adadelta(p, lr=lr),
    "rmsprop": lambda p, lr: RMSprop(p, lr=lr, momentum=0.5, centered=True),
    "rprop": lambda p, lr: Rprop(p, lr=lr),
    "nadam": lambda p, lr: NAdam(p, lr=lr),
    "own": Slowing,
}
EVERY_OPTIMIZER = pytest.mark.parametrize("name", OPTIMIZERS)
QUANTITIES = {"sgd": (0, 0), "momentum": (1, 0), "adam": (2, 1), "adamw": (2, 1), "own": (1, 2)}
"""What some of them keep per weight, and once."""

WEIGHTS, STATISTICS = 150, 4
TOTAL = WEIGHTS + STATISTICS


def _update(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Update]:
    params = torch.linspace(-1, 1, TOTAL, dtype=dtype)
    grads = torch.zeros_like(params)
    return params, grads, Update(params, grads, WEIGHTS, lambda p: OPTIMIZERS[name](p, 0.05))


def _gradient(step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(TOTAL, generator=generator, dtype=torch.float64).to(dtype)


def _steps(name: str, cuts: list[int], count: int, narrow_at: int = 0) -> Tensor:
    """Make some steps, each slice by an optimiser of its own that is narrowed after some of them."""
    params = torch.empty(TOTAL)
    for start, stop in pairwise(cuts):
        own, grads, update = _update(name)
        for step in range(count):
            if step == narrow_at:
                update.narrow(start, stop)
            grads.copy_(_gradient(step))
            update.scale = 1 / (1 + step)
            update.apply()
        params[start:stop] = own[start:stop]
    return params


@settings(max_examples=12)
@EVERY_OPTIMIZER
@given(cuts=st.lists(st.integers(0, TOTAL), max_size=6), narrow_at=st.integers(0, 3))
def test_slices_make_the_steps_of_the_whole(name: str, cuts: list[int], narrow_at: int) -> None:
    """Empty slices and slices of statistics alone too; whole steps before the narrowing keep their state."""
    whole = _steps(name, [0, TOTAL], 4)
    found = _steps(name, [0, *sorted(cuts), TOTAL], 4, narrow_at)
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-7)


@EVERY_OPTIMIZER
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_aligned_slices_have_the_bits_of_the_whole(name: str, parts: int) -> None:
    """Torch's fused Adam rounds otherwise at the end of a tensor, where a vector register is not full."""
    cuts = [0, *(stop for _, stop in cut_aligned(TOTAL, parts))]
    assert torch.equal(_steps(name, cuts, 9), _steps(name, [0, TOTAL], 9))


@given(st.integers(0, 5000), st.integers(1, 40))
def test_aligned_slices_cover_all_and_are_nearly_equal(length: int, parts: int) -> None:
    spans = cut_aligned(length, parts)
    assert len(spans) == parts
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(length))
    assert all(start % ALIGNED == 0 or start == length for start, _ in spans)
    assert max(stop - start for start, stop in spans) < length / parts + ALIGNED


@EVERY_OPTIMIZER
def test_narrowing_leaves_the_others_alone(name: str) -> None:
    params, grads, update = _update(name)
    before = params.clone()
    update.narrow(5, 9)
    grads.copy_(_gradient(0))
    update.apply()
    assert torch.equal(params[:5], before[:5])
    assert torch.equal(params[9:], before[9:])
    assert (params[5:9] != before[5:9]).all()


@EVERY_OPTIMIZER
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_that_is_put_back_is_gone_on_from(name: str, dtype: torch.dtype) -> None:
    params, grads, update = _update(name, dtype)
    for step in range(5):
        if step == 3:
            moments, half_way = update.moments(), params.clone()
        grads.copy_(_gradient(step, dtype))
        update.apply()
    again, grads, update = _update(name, dtype)
    again.copy_(half_way)
    update.set_moments(moments)
    for step in (3, 4):
        grads.copy_(_gradient(step, dtype))
        update.apply()
    assert torch.equal(again, params)


@EVERY_OPTIMIZER
def test_the_state_of_the_slices_is_the_state_of_the_whole(name: str) -> None:
    _, grads, whole = _update(name)
    slices = [_update(name) for _ in range(3)]
    for (_, _, update), (start, stop) in zip(slices, cut_aligned(TOTAL, 3), strict=True):
        update.narrow(start, stop)
    for step in range(3):
        for g, u in [(grads, whole), *((g, u) for _, g, u in slices)]:
            g.copy_(_gradient(step))
            u.apply()
    found = [update.moments() for _, _, update in slices]
    assert torch.equal(torch.cat([m.elements for m in found], 1), whole.moments().elements)
    assert all(torch.equal(m.scalars, whole.moments().scalars) for m in found)


@pytest.mark.parametrize("name", QUANTITIES)
def test_it_holds_what_the_optimiser_needs_of_the_slice(name: str) -> None:
    _, _, update = _update(name)
    assert update.moments().elements.shape[1] == WEIGHTS, "statistics need no state"
    update.narrow(3, 8)
    update.apply()
    rows, once = QUANTITIES[name]
    elements, scalars = update.moments()
    assert elements.shape == (rows, 5)
    assert scalars.shape == (once,)
    assert scalars.dtype == torch.float64
    held = [t for s in update.optimizer.state.values() for t in s.values() if isinstance(t, Tensor) and t.dim()]
    assert sum(t.numel() for t in held) == rows * 5


def test_moments_are_a_copy() -> None:
    _, grads, update = _update("momentum")
    grads.fill_(1.0)
    update.apply()
    before = update.moments()
    update.apply()
    assert before.elements.unique().tolist() == [1.0]
    update.set_moments(before)
    before.elements.zero_()
    assert update.moments().elements.unique().tolist() == [1.0]


def test_a_state_from_before_the_first_step_is_a_fresh_start() -> None:
    params, grads, update = _update("adam")
    fresh = update.moments()
    assert fresh.elements.shape == (0, WEIGHTS)
    grads.copy_(_gradient(0))
    before = params.clone()
    update.apply()
    after = params.clone()
    update.set_moments(fresh)
    params.copy_(before)
    update.apply()
    assert torch.equal(params, after)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "own"])
@settings(max_examples=25)
@given(scale=st.floats(0, 4))
def test_the_scale_multiplies_the_rate(name: str, scale: float) -> None:
    params, grads, update = _update(name, torch.float64)
    before, g = params.clone(), _gradient(1, torch.float64)
    grads.copy_(g)
    update.apply()
    moved = params - before
    again, grads, update = _update(name, torch.float64)
    grads.copy_(g)
    update.scale = scale
    update.apply()
    torch.testing.assert_close(again[:WEIGHTS] - before[:WEIGHTS], scale * moved[:WEIGHTS], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(again[WEIGHTS:], before[WEIGHTS:] + g[WEIGHTS:]), "statistics have no rate"


def test_the_scale_is_of_the_first_rate_and_not_of_the_last() -> None:
    params, grads, update = _update("sgd", torch.float64)
    params.zero_()
    grads.fill_(-1.0)
    for scale in (0.5, 0.5, 1.0):
        update.scale = scale
        update.apply()
    torch.testing.assert_close(params[:WEIGHTS], torch.full((WEIGHTS,), 0.1, dtype=torch.float64))


def test_a_state_that_is_no_number_is_refused() -> None:
    class Odd(SGD):
        def step(self) -> None:  # type: ignore[override]
            """Remember a text."""
            self.state[self.param_groups[0]["params"][0]]["mood"] = "good"

    params = torch.zeros(3)
    with pytest.raises(UserError, match="the optimiser's state 'mood' cannot be checkpointed or shared out"):
        Update(params, torch.zeros(3), 3, lambda p: Odd(p, lr=0.1)).narrow(0, 2)


def test_moments_of_another_optimiser_are_not_taken_for_its_own() -> None:
    """Two rows are Adam's, one row is momentum's: neither may silently become the other."""
    _, _, update = _update("momentum")
    update.apply()
    with pytest.raises((UserError, AssertionError)):
        update.set_moments(Moments(torch.zeros(2, WEIGHTS), torch.zeros(1, dtype=torch.float64)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_hooks_around_a_step_are_called(momentum: float) -> None:
    calls = []

    def make(params: list[Tensor]) -> SGD:
        optimizer = SGD(params, lr=0.1, momentum=momentum)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        return optimizer

    Update(torch.ones(8), torch.ones(8), 8, make).apply()
    assert calls == ["before", "after"]


def test_no_optimiser_of_ours_imports_the_compiler() -> None:
    """It takes as long to import as torch itself, on every rank."""
    code = (
        "import sys, torch\n"
        "from manyhands.replica.update import Update\n"
        "from manyhands.tasks.optimizers import OPTIMIZERS\n"
        "for make in OPTIMIZERS.values():\n"
        "    update = Update(torch.ones(8), torch.ones(8), 8, lambda params: make(params, 0.1))\n"
        "    update.apply()\n"
        "    update.narrow(0, 4)\n"
        "    update.apply()\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
