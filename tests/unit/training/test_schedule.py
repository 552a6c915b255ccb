"""The learning rate rises in the warm-up and falls in the decay, whose shapes are those of the papers."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.config import make_config
from manyhands.data import Split
from manyhands.training.plan import Plan


def _scales(**given: object) -> list[float]:
    """Return the scale of every step; an epoch has ten."""
    rows = torch.arange(100)
    config = make_config({"task": "mlp", "batch_size": 10, **given})
    plan = Plan(config, Split(rows.double().unsqueeze(1), rows), 0, 1)
    return [plan.schedule.scale(step) for step in range(plan.steps)]


SCHEDULES = st.fixed_dictionaries(
    {
        "warmup": st.one_of(st.just(0.0), st.floats(0, 4)),
        "lr_decay": st.sampled_from(["none", "linear", "cosine"]),
        "steps": st.integers(1, 60),
    }
)


@given(SCHEDULES)
def test_the_rate_rises_to_the_full_one_and_falls_but_never_to_nothing(values: dict) -> None:  # type: ignore[type-arg]
    scales = _scales(**values)
    assert all(0 < s <= 1 for s in scales)
    top = scales.index(max(scales))
    assert scales[: top + 1] == sorted(scales[: top + 1])
    assert scales[top:] == sorted(scales[top:], reverse=True)
    if values["warmup"] * 10 <= values["steps"]:
        assert max(scales) == 1, "the full rate is reached"
    if values["lr_decay"] == "none":
        assert all(s == 1 for s in scales[top:]) or max(scales) < 1


@given(st.integers(1, 40), st.integers(1, 60))
def test_the_warm_up_is_a_straight_line(warm_steps: int, steps: int) -> None:
    """Also over a fraction of an epoch, which has ten steps here."""
    scales = _scales(warmup=warm_steps / 10, steps=steps)
    assert scales == pytest.approx([min(1, (i + 1) / warm_steps) for i in range(steps)])


def test_without_warm_up_and_decay_every_step_has_the_full_rate() -> None:
    assert set(_scales(steps=23)) == {1.0}
    assert set(_scales(epochs=3, warmup=0.0)) == {1.0}


def test_the_decays_have_their_shapes() -> None:
    linear, cosine = _scales(steps=40, lr_decay="linear"), _scales(steps=40, lr_decay="cosine")
    assert linear == pytest.approx([1 - i / 40 for i in range(40)])
    assert cosine == pytest.approx([(1 + math.cos(math.pi * i / 40)) / 2 for i in range(40)])
    assert linear[-1] == pytest.approx(1 / 40), "the last step still moves"
    assert linear[20] == pytest.approx(0.5)
    assert cosine[20] == pytest.approx(0.5)
    assert cosine[10] > linear[10]
    assert cosine[30] < linear[30]


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_decay_begins_after_the_warm_up(decay: str) -> None:
    """A warm-up of 0.75 epochs is 7.5 steps, of which the eighth reaches the full rate."""
    scales = _scales(steps=27, warmup=0.75, lr_decay=decay)
    assert scales[:7] == pytest.approx([(i + 1) / 7.5 for i in range(7)])
    assert scales[7] == 1
    assert all(a > b for a, b in pairwise(scales[8:]))
    done = (26 - 7.5) / (27 - 7.5)
    assert scales[-1] == pytest.approx(1 - done if decay == "linear" else (1 + math.cos(math.pi * done)) / 2)


def test_a_warm_up_longer_than_the_run_never_reaches_the_full_rate() -> None:
    assert _scales(steps=4, warmup=1.0, lr_decay="cosine") == pytest.approx([0.1, 0.2, 0.3, 0.4])
