"""Dropout that draws by position: the same mask whoever computes the row."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from manyhands.replica.random import Draws, KeyedDropout, key_random_layers, mix_key, uniform_bits

CPU = torch.device("cpu")
KEYS = st.integers(0, 2**64 - 1)


def _mask(p: float, key: int, first: int, shape: tuple[int, ...], *, drawn: int = 0, channels: bool = False):  # type: ignore[no-untyped-def]
    draws, kind = Draws(), nn.Dropout2d if channels else nn.Dropout
    draws.at(key, first, shape[0])
    for _ in range(drawn):
        draws.next_key()
    return KeyedDropout(p, kind, draws).train()(torch.ones(shape, dtype=torch.float64))


@given(KEYS, st.integers(1, 30), st.data(), st.booleans(), st.sampled_from([0.1, 0.5, 0.9]))
def test_the_mask_does_not_depend_on_how_rows_are_cut(
    key: int, rows: int, data: st.DataObject, channels: bool, p: float
) -> None:
    whole = _mask(p, key, 0, (rows, 3, 4), channels=channels)
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=4))})
    parts = [_mask(p, key, a, (b - a, 3, 4), channels=channels) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)


@given(KEYS, st.integers(1, 10), st.integers(1, 5))
def test_rows_that_became_several_are_cut_alike(key: int, samples: int, tokens: int) -> None:
    """A network may fold a sample's tokens into the rows: (samples, tokens, width) → (samples × tokens, width)."""
    draws = Draws()
    layer = KeyedDropout(0.5, nn.Dropout, draws).train()
    draws.at(key, 0, samples)
    whole = layer(torch.ones(samples * tokens, 6))
    middle = samples // 2
    parts = []
    for a, b in ((0, middle), (middle, samples)):
        if b > a:
            draws.at(key, a, b - a)
            parts.append(layer(torch.ones((b - a) * tokens, 6)))
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.8])
def test_it_keeps_one_minus_p_and_rescales(p: float) -> None:
    mask = _mask(p, 12345, 0, (400, 250))
    n = mask.numel()
    kept = (mask != 0).double().mean().item()
    assert abs(kept - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5, "within five standard deviations"
    assert torch.allclose(mask[mask != 0], torch.tensor(1 / (1 - p), dtype=torch.float64))
    for margin in (0, 1):
        shares = (mask != 0).double().mean(margin)
        assert abs(shares.std().item() - (p * (1 - p) / mask.shape[margin]) ** 0.5) < 0.01, "rows do not move together"


def test_neighbours_are_independent() -> None:
    mask = (_mask(0.5, 99, 0, (300, 300)) != 0).double() - 0.5
    for a, b in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1]), (mask[1:, 1:], mask[:-1, :-1])):
        assert abs((4 * a * b).mean().item()) < 5 / 300


@given(KEYS)
def test_layers_and_steps_draw_differently(key: int) -> None:
    first = _mask(0.5, key, 0, (20, 20))
    others = {
        "the next layer": _mask(0.5, key, 0, (20, 20), drawn=1),
        "the next key": _mask(0.5, (key + 1) % 2**64, 0, (20, 20)),
        "a key that differs in its upper half": _mask(0.5, key ^ (1 << 40), 0, (20, 20)),
        "the following rows": _mask(0.5, key, 20, (20, 20)),
    }
    for name, other in others.items():
        assert 0.3 < (first == other).double().mean().item() < 0.7, name


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_evaluation_is_the_identity(p: float) -> None:
    x = torch.randn(4, 5)
    assert KeyedDropout(p, nn.Dropout, Draws()).eval()(x) is x


def test_the_ends_of_the_range() -> None:
    assert _mask(0.0, 1, 0, (3, 4)).eq(1).all()
    assert _mask(1.0, 1, 0, (3, 4)).eq(0).all()
    assert _mask(0.5, 1, 0, (0, 4)).shape == (0, 4)


def test_whole_channels_are_dropped_together() -> None:
    mask = _mask(0.5, 7, 0, (50, 8, 3, 3), channels=True)
    planes = mask.flatten(2)
    assert torch.equal(planes.amin(2), planes.amax(2))
    assert 0 < (planes[..., 0] == 0).double().mean().item() < 1


@pytest.mark.parametrize(("kind", "shape"), [(nn.Dropout1d, (40, 5)), (nn.Dropout3d, (40, 2, 3, 4))])
def test_one_sample_without_a_batch_drops_its_channels_like_torch(
    kind: type[nn.Dropout1d], shape: tuple[int, ...]
) -> None:
    draws = Draws()
    draws.at(7, 0, 40)
    for layer in (kind(0.5), KeyedDropout(0.5, kind, draws)):
        mask = layer(torch.ones(shape)).flatten(1)
        assert torch.equal(mask.amin(1), mask.amax(1))
        assert 0 < (mask[:, 0] == 0).double().mean().item() < 1


def test_gradients_pass_through_the_same_mask() -> None:
    draws = Draws()
    draws.at(5, 0, 6)
    x = torch.ones(6, 7, requires_grad=True)
    out = KeyedDropout(0.4, nn.Dropout, draws).train()(x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_keys_depend_on_every_part_and_their_order(parts: list[int]) -> None:
    key = mix_key(*parts)
    assert 0 <= key < 2**64
    for i in range(len(parts)):
        assert mix_key(*parts[:i], parts[i] ^ 1, *parts[i + 1 :]) != key
    assert mix_key(*parts, 0) != key


@given(KEYS, st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6))
def test_bits_are_a_function_of_their_place(key: int, first: int, rows: int, width: int) -> None:
    bits = uniform_bits(key, first, rows, width, CPU)
    assert (bits.dtype, bits.shape) == (torch.int32, (rows, width))
    assert torch.equal(bits[-1:], uniform_bits(key, first + rows - 1, 1, width, CPU))


def _random_layers(module: nn.Module) -> list[nn.Module]:
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
    return [m for m in module.modules() if isinstance(m, kinds)]


def test_every_dropout_below_a_network_is_replaced() -> None:
    net = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.2), nn.Sequential(nn.Dropout2d(0.3), nn.ModuleList([nn.Dropout1d(0.4)]))
    )
    net[1].eval()
    key_random_layers(net, Draws())
    keyed = [m for m in net.modules() if isinstance(m, KeyedDropout)]
    assert not _random_layers(net)
    assert sorted((m.p, m.kind.__name__) for m in keyed) == [(0.2, "Dropout"), (0.3, "Dropout2d"), (0.4, "Dropout1d")]
    assert sorted(m.site for m in keyed) == [0, 1, 2]
    assert [m.training for m in keyed if m.p == 0.2] == [False]


def test_a_dropout_that_stands_in_two_places_is_replaced_in_both() -> None:
    shared = nn.Dropout(0.5)
    net = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared)
    key_random_layers(net, Draws())
    assert not _random_layers(net)


def test_a_dropout_used_twice_in_one_pass_draws_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.drop(x), self.drop(x)

    draws, net = Draws(), Twice()
    key_random_layers(net, draws)
    for first, rows in ((0, 20), (10, 10)):
        draws.at(3, first, rows)
        a, b = net(torch.ones(rows, 30))
        assert not torch.equal(a, b)
    draws.at(3, 0, 20)
    whole = net(torch.ones(20, 30))
    assert torch.equal(whole[0][10:], a)
    assert torch.equal(whole[1][10:], b), "the second draw too is one of position"
