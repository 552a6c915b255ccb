"""The norm of a whole gradient and the cuts of groups: the same bits for any slices, and torch's own figures."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adafactor

from manyhands.replica.optimizer.groups import ELEMENTS, TENSORS, Grain, Group, NamedGroup, OptimizerRecipe, Weight, cut
from manyhands.replica.optimizer.moments import join
from manyhands.replica.optimizer.norm import sums_of_squares, tree_sum
from manyhands.replica.update import ALIGNED, Update

SHAPES = ((9, 11), (70,), (6, 7), (3, 5, 7))


def _groups(*sizes: int) -> list[Group]:
    """Lay out the tensors of `SHAPES` in groups of some of them."""
    groups, start, shapes = [], 0, iter(SHAPES)
    for size in sizes:
        begin, weights = start, []
        for _ in range(size):
            shape = next(shapes)
            weights.append(Weight(start, start + math.prod(shape), shape, torch.empty(shape).stride()))
            start += math.prod(shape)
        groups.append(Group(begin, start, tuple(weights)))
    return groups


TOTAL = _groups(4)[0].stop
MORE = 5
"""Running statistics behind the weights."""


@given(
    st.integers(1, 9), st.sampled_from([(4,), (2, 2), (1, 2, 1), (1, 1, 1, 1)]), st.sampled_from([ELEMENTS, TENSORS])
)
def test_cuts_cover_everything_and_fall_where_they_may(parts: int, sizes: tuple[int, ...], grain: Grain) -> None:
    groups = _groups(*sizes)
    spans = cut(groups, TOTAL + MORE, grain, parts)
    assert len(spans) == parts
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(TOTAL + MORE))
    whole = {weight.start for group in groups for weight in group.weights}
    aligned = {i for group in groups for i in range(group.start, group.stop, ALIGNED)}
    allowed = (aligned if grain.flat else whole) | set(range(TOTAL, TOTAL + MORE + 1))
    assert {start for start, _ in spans} <= allowed


def test_what_is_needed_together_stays_with_the_first() -> None:
    spans = cut(_groups(4), TOTAL, Grain(flat=False, apart=False), 3)
    assert spans == [(0, TOTAL), (TOTAL, TOTAL), (TOTAL, TOTAL)]


@given(st.lists(st.integers(0, 12), max_size=4), st.integers(1, 800), st.integers(0, 99))
def test_the_sum_of_squares_has_the_same_bits_for_any_cuts(cuts: list[int], length: int, seed: int) -> None:
    gradient = torch.randn(length, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 7)
    places = [0, *sorted(min(length, ALIGNED * i) for i in cuts), length]
    parts = [sums_of_squares(gradient[a:b]) for a, b in pairwise(places)]
    assert torch.equal(torch.cat(parts), sums_of_squares(gradient))
    assert tree_sum(torch.cat(parts)) == pytest.approx(float(gradient.double().square().sum()), rel=1e-14)


def _update(clip: float, gradient: Tensor) -> Tensor:
    params, grads = torch.zeros(TOTAL, dtype=torch.float64), gradient.clone()
    recipe = OptimizerRecipe(lambda p: SGD(p, lr=1.0), clip=clip)
    Update(params, grads, TOTAL, recipe, _groups(4)).apply()
    return -params


@pytest.mark.parametrize("clip", [1e-3, 1.0, 18.0, 19.0, 1e9, math.inf])
@pytest.mark.parametrize("special", [None, 0.0, math.inf, math.nan])
def test_it_clips_as_torch_does(clip: float, special: float | None) -> None:
    gradient = torch.randn(TOTAL, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if special is not None:
        gradient = gradient * 0 if special == 0 else torch.cat([gradient[:-1], torch.tensor([special]).double()])
    expected = torch.zeros(TOTAL, dtype=torch.float64, requires_grad=True)
    expected.grad = gradient.clone()
    clip_grad_norm_([expected], clip)
    torch.testing.assert_close(_update(clip, gradient), expected.grad, rtol=1e-13, atol=0, equal_nan=True)


def test_groups_that_do_not_train_are_not_counted() -> None:
    params, grads = torch.zeros(TOTAL, dtype=torch.float64), torch.ones(TOTAL, dtype=torch.float64)
    first, second = _groups(1, 3)
    recipe = OptimizerRecipe(
        lambda groups: SGD(groups, lr=1.0), groups=(NamedGroup(()), NamedGroup((), from_epoch=1)), clip=0.5
    )
    update = Update(params, grads, TOTAL, recipe, [first, Group(second.start, second.stop, second.weights, {}, 1)])
    assert update.rates is not None
    update.use(update.rates.at(0, 1))
    update.apply()
    assert float(params[: first.stop].norm()) == pytest.approx(0.5, rel=1e-6)
    assert not params[first.stop :].any()
    update.use(update.rates.at(1, 1))
    update.apply()
    assert params[first.stop :].all()


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_state_of_whole_tensors_is_that_of_its_slices(steps: int, parts: int) -> None:
    recipe = OptimizerRecipe(lambda p: Adafactor(p, lr=0.1), grain=TENSORS)

    def make() -> Update:
        return Update(torch.linspace(-1, 1, TOTAL), torch.ones(TOTAL), TOTAL, recipe, _groups(4))

    whole, slices = make(), [make() for _ in range(parts)]
    for part, span in zip(slices, whole.cut(parts), strict=True):
        part.narrow(*span)
    for update in (whole, *slices):
        for _ in range(steps):
            update.apply()
    found, expected = join([part.moments() for part in slices]), whole.moments()
    assert torch.equal(found.elements, expected.elements)
    torch.testing.assert_close(found.scalars, expected.scalars, rtol=0, atol=0, equal_nan=True)
    assert sum(part.num_bytes() for part in slices) == whole.num_bytes()
    again = make()
    again.set_moments(expected)
    assert torch.equal(again.moments().elements, expected.elements)
