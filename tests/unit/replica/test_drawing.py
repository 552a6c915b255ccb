"""Random numbers that torch's functions draw in a network: by position, so that n workers draw what one draws."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drawing_networks import NETWORKS, WIDTH, Net, recurrent
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from manyhands.config import Precision
from manyhands.replica import Batch, build
from manyhands.replica.drawing import KeyedDraws, learn_places
from manyhands.replica.flat import FlatReplica
from manyhands.replica.random import COMMON, Draws, normal, open_uniform, uniform, uniform_bits
from manyhands.replica.stacked import stack
from manyhands.replica.traits import traits_of

CPU = torch.device("cpu")
ROWS = 11
CUTS = ([0, 3, ROWS], [0, 1, 2, 6, 6, ROWS], [*range(ROWS + 1)], [0, 0, ROWS, ROWS])
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _sgd(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def _replica(network: nn.Module, precision: Precision = "fp32") -> FlatReplica:
    dtype = torch.float64 if precision == "fp32" else torch.float32
    x, y = _data(dtype)
    replica = build(network, x[:2], F.cross_entropy, _sgd, device=CPU, dtype=dtype, precision=precision, targets=y[:2])
    assert isinstance(replica, FlatReplica)
    return replica


def _data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)
    return x.to(dtype), torch.randint(3, (ROWS,), generator=generator)


def _gradient(replica: FlatReplica, first: int, stop: int, key: int = 77) -> Tensor:
    x, y = _data(replica.params.dtype)
    replica.forward_backward(Batch(x[first:stop], y[first:stop], first, key), (stop - first) / ROWS)
    return replica.grads.clone()


@pytest.mark.parametrize("name", NETWORKS)
def test_slices_add_up_to_the_batch(name: str) -> None:
    torch.manual_seed(0)
    replica = _replica(NETWORKS[name]())
    whole = _gradient(replica, 0, ROWS)
    for cuts in CUTS:
        together = torch.stack([_gradient(replica, a, b) for a, b in pairwise(cuts)]).sum(0)
        assert (together - whole).abs().max() < 1e-12


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_leaves_the_generators_as_they_were_if_all_draws_have_a_place(name: str) -> None:
    traits = traits_of(NETWORKS[name]().double(), _data()[0])
    assert not traits.global_random
    assert None not in traits.places.values()


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_draw_differently(name: str) -> None:
    replica = _replica(NETWORKS[name]())
    gradients = [_gradient(replica, 0, ROWS, key) for key in range(6)]
    assert any(not torch.equal(gradients[0], other) for other in gradients[1:])


@pytest.mark.parametrize("name", ["lstm", "gru", "encoder", "attention with weights", "dropout", "noise of a VAE"])
def test_slices_add_up_in_short_floats(name: str) -> None:
    torch.manual_seed(0)
    replica = _replica(NETWORKS[name](), "bf16")
    whole = _gradient(replica, 0, ROWS)
    together = _gradient(replica, 0, 4) + _gradient(replica, 4, ROWS)
    assert (together - whole).norm() < 0.02 * whole.norm()


def test_places_are_where_the_batch_is() -> None:
    def places(network: nn.Module) -> set[int | None]:
        return set(traits_of(network.double(), _data()[0]).places.values())

    assert places(NETWORKS["dropout, sequence first"]()) == {1}
    assert places(NETWORKS["encoder"]()) == {0}
    assert places(NETWORKS["dropout of weights"]()) == {COMMON}
    assert places(NETWORKS["encoder, sequence first"]()) == {0, 1}, "heads are rows of the attention's weights"
    assert places(Net(lambda net, x: x)) == set()


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_a_length_that_equals_the_rows_is_not_taken_for_them(rows: int) -> None:
    traits = traits_of(NETWORKS["dropout, sequence first"]().double(), _data()[0][:rows])
    assert list(traits.places.values()) == [1], "three tokens come first"


def test_a_line_that_draws_in_two_orders_keeps_the_generator() -> None:
    def both(net: Net, x: Tensor) -> Tensor:
        kept = [F.dropout(t) for t in (x, x.t())]
        return kept[0] + kept[1].t()

    traits = traits_of(Net(both).double(), _data()[0])
    assert (list(traits.places.values()), traits.global_random) == ([None], True)


def test_a_number_of_rows_that_a_network_insists_on_keeps_the_generator() -> None:
    def only_two(net: Net, x: Tensor) -> Tensor:
        assert len(x) == 2
        return F.dropout(x)

    assert traits_of(Net(only_two).double(), _data()[0][:2]).global_random


def test_a_draw_that_no_trial_saw_is_warned_of() -> None:
    network = Net(lambda net, x: F.dropout(x, 0.3) if net.hidden == 0 else x + torch.randn_like(x))
    network.hidden = 0
    replica = _replica(network)
    network.hidden = 1
    with pytest.warns(UserWarning, match="draws random numbers in a way that its trial pass did not"):
        _gradient(replica, 0, ROWS)


def test_generators_of_a_models_own_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    with KeyedDraws(Draws()):
        drawn = torch.rand(4, generator=generator), torch.empty(4).normal_(generator=generator)
    again = generator.manual_seed(3)
    assert torch.equal(drawn[0], torch.rand(4, generator=again))
    assert torch.equal(drawn[1], torch.empty(4).normal_(generator=again))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # a trial pass has no gradients
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("functional", [True, False])
def test_a_checkpoint_drops_the_same_again_in_its_backward(reentrant: bool, functional: bool) -> None:
    masks: list[Tensor] = []
    layer = nn.Linear(WIDTH, WIDTH) if functional else nn.Dropout(0.5)

    def run(net: Net, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            ones = torch.ones_like(x)
            masks.append(F.dropout(ones) if functional else net.layer(ones))
            return x.exp() * masks[-1]

        return checkpoint(inner, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    replica = _replica(Net(run, layer))
    masks.clear()
    _gradient(replica, 0, ROWS)
    assert len(masks) == 2
    assert torch.equal(*masks)


def test_a_loss_draws_by_position_too() -> None:
    x, y = _data()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out + torch.randn_like(out), y)

    replica = build(Net(lambda net, x: x), x[:2], loss, _sgd, device=CPU, dtype=torch.float64, targets=y[:2])
    assert isinstance(replica, FlatReplica)
    whole = _gradient(replica, 0, ROWS)
    assert (_gradient(replica, 0, 4) + _gradient(replica, 4, ROWS) - whole).abs().max() < 1e-12


def test_evaluation_draws_what_torch_draws() -> None:
    replica = _replica(NETWORKS["encoder"]())
    module, x = replica.module.eval(), _data()[0]
    with torch.no_grad(), KeyedDraws(replica.draws):
        inside = module(x)
    with torch.no_grad():
        assert torch.allclose(inside, module(x), rtol=0, atol=1e-12)


ALMOST_0 = 1e-14
"""A probability of dropout under which nothing is dropped, but the layers are written out."""


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}, {"proj_size": 2}])
def test_layers_one_by_one_are_torchs_layers(
    kind: type[nn.RNNBase], batch_first: bool, options: dict[str, bool | int]
) -> None:
    if "proj_size" in options and kind is not nn.LSTM:
        return
    network = recurrent(kind, batch_first, **options).double()
    layer, x = network.layer, _data()[0].view(-1, 3, 4)
    layer.dropout = 0.0
    expected = layer(x)
    layer.dropout = ALMOST_0
    written_out = _drawn(lambda rows: layer(x[rows] if batch_first else x[:, rows]), len(x) if batch_first else 3)
    for ours, theirs in zip(_tensors(written_out), _tensors(expected), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def _drawn(run, rows: int):  # type: ignore[no-untyped-def]
    """Return what a function returns that draws by position, and check that it did."""
    draws = Draws()
    with torch.no_grad():
        places = learn_places(draws, run, rows)
        assert list(places.values()) in ([0], [1])
        draws.learn(places)
        draws.at(1, 0, rows)
        with KeyedDraws(draws):
            return run(torch.arange(rows))


def _tensors(value) -> list[Tensor]:  # type: ignore[no-untyped-def]
    return [value] if isinstance(value, Tensor) else [t for part in value for t in _tensors(part)]


_MASK = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": _MASK},
        {"attn_mask": _MASK.double()},
        {"enable_gqa": True},
    ],
    ids=["plain", "causal", "scaled", "masked", "biased", "grouped"],
)
def test_attention_written_out_is_torchs_attention(options: dict[str, object]) -> None:
    heads = 4 if options.get("enable_gqa") else 2
    q, k, v = (torch.randn(5, n, 3, 4, dtype=torch.float64) for n in (heads, 2, 2))
    written_out = _drawn(
        lambda rows: F.scaled_dot_product_attention(q[rows], k[rows], v[rows], dropout_p=ALMOST_0, **options), 5
    )
    expected = F.scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]
    assert torch.allclose(written_out, expected, rtol=0, atol=1e-12)


def test_a_query_that_attends_to_nothing_has_a_finite_gradient() -> None:
    q = torch.randn(5, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    draws = Draws()
    run = lambda rows: F.scaled_dot_product_attention(q[rows], q[rows], q[rows], _MASK, 0.3)  # noqa: E731
    draws.learn(learn_places(draws, run, 5))
    draws.at(1, 0, 5)
    with KeyedDraws(draws):
        run(torch.arange(5)).sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("name", ["dropout", "dropout of channels, 2d", "alpha dropout", "alpha dropout of channels"])
@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_dropouts_have_torchs_mean_and_variance(name: str, p: float) -> None:
    functions = {
        "dropout": F.dropout, "dropout of channels, 2d": F.dropout2d, "alpha dropout": F.alpha_dropout,
        "alpha dropout of channels": F.feature_alpha_dropout,
    }  # fmt: skip
    x = torch.randn(400, 100, 2, 2, dtype=torch.float64)
    torch.manual_seed(1)
    theirs = functions[name](x, p, training=True)
    ours = _drawn(lambda rows: functions[name](x[rows], p, training=True), 400)
    if p == 1:
        assert torch.equal(ours, theirs)
    assert abs(ours.mean() - theirs.mean()) < 0.02 * max(1.0, float(theirs.std()))
    assert abs(ours.std() - theirs.std()) < 0.02
    # The values that dropped and kept elements have, whichever they are.
    slope = (ours - theirs).abs().flatten().sort().values
    assert slope[: len(slope) // 10].max() < 1e-9


def _bits(rows: int = 1000, width: int = 1000) -> Tensor:
    return uniform_bits(5, 0, rows, width, CPU)


EXTREMES = torch.tensor([-(2**31), -1, 0, 1, 2**31 - 1], dtype=torch.int32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers(dtype: torch.dtype) -> None:
    u = uniform(_bits(), dtype)
    assert u.dtype == dtype
    values = u.double()
    assert abs(values.mean() - 0.5) < 5 / 12**0.5 / 1000 + torch.finfo(dtype).eps / 2, "digits are cut off"
    assert abs(values.var() - 1 / 12) < 1e-3
    ends = uniform(EXTREMES, dtype)
    assert ends.min() == 0
    assert ends.max() < 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_open_uniform_numbers(dtype: torch.dtype) -> None:
    u = open_uniform(_bits(), dtype).double()
    assert abs(u.mean() - 0.5) < 5 / 12**0.5 / 1000
    ends = open_uniform(EXTREMES, dtype)
    assert ends.min() > 0
    assert ends.max() < 1
    assert ends.double()[0] == 1 - ends.double()[-1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers(dtype: torch.dtype) -> None:
    z = normal(_bits(), dtype)
    assert z.dtype == dtype
    values = z.double()
    assert abs(values.mean()) < 5e-3
    assert abs(values.var() - 1) < 1e-2
    assert abs((values**4).mean() - 3) < 0.05
    below = torch.tensor([float((values < t).double().mean()) for t in (-2, -1, 0, 1, 2)])
    assert torch.allclose(below, torch.distributions.Normal(0, 1).cdf(torch.tensor([-2.0, -1, 0, 1, 2])), atol=3e-3)
    ends = normal(EXTREMES, dtype).double()
    assert ends.isfinite().all()
    assert ends[0] == -ends[-1]
    assert ends.abs().max() > 5


FUNCTIONS = {
    "rand": (lambda n: torch.rand(n, 500, dtype=torch.float64), 0.5, 12**-0.5),
    "rand_like": (lambda n: torch.rand_like(torch.empty(n, 500)), 0.5, 12**-0.5),
    "randn": (lambda n: torch.randn((n, 500)), 0, 1),
    "normal": (lambda n: torch.normal(2.0, torch.full((n, 500), 3.0)), 2, 3),
    "normal of a size": (lambda n: torch.normal(2.0, 3.0, (n, 500)), 2, 3),
    "normal_": (lambda n: torch.empty(n, 500).normal_(2, std=3), 2, 3),
    "uniform_": (lambda n: torch.empty(n, 500).uniform_(1, to=4), 2.5, 3 * 12**-0.5),
    "exponential_": (lambda n: torch.empty(n, 500).exponential_(0.5), 2, 2),
    "bernoulli": (lambda n: torch.bernoulli(torch.full((n, 500), 0.2)), 0.2, 0.4),
    "bernoulli of a method": (lambda n: torch.full((n, 500), 0.2).bernoulli(), 0.2, 0.4),
    "bernoulli_": (lambda n: torch.empty(n, 500, dtype=torch.int64).bernoulli_(0.2), 0.2, 0.4),
    "bernoulli_ of a tensor": (lambda n: torch.empty(n, 500).bernoulli_(torch.full((500,), 0.2)), 0.2, 0.4),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_torchs_functions_draw(name: str) -> None:
    make, mean, std = FUNCTIONS[name]
    drawn = _drawn(lambda rows: make(len(rows)), 400)
    theirs = make(400)
    assert (drawn.dtype, drawn.shape, drawn.device) == (theirs.dtype, theirs.shape, theirs.device)
    assert abs(drawn.double().mean() - mean) < 5 * std / np.sqrt(drawn.numel())
    assert abs(drawn.double().std() / std - 1) < 0.02


def test_networks_that_draw_by_functions_are_not_stacked() -> None:
    networks = [NETWORKS["dropout"]() for _ in range(2)]
    sample = _data()[0][:2]
    assert stack(networks, sample, "cross-entropy", _sgd, device=CPU, dtype=torch.float64) is None


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.empty(4).bernoulli_(1.5),
        lambda: torch.bernoulli(torch.tensor([0.5, float("nan"), 0.1, 0.1])),
        lambda: torch.empty(4).normal_(0, -1),
        lambda: torch.empty(4).uniform_(2, 1),
        lambda: torch.empty(4).exponential_(-1),
        lambda: torch.normal(0.0, torch.tensor([-1.0])),
        lambda: torch.dropout(torch.ones(4), 1.5, True),
        lambda: F.dropout(torch.ones(4), -0.5),
        lambda: F.feature_alpha_dropout(torch.ones(4), 0.5, True),
        lambda: torch.randn(4, dtype=torch.int64),
    ],
)
def test_bad_arguments_are_torchs_errors(draw) -> None:  # type: ignore[no-untyped-def]
    with KeyedDraws(Draws()), pytest.raises((RuntimeError, ValueError, NotImplementedError)):
        draw()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it
def test_compiled_networks_draw_by_position() -> None:
    network = Net(lambda net, x: F.dropout(net.layer(x), 0.3), nn.Dropout(0.3))
    replica = _replica(torch.compile(network, backend="eager"))
    for key in (3, 4):
        together = _gradient(replica, 0, 4, key) + _gradient(replica, 4, ROWS, key)
        assert (together - _gradient(replica, 0, ROWS, key)).abs().max() < 1e-12
