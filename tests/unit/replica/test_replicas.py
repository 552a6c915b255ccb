"""A replica gives the gradients of plain autograd and takes the steps of the plain optimiser, in flat tensors."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from networks import NETWORKS, Network
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from manyhands.errors import UserError
from manyhands.replica import Batch, Replica, build
from manyhands.replica.base import sum_of_lanes
from manyhands.replica.criterion import LOSSES, OF_CLASSES
from manyhands.replica.flat import FlatReplica
from manyhands.replica.fused import FusedReplica

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda params: Adam(params, lr=0.01),
    "fused-adamw": lambda params: AdamW(params, lr=0.01, fused=True),
}

EVERY_NETWORK = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
EVERY_LOSS = pytest.mark.parametrize("loss", OF_CLASSES)
FUSE_OR_NOT = pytest.mark.parametrize("fuse", [True, False], ids=["fuse", "autograd"])


def _build(network: Network, loss: str = "cross-entropy", optimizer: str = "sgd", *, fuse: bool = True) -> Replica:
    x, _ = network.batch(2)
    return build(
        network.module(), x, loss, OPTIMIZERS[optimizer], device=torch.device("cpu"), dtype=torch.float64, fuse=fuse
    )


def _plain(module: nn.Module, network: Network, loss: str, rows: int = 7, weight: float = 1.0) -> Tensor:
    """Run plain autograd."""
    x, y = network.batch(rows)
    module.train().zero_grad()
    value = LOSSES[loss](module(x), y) * weight
    value.backward()
    return value.detach()


def _pairs(replica: Replica, plain: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
    theirs = dict(plain.named_parameters())
    for name, p in replica.module.named_parameters():
        yield name, p, theirs[name]


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12, msg=lambda m: f"{what}: {m}")


@EVERY_NETWORK
def test_the_fused_replica_holds_what_it_can_and_nothing_else(network: Network) -> None:
    assert isinstance(_build(network), FusedReplica if network.fused else FlatReplica)
    assert isinstance(_build(network, fuse=False), FlatReplica)


@FUSE_OR_NOT
@EVERY_LOSS
@EVERY_NETWORK
def test_gradients_are_those_of_plain_autograd(network: Network, loss: str, fuse: bool) -> None:
    replica, plain = _build(network, loss, fuse=fuse), network.module()
    expected = _plain(plain, network, loss, weight=0.3)
    found = replica.forward_backward(Batch(*network.batch()), 0.3)
    _close(found, expected, "loss")
    for name, p, q in _pairs(replica, plain):
        if q.requires_grad:
            assert p.grad is not None
            assert q.grad is not None
            _close(p.grad, q.grad, name)


@FUSE_OR_NOT
@EVERY_NETWORK
def test_gradients_do_not_pile_up(network: Network, fuse: bool) -> None:
    replica = _build(network, fuse=fuse)
    replica.forward_backward(Batch(*network.batch()), 1.0)
    first = replica.grads.clone()
    replica.forward_backward(Batch(*network.batch(4, seed=9)), 0.7)
    replica.forward_backward(Batch(*network.batch()), 1.0)
    assert torch.equal(replica.grads, first)


@FUSE_OR_NOT
@EVERY_NETWORK
def test_an_empty_batch_gives_zeros(network: Network, fuse: bool) -> None:
    replica = _build(network, fuse=fuse)
    replica.forward_backward(Batch(*network.batch()), 1.0)
    before = replica.params.clone()
    loss = replica.forward_backward(Batch(*network.batch(0)), 0.0)
    assert (loss.shape, loss.dtype, loss.item()) == ((), torch.float64, 0.0)
    assert replica.grads.eq(0).all()
    assert torch.equal(replica.params, before)


@FUSE_OR_NOT
@EVERY_NETWORK
def test_the_networks_tensors_are_views_of_the_flat_ones(network: Network, fuse: bool) -> None:
    replica = _build(network, fuse=fuse)
    assert replica.params.dim() == replica.grads.dim() == 1
    assert replica.params.numel() == replica.grads.numel()
    assert replica.params.is_contiguous()
    replica.forward_backward(Batch(*network.batch()), 1.0)
    trained = [p for p in replica.module.parameters() if p.requires_grad]
    for p in trained:
        assert _lies_in(p.data, replica.params)
        assert p.grad is not None
        assert _lies_in(p.grad, replica.grads)
        assert p.grad.stride() == p.stride()
    replica.params.fill_(0.25)
    replica.grads.fill_(0.5)
    assert all(p.eq(0.25).all() and p.grad is not None and p.grad.eq(0.5).all() for p in trained)
    for name, b in replica.module.named_buffers():
        if b.is_floating_point():
            assert _lies_in(b, replica.params), name


def _lies_in(part: Tensor, whole: Tensor) -> bool:
    return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@EVERY_NETWORK
def test_flattening_keeps_the_weights(network: Network) -> None:
    replica, plain = _build(network), network.module()
    for name, value in replica.module.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name
    x, _ = network.batch()
    replica.module.eval()
    _close(replica.module(x), plain.eval()(x), "output")


def test_images_are_computed_channels_last() -> None:
    replica = _build(NETWORKS["convolutions"])
    first = replica.module[0].weight  # type: ignore[index]
    assert first.is_contiguous(memory_format=torch.channels_last)
    assert first.grad is not None
    assert first.grad.is_contiguous(memory_format=torch.channels_last)
    assert not first.is_contiguous()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@FUSE_OR_NOT
@EVERY_NETWORK
def test_steps_are_those_of_the_optimiser_on_the_plain_network(network: Network, fuse: bool, optimizer: str) -> None:
    replica, plain = _build(network, optimizer=optimizer, fuse=fuse), network.module()
    reference = OPTIMIZERS[optimizer]([p for p in plain.parameters() if p.requires_grad])
    for rows in (7, 3, 7, 5):
        _plain(plain, network, "cross-entropy", rows)
        reference.step()
        replica.forward_backward(Batch(*network.batch(rows)), 1.0)
        replica.apply()
    for name, value in plain.state_dict().items():
        _close(replica.module.state_dict()[name].double(), value.double(), name)


@pytest.mark.parametrize("name", ["frozen", "frozen-bias"])
def test_what_is_frozen_stays(name: str) -> None:
    network = NETWORKS[name]
    replica, before = _build(network, optimizer="momentum"), network.module().state_dict()
    frozen = [n for n, p in replica.module.named_parameters() if not p.requires_grad]
    for _ in range(3):
        replica.forward_backward(Batch(*network.batch()), 1.0)
        replica.apply()
    assert frozen
    for n, value in replica.module.state_dict().items():
        assert torch.equal(value, before[n]) == (n in frozen), n


def test_nothing_to_train_is_explained() -> None:
    module = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameters"):
        build(
            module, torch.ones(2, 3), "cross-entropy", OPTIMIZERS["sgd"], device=torch.device("cpu"),
            dtype=torch.float32,
        )  # fmt: skip


@FUSE_OR_NOT
@EVERY_NETWORK
def test_every_part_of_the_gradients_is_announced_once_when_it_is_final(network: Network, fuse: bool) -> None:
    replica = _build(network, fuse=fuse)
    seen: list[tuple[int, int, Tensor]] = []
    replica.on_grad_ready(lambda start, stop: seen.append((start, stop, replica.grads[start:stop].clone())))
    for _ in range(2):
        seen.clear()
        replica.forward_backward(Batch(*network.batch()), 1.0)
        for start, stop, then in seen:
            assert torch.equal(then, replica.grads[start:stop]), f"grads[{start}:{stop}] was not final"
        covered = sorted(i for start, stop, _ in seen for i in range(start, stop))
        assert covered == list(range(replica.grads.numel()))


def test_layers_that_meet_are_not_interrupted_by_announcements() -> None:
    """Workers with rows and one without would begin other sums between the layers' calls, and wait for ever."""
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    float32 = {"device": torch.device("cpu"), "dtype": torch.float32}
    replica = build(module, torch.ones(2, 3), "cross-entropy", OPTIMIZERS["sgd"], global_norms=True, **float32)
    seen: list[int] = []
    replica.on_grad_ready(lambda start, stop: seen.append(start))
    replica.forward_backward(Batch(torch.randn(4, 3), torch.tensor([0, 1, 1, 0])), 1.0)
    assert (replica.meets, seen) == (True, [])


def test_one_step_moves_running_statistics_as_plain_torch_does() -> None:
    network = NETWORKS["normed"]
    replica, plain = _build(network), network.module()
    before = {n: b.clone() for n, b in replica.module.named_buffers()}
    _plain(plain, network, "cross-entropy")
    replica.forward_backward(Batch(*network.batch()), 1.0)
    held = torch.cat([b.flatten().double() for b in before.values()])
    _close(replica.params[-held.numel() :], held, "what is held back until the optimiser acts")
    replica.apply()
    moved = dict(replica.module.named_buffers())
    for name, expected in plain.named_buffers():
        assert moved[name].dtype == expected.dtype
        _close(moved[name].double(), expected.double(), name)
        assert not torch.equal(moved[name], before[name]), name


def test_statistics_of_lanes_are_weighted_like_their_gradients() -> None:
    """Several lanes move the statistics by the weighted mean of what each would, and count one batch."""
    network = NETWORKS["normed"]
    replica = _build(network)
    x, y = network.batch(8)
    start = replica.params.clone()
    moves = []
    for rows, weight in ((slice(0, 3), 3 / 8), (slice(3, 8), 5 / 8)):
        replica.params.copy_(start)
        replica.forward_backward(Batch(x[rows], y[rows]), weight)
        moves.append(replica.grads.clone())
    sum_of_lanes(replica, [[(Batch(x[:3], y[:3]), 3 / 8)], [(Batch(x[3:], y[3:], first=3), 5 / 8)]])
    _close(replica.grads, moves[0] + moves[1], "sum")
    replica.apply()
    counters = [b for n, b in replica.module.named_buffers() if n.endswith("num_batches_tracked")]
    assert [c.item() for c in counters] == [1, 1]
    assert all(c.dtype == torch.int64 for c in counters)


@FUSE_OR_NOT
@pytest.mark.parametrize("name", [n for n in NETWORKS if n != "normed"])
def test_pieces_and_lanes_sum_to_the_whole_batch(name: str, fuse: bool) -> None:
    network = NETWORKS[name]
    replica = _build(network, fuse=fuse)
    x, y = network.batch(13)
    whole = replica.forward_backward(Batch(x, y), 1.0)
    expected = replica.grads.clone()
    pieces = [(Batch(x[a:b], y[a:b], first=a), (b - a) / 13) for a, b in ((0, 4), (4, 5), (5, 5), (5, 13))]
    for lanes in ([pieces], [[p] for p in pieces], [pieces[:3], pieces[3:]], [pieces[:1], pieces[1:2], pieces[2:]]):
        replica.grads.fill_(7.0)
        _close(sum_of_lanes(replica, lanes), whole, "loss")
        _close(replica.grads, expected, "gradients")


def test_replicas_of_one_seed_are_equal_and_apart() -> None:
    network = NETWORKS["stack"]
    a, b = _build(network), _build(network)
    assert torch.equal(a.params, b.params)
    a.params += 1
    assert not torch.equal(a.params, b.params)


def test_a_loss_of_ones_own_is_used() -> None:
    network, module = NETWORKS["stack"], NETWORKS["stack"].module()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out.sum(1) - y).square().mean()

    x, y = network.batch()
    replica = build(
        copy.deepcopy(module), x[:2], loss, OPTIMIZERS["sgd"], device=torch.device("cpu"), dtype=torch.float64
    )
    assert isinstance(replica, FlatReplica)
    expected = loss(module(x), y)
    expected.backward()
    _close(replica.forward_backward(Batch(x, y), 1.0), expected.detach(), "loss")
    for name, p, q in _pairs(replica, module):
        assert p.grad is not None
        assert q.grad is not None
        _close(p.grad, q.grad, name)
