"""Stacked models give what each gives alone: in every step, with uneven rows, and in whatever company."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import NETWORKS, Network
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from manyhands.replica import Batch, Replica, build
from manyhands.replica.criterion import LOSSES, OF_CLASSES, Loss
from manyhands.replica.stacked import FuncStack, FusedStack, Stack, stack

CPU = torch.device("cpu")
OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda params: Adam(params, lr=0.01),
    "fused-adamw": lambda params: AdamW(params, lr=0.01, fused=True),
}


class Shifted(nn.Module):
    """A network with a buffer of its own, which no forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        """Shift the inputs."""
        return self.out(x + self.shift)


class Unitary(nn.Module):
    """A network that makes a NaN of a row of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Bring each row to length 1."""
        return self.out(x / x.norm(dim=1, keepdim=True))


class Idle(nn.Module):
    """A network with a weight that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.out = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Pass one layer by."""
        return self.out(x)


class Asking(nn.Module):
    """A network that branches on its values, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Ask."""
        return self.out(x if bool(x.sum() > 0) else -x)


def _dropping() -> nn.Module:
    drop = nn.Dropout(0.3)
    return nn.Sequential(nn.Linear(6, 8), drop, nn.ReLU(), drop, nn.Linear(8, 4))


STACKED = {
    **{name: network for name, network in NETWORKS.items() if name not in ("normed", "convolutions")},
    "shifted": Network(Shifted),
    "unitary": Network(Unitary),
    "dropping": Network(_dropping),
}
EVERY_NETWORK = pytest.mark.parametrize("network", STACKED.values(), ids=STACKED)
EVERY_LOSS = pytest.mark.parametrize("loss", OF_CLASSES)
FUSE_OR_NOT = pytest.mark.parametrize("fuse", [True, False], ids=["fuse", "vmap"])


def _smooth(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, label_smoothing=0.1)


def _try(
    network: Network,
    seeds: range | list[int],
    loss: str | Loss = "cross-entropy",
    optimizer: str = "sgd",
    *,
    fuse: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Stack | None:
    sample, _ = network.batch(2)
    modules = [network.module(seed) for seed in seeds]
    return stack(modules, sample, loss, OPTIMIZERS[optimizer], device=CPU, dtype=dtype, fuse=fuse)


def _stack(
    network: Network,
    seeds: range | list[int],
    loss: str | Loss = "cross-entropy",
    optimizer: str = "sgd",
    *,
    fuse: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Stack:
    found = _try(network, seeds, loss, optimizer, fuse=fuse, dtype=dtype)
    assert found is not None
    return found


def _alone(
    network: Network,
    seed: int,
    loss: str | Loss = "cross-entropy",
    optimizer: str = "sgd",
    *,
    fuse: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Replica:
    sample, _ = network.batch(2)
    make = OPTIMIZERS[optimizer]
    return build(network.module(seed), sample.to(dtype), loss, make, device=CPU, dtype=dtype, fuse=fuse)


def _rows(network: Network, counts: list[int], seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Draw so many rows for each model, and pad with what must not count: NaN, infinity, and labels out of range."""
    k, rows = len(counts), max(counts)
    x = torch.full((k, rows, *network.shape), torch.nan, dtype=torch.float64)
    x[:, -1:] = torch.inf
    y, weights = torch.full((k, rows), -1), torch.zeros(k, rows, dtype=torch.float64)
    for i, count in enumerate(counts):
        x[i, :count], y[i, :count] = network.batch(count, seed=seed + i)
        weights[i, :count] = 1 / max(1, count)
    return x, y, weights


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, msg=lambda m: f"{what}: {m}")


def _law(network: Network, loss: str | Loss, optimizer: str, fuse: bool, counts: list[list[int]]) -> None:
    """Train stacked and alone, a step for each list of counts, and compare losses, gradients and weights."""
    k = len(counts[0])
    stacked = _stack(network, range(k), loss, optimizer, fuse=fuse)
    alone = [_alone(network, seed, loss, optimizer, fuse=fuse) for seed in range(k)]
    for step, rows in enumerate(counts):
        x, y, weights = _rows(network, rows, seed=10 * step)
        stacked.update.lr = 0.1 / (step + 1)
        losses = stacked.forward_backward(x, y, weights, key=step)
        stacked.apply()
        assert losses.shape == (k,)
        for i, replica in enumerate(alone):
            replica.update.lr = 0.1 / (step + 1)
            expected = replica.forward_backward(Batch(x[i, : rows[i]], y[i, : rows[i]], key=step), 1.0)
            _close(losses[i], expected, f"loss of model {i} in step {step}")
            _close(stacked.grads[i], replica.grads, f"gradients of model {i} in step {step}")
            replica.apply()
            _close(stacked.params[i], replica.params, f"weights of model {i} after step {step}")


@FUSE_OR_NOT
@EVERY_LOSS
@EVERY_NETWORK
def test_models_train_as_they_do_alone(network: Network, loss: str, fuse: bool) -> None:
    _law(network, loss, "sgd", fuse, [[7, 7, 7], [7, 5, 6], [3, 3, 3], [7, 7, 7]])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@FUSE_OR_NOT
@pytest.mark.parametrize("name", ["stack", "residual"])
def test_every_optimiser_steps_as_it_does_alone(name: str, fuse: bool, optimizer: str) -> None:
    _law(STACKED[name], "cross-entropy", optimizer, fuse, [[7, 7, 7], [1, 2, 1], [5, 5, 4]])


@pytest.mark.parametrize("name", ["stack", "residual", "dropping"])
def test_a_loss_of_ones_own_is_taken_row_by_row(name: str) -> None:
    _law(STACKED[name], _smooth, "momentum", True, [[7, 6], [4, 5]])


@FUSE_OR_NOT
def test_one_model_is_a_stack_too(fuse: bool) -> None:
    _law(STACKED["stack"], "cross-entropy", "adam", fuse, [[7], [3]])


@settings(max_examples=25, deadline=None)
@given(
    counts=st.integers(1, 5).flatmap(
        lambda k: st.lists(st.lists(st.integers(0, 9), min_size=k, max_size=k), min_size=1, max_size=3)
    ),
    loss=st.sampled_from(sorted(OF_CLASSES)),
    fuse=st.booleans(),
)
def test_any_numbers_of_rows(counts: list[list[int]], loss: str, fuse: bool) -> None:
    """A model, or all of them, may have no rows in a step."""
    _law(STACKED["stack"], loss, "sgd", fuse, counts)


@FUSE_OR_NOT
@EVERY_LOSS
def test_float32_is_equal_to_round_off(loss: str, fuse: bool) -> None:
    network = STACKED["flattened"]
    stacked = _stack(network, range(3), loss, fuse=fuse, dtype=torch.float32)
    alone = [_alone(network, seed, loss, fuse=fuse, dtype=torch.float32) for seed in range(3)]
    for step in range(4):
        x, y, weights = _rows(network, [16, 16, 15], seed=step)
        stacked.forward_backward(x.float(), y, weights.float())
        stacked.apply()
        for i, (rows, replica) in enumerate(zip((16, 16, 15), alone, strict=True)):
            replica.forward_backward(Batch(x[i, :rows].float(), y[i, :rows]), 1.0)
            replica.apply()
    assert stacked.params.dtype == torch.float32
    for row, replica in zip(stacked.params, alone, strict=True):
        torch.testing.assert_close(row, replica.params, rtol=1e-4, atol=1e-6)


@FUSE_OR_NOT
@pytest.mark.parametrize("name", ["stack", "unitary", "dropping"])
def test_what_padding_holds_does_not_matter(name: str, fuse: bool) -> None:
    network = STACKED[name]
    x, y, weights = _rows(network, [5, 7, 2])
    results = []
    for value, label in ((torch.nan, -1), (torch.inf, 99), (0.0, 0), (1e300, 3)):
        stacked = _stack(network, range(3), fuse=fuse)
        hidden = weights == 0
        filled, labels = x.clone(), y.clone()
        filled[hidden], labels[hidden] = value, label
        losses = stacked.forward_backward(filled, labels, weights)
        results.append(torch.cat([losses.unsqueeze(1), stacked.grads], 1))
        assert filled[hidden].eq(value).all() or value != value, "the caller's rows stay as they are"
    assert results[0].isfinite().all()
    assert all(torch.equal(found, results[0]) for found in results)


@FUSE_OR_NOT
def test_rows_can_have_any_weights(fuse: bool) -> None:
    """A model's loss is the weighted sum over its rows, and so are its gradients."""
    network = STACKED["stack"]
    stacked = _stack(network, range(2), fuse=fuse)
    x, y, _ = _rows(network, [4, 4])
    weights = torch.rand(2, 4, dtype=torch.float64)
    losses = stacked.forward_backward(x, y, weights)
    for i in range(2):
        replica = _alone(network, i)
        parts = []
        for r in range(4):
            loss = replica.forward_backward(Batch(x[i, r : r + 1], y[i, r : r + 1]), float(weights[i, r]))
            parts.append(torch.cat([loss.view(1), replica.grads]))
        _close(torch.cat([losses[i].view(1), stacked.grads[i]]), torch.stack(parts).sum(0), f"model {i}")


@FUSE_OR_NOT
@EVERY_NETWORK
def test_outputs_are_those_of_the_modules(network: Network, fuse: bool) -> None:
    stacked = _stack(network, range(3), optimizer="momentum", fuse=fuse)
    for _ in range(2):
        stacked.forward_backward(*_rows(network, [6, 6, 6]))
        stacked.apply()
    x, _, _ = _rows(network, [5, 5, 5], seed=40)
    shared, own = stacked.outputs(x[0]), stacked.outputs(x)
    assert not own.requires_grad
    for i, module in enumerate(stacked.modules):
        assert module.training
        module.eval()
        _close(shared[i], module(x[0]).detach(), f"model {i}, shared rows")
        _close(own[i], module(x[i]).detach(), f"model {i}, own rows")


@FUSE_OR_NOT
@EVERY_NETWORK
def test_modules_keep_their_weights_and_lie_in_their_rows(network: Network, fuse: bool) -> None:
    stacked = _stack(network, range(3), fuse=fuse)
    for i, module in enumerate(stacked.modules):
        expected = network.module(i).state_dict()
        for name, value in module.state_dict().items():
            assert torch.equal(value, expected[name]), name
    stacked.params.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
    stacked.grads.copy_(torch.tensor([[4.0], [5.0], [6.0]]))
    for i, module in enumerate(stacked.modules):
        for p in module.parameters():
            if p.requires_grad:
                assert p.grad is not None
                assert p.eq(i + 1).all()
                assert p.grad.eq(i + 4).all()


@FUSE_OR_NOT
def test_a_weight_that_is_not_used_has_no_gradient(fuse: bool) -> None:
    stacked = _stack(Network(Idle), range(2), fuse=fuse)
    stacked.grads.fill_(7.0)
    stacked.forward_backward(*_rows(Network(Idle), [3, 3]))
    assert stacked.modules[1].idle.weight.grad.eq(0).all()  # type: ignore[union-attr, operator]
    assert not stacked.modules[1].out.weight.grad.eq(0).all()  # type: ignore[union-attr, operator]


@EVERY_NETWORK
def test_the_fused_stack_holds_what_it_can_and_nothing_else(network: Network) -> None:
    assert isinstance(_stack(network, range(2)), FusedStack if network.fused else FuncStack)
    assert isinstance(_stack(network, range(2), fuse=False), FuncStack)
    assert isinstance(_stack(network, range(2), LOSSES["cross-entropy"]), FuncStack)


def _weighted(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=out.dtype))


def _over_the_batch(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out - out.mean(0), y)


def _branching(out: Tensor, y: Tensor) -> Tensor:
    return out.square().mean() if bool(y.sum() > 0) else out.mean()


UNFIT: dict[str, tuple[Network, str | Loss]] = {
    "convolutions": (NETWORKS["convolutions"], "cross-entropy"),
    "running statistics": (NETWORKS["normed"], "cross-entropy"),
    "batch statistics": (
        Network(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False))),
        "cross-entropy",
    ),
    "global random": (Network(lambda: nn.Sequential(nn.Linear(6, 4), nn.AlphaDropout(0.5))), "cross-entropy"),
    "branch in the network": (Network(Asking), "cross-entropy"),
    "branch in the loss": (NETWORKS["stack"], _branching),
    "loss that weighs rows": (NETWORKS["stack"], _weighted),
    "loss that mixes rows": (NETWORKS["stack"], _over_the_batch),
}


@pytest.mark.parametrize(("network", "loss"), UNFIT.values(), ids=UNFIT)
def test_what_cannot_be_stacked_is_told_before_training(network: Network, loss: str | Loss) -> None:
    assert _try(network, range(2), loss) is None


def test_a_refused_network_is_as_it_was() -> None:
    network = Network(lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.Linear(5, 4)))
    modules, expected = [network.module(seed) for seed in range(3)], network.module(0).state_dict()
    sample, _ = network.batch(2)
    assert stack(modules, sample, "cross-entropy", OPTIMIZERS["sgd"], device=CPU, dtype=torch.float64) is None
    assert all(torch.equal(value, expected[name]) for name, value in modules[0].state_dict().items())
    assert all(type(module[1]) is nn.Dropout for module in modules)  # type: ignore[index]
    assert all(p.grad is None and p.untyped_storage().nbytes() == p.nbytes for p in modules[1].parameters())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread: with several, one model is shared out differently from two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 7, 63, 64])
@EVERY_LOSS
def test_company_changes_no_bit_of_a_fused_model(loss: str, rows: int, dtype: torch.dtype) -> None:
    """However many others there are, and wherever the model lies among them."""
    network = Network(lambda: nn.Sequential(nn.Linear(37, 21), nn.ReLU(), nn.Linear(21, 9), nn.Sigmoid(),
                                            nn.Linear(9, 4)), (37,))  # fmt: skip
    results = []
    for seeds in ([5], [5, 1], [1, 5], [1, 2, 5], [*range(10)]):
        stacked = _stack(network, seeds, loss, "momentum", dtype=dtype)
        for step in range(3):
            drawn = [network.batch(rows, seed=100 * step + seed) for seed in seeds]
            x, y = (torch.stack(part) for part in zip(*drawn, strict=True))
            stacked.forward_backward(x.to(dtype), y, torch.full((len(seeds), rows), 1 / rows, dtype=dtype))
            stacked.apply()
        results.append(stacked.params[seeds.index(5)])
    assert all(torch.equal(found, results[0]) for found in results)
