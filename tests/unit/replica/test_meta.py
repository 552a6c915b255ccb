"""A replica that is not there lets the clock run as a real one would take its time."""

import pytest
import torch

from manyhands.replica.meta import GradientReady, MetaReplica, Outline, Paces, outline_of

READY = (GradientReady(0.5, 60, 100), GradientReady(0.75, 0, 60))
OUTLINE = Outline(100, 90, torch.float32, ((9, 10),), lambda: READY)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replica(clock: Clock) -> MetaReplica:
    return MetaReplica(OUTLINE, clock.advance, Paces(lambda: 8.0, lambda share: 4.0 * share, s_per_byte=0.01))


def test_a_pass_takes_its_time(replica: MetaReplica, clock: Clock) -> None:
    replica.forward_backward()
    assert clock.now == 8.0


def test_gradients_are_announced_on_the_way(replica: MetaReplica, clock: Clock) -> None:
    heard: list[tuple[float, int, int]] = []
    replica.on_grad_ready(lambda start, stop: heard.append((clock.now, start, stop)))
    for _ in range(2):
        replica.forward_backward()
    assert heard == [(4.0, 60, 100), (6.0, 0, 60), (12.0, 60, 100), (14.0, 0, 60)]
    assert clock.now == 16.0


def test_shares_are_asked_for_only_where_somebody_listens(clock: Clock) -> None:
    def ask() -> tuple[GradientReady, ...]:
        raise AssertionError

    outline = Outline(100, 100, torch.float32, ((10, 10),), ask)
    MetaReplica(outline, clock.advance, Paces(lambda: 8.0, lambda share: 0.0)).forward_backward()
    assert clock.now == 8.0


def test_a_slice_is_updated_in_its_share_of_the_time(replica: MetaReplica, clock: Clock) -> None:
    replica.apply()
    replica.update.narrow(0, 25)
    replica.apply()
    assert clock.now == 4.0 + 1.0
    assert replica.update.steps == 2


def test_what_a_strategy_does_with_the_weights_takes_time(replica: MetaReplica, clock: Clock) -> None:
    replica.grads.mul_(3)
    assert clock.now == pytest.approx(400 * 0.01)


def test_it_has_the_outline_of_a_real_one(clock: Clock) -> None:
    class Real:
        params = torch.zeros(7, dtype=torch.float64)
        update = type("Update", (), {"num_weights": 5})

        def shapes(self) -> list[tuple[int, ...]]:
            return [(5, 1)]

    outline = outline_of(Real())  # type: ignore[arg-type]
    made = MetaReplica(outline, clock.advance, Paces(lambda: 0.0, lambda share: 0.0))
    assert (made.params.shape, made.params.dtype, made.shapes()) == ((7,), torch.float64, [(5, 1)])
    assert outline.num_bytes == 56
    assert made.update.num_weights == 5
