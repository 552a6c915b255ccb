"""The layers that normalise over several workers' rows: outputs, gradients and running statistics are those of one."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyhands.comm import Comm
from manyhands.replica.batchnorm import join_norms, norms_of
from manyhands.replica.peers import Peers

SHAPES: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "rows": (nn.BatchNorm1d, (5,)),
    "sequences": (nn.BatchNorm1d, (5, 7)),
    "images": (nn.BatchNorm2d, (5, 4, 3)),
    "volumes": (nn.BatchNorm3d, (5, 2, 3, 2)),
    "any": (nn.SyncBatchNorm, (5, 4, 3)),
}
SLICES = [[3, 4], [1, 1, 1], [6, 0, 1], [0, 0, 2, 0, 5]]
"""Rows of each worker."""

Result = dict[str, Tensor]


def _passed(layer: Any, x: Tensor, slope: Tensor) -> Result:
    """Pass rows through a layer and back; return everything that comes out."""
    x = x.clone().requires_grad_()
    output = layer(x)
    output.backward(slope)
    grads = {f"slope of {name}": p.grad for name, p in layer.named_parameters()}
    return {
        "output": output.detach(),
        "slope": x.grad,
        **grads,
        **{name: b.clone() for name, b in layer.named_buffers()},
    }


def _together(ranks: Any, layer: nn.Module, x: Tensor, slope: Tensor, rows: list[int]) -> Result:
    """Do the same with a worker for each slice; join what they have."""

    def work(comm: Comm) -> Result:
        norms, peers = nn.Sequential(copy.deepcopy(layer)), Peers()
        assert join_norms(norms, peers) == 1
        peers.join(comm)
        first = sum(rows[: comm.rank])
        part = slice(first, first + rows[comm.rank])
        peers.counts = rows[comm.rank] > 0
        if peers.counts:
            return _passed(norms[0], x[part], slope[part])
        standing = _passed(norms[0], x[:1], torch.zeros_like(x[:1]))
        assert not standing["slope"].any()
        return {**standing, "output": x[:0], "slope": x[:0]}

    results = ranks(work, len(rows))
    joined = {name: torch.cat([result[name] for result in results]) for name in ("output", "slope")}
    for name in results[0].keys() - joined.keys():
        tensors = [result[name] for result in results]
        summed = torch.stack(tensors).sum(0) if name.startswith("slope of") else tensors[0]
        assert name.startswith("slope of") or all(torch.equal(t, tensors[0]) for t in tensors), name
        joined[name] = summed
    return joined


def _check(actual: Result, expected: Result, most: float) -> None:
    assert actual.keys() == expected.keys()
    for name, t in expected.items():
        assert actual[name].dtype == t.dtype, name
        assert float((actual[name] - t).double().norm()) <= most * (1 + float(t.double().norm())), name


@pytest.mark.parametrize("rows", SLICES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_several_workers_normalise_as_one(shape: str, rows: list[int], ranks: Any) -> None:
    kind, sizes = SHAPES[shape]
    torch.manual_seed(1)
    x, slope = torch.randn(2, sum(rows), *sizes, dtype=torch.float64)
    for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}):
        layer = kind(5, **options).double()  # type: ignore[arg-type]
        with torch.no_grad():
            for p in layer.parameters():
                p.uniform_(-1, 1)
        _check(_together(ranks, layer, x, slope, rows), _passed(copy.deepcopy(layer), x, slope), 1e-13)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 2e-3)], ids=str
)
def test_shorter_numbers(dtype: torch.dtype, most: float, ranks: Any) -> None:
    """The moments of bf16 and fp16 rows are float32, like weight and bias."""
    torch.manual_seed(1)
    x, slope = torch.randn(2, 12, 5, 4, 4).to(dtype)
    layer = nn.BatchNorm2d(5)
    _check(_together(ranks, layer, x, slope, [5, 0, 7]), _passed(copy.deepcopy(layer), x, slope), most)


def test_a_large_mean_costs_no_digits(ranks: Any) -> None:
    torch.manual_seed(1)
    x, slope = torch.randn(2, 12, 5, dtype=torch.float64)
    layer = nn.BatchNorm1d(5, momentum=1.0).double()
    _check(_together(ranks, layer, x + 1e7, slope, [5, 0, 7]), _passed(copy.deepcopy(layer), x + 1e7, slope), 1e-8)


def test_one_row_of_all_workers_together_is_refused_as_torch_does(ranks: Any) -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        _together(ranks, nn.BatchNorm1d(5), torch.randn(1, 5), torch.randn(1, 5), [0, 1])


def test_layers_keep_what_refers_to_them() -> None:
    """Objects, names, hooks and classes stay: what freezes every `nn.BatchNorm2d` does so still."""
    layer, calls = nn.BatchNorm2d(3), list[str]()
    layer.register_forward_hook(lambda *_: calls.append("called"))
    network, names = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sequential(layer)), list(nn.BatchNorm2d(3).state_dict())
    assert join_norms(network, Peers()) == join_norms(network, Peers()) == 1
    assert norms_of(network) == [layer]
    assert isinstance(layer, nn.BatchNorm2d)
    assert list(layer.state_dict()) == names
    network(torch.randn(2, 2, 5, 5))
    assert calls == ["called"]
    nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sequential(nn.BatchNorm2d(3))).load_state_dict(network.state_dict())


def test_alone_in_evaluation_and_of_a_users_class_they_are_torchs(ranks: Any) -> None:
    class Special(nn.BatchNorm1d):
        pass

    torch.manual_seed(1)
    x, plain = torch.randn(6, 4), nn.BatchNorm1d(4)
    expected = plain(x), plain.eval()(x)
    norms = nn.Sequential(nn.BatchNorm1d(4))
    join_norms(norms, Peers())
    assert torch.equal(norms(x), expected[0])

    def evaluate(comm: Comm) -> Tensor:
        network, peers = copy.deepcopy(norms).eval(), Peers()
        join_norms(network, peers)
        peers.join(comm)
        return network(x) if comm.rank == 0 else torch.zeros(())  # type: ignore[no-any-return]

    assert torch.equal(ranks(evaluate, 2)[0], expected[1])
    assert join_norms(nn.Sequential(Special(4)), Peers()) == 0
