"""Buckets are summed as soon as they are final, each once, in the same order everywhere, and the answer is serial."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from driving import distance, make_replica, normed, stack, weights_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from manyhands import Dataset, Task, sync
from manyhands.comm.self_ import SelfComm
from manyhands.replica import Batch, Replica
from manyhands.replica.flat import FlatReplica
from manyhands.replica.fused import FusedReplica

ROWS = "synthetic:samples=97,features=12,classes=3,test=23,seed=5"
CASES = {
    "tiny buckets": ("overlap:bucket=1", {"steps": 3, "batch_size": 10}),
    "one bucket": ("overlap", {"steps": 12, "batch_size": 10}),
    "some buckets": ("overlap:bucket=50", {"steps": 12, "batch_size": 10}),
    "empty slices": ("overlap:bucket=50", {"steps": 6, "batch_size": 2}),
    "in pieces": ("overlap:bucket=50", {"steps": 5, "batch_size": 30, "micro_batch": 3}),
    "in pieces or in one": ("overlap:bucket=50", {"steps": 10, "batch_size": 10, "micro_batch": 3}),
}


class Spy:
    """What was begun and ended, and what the gradients were when it began."""

    def __init__(self, replica: Replica) -> None:
        self.comm, self._replica = SelfComm(), replica
        self.begun: list[tuple[int, int]] = []
        self.then: list[Tensor] = []
        self.ended: list[tuple[int, int]] = []
        self.comm.begin_all_reduce_ = self._begin  # type: ignore[method-assign]

    def _begin(self, t: Tensor) -> Callable[[], None]:
        start = t.storage_offset() - self._replica.grads.storage_offset()
        span = (start, start + t.numel())
        self.begun.append(span)
        self.then.append(self._replica.grads.clone())
        return lambda: self.ended.append(span)


def _batch(rows: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 13, generator=generator, dtype=torch.float64)
    return Batch(x, torch.randint(7, (rows,), generator=generator))


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "autograd"])
@pytest.mark.parametrize("case", CASES)
def test_it_gives_the_serial_answer(train, tmp_path: Path, case: str, fuse: bool) -> None:  # type: ignore[no-untyped-def]
    text, options = CASES[case]
    expected = weights_of(tmp_path, train(**options, fuse=fuse, dtype="float64"))
    record = train(**options, fuse=fuse, dtype="float64", engine="threads", workers=3, sync=text)
    assert distance(weights_of(tmp_path, record), expected) < 1e-12


class Idle(nn.Module):
    """Has a layer in the middle that nothing uses, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.twice = nn.Linear(12, 6), nn.Linear(9, 9), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Leave one layer out."""
        return self.last(self.twice(torch.tanh(self.twice(torch.tanh(self.first(x))))))  # type: ignore[no-any-return]


def _idle(data: Dataset) -> nn.Module:
    return Idle()


@pytest.mark.parametrize("bucket", [1, 20, 999])
def test_weights_that_nothing_uses_are_summed_too(train, tmp_path: Path, bucket: int) -> None:  # type: ignore[no-untyped-def]
    task = Task(model=_idle, data=ROWS, optimizer="momentum", name="idle")
    expected = weights_of(tmp_path, train(task, steps=3, dtype="float64"))
    options = {"steps": 3, "dtype": "float64", "engine": "threads", "workers": 3}
    assert distance(weights_of(tmp_path, train(task, **options, sync=f"overlap:bucket={bucket}")), expected) < 1e-12


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "autograd"])
@pytest.mark.parametrize("bucket", [1, 30, 84])
def test_buckets_begin_before_the_backward_pass_has_ended(fuse: bool, bucket: int) -> None:
    """When the last layer's gradient is final, the first one's is not yet there."""
    replica = make_replica(stack, fuse=fuse)
    assert isinstance(replica, FusedReplica if fuse else FlatReplica)
    spy, strategy = Spy(replica), sync.make(f"overlap:bucket={bucket}")
    strategy.start(replica, spy.comm)
    for step in range(2):
        replica.grads.fill_(torch.nan)
        replica.forward_backward(_batch(), 1.0)
        final = replica.grads.clone()
        for (start, stop), then in zip(spy.begun, spy.then, strict=True):
            assert torch.equal(then[start:stop], final[start:stop]), "nothing begins before it is final"
        assert spy.begun, "and something begins by itself"
        first_layer = slice(0, 13 * 11)
        assert not torch.equal(spy.then[0][first_layer], final[first_layer])
        assert not spy.ended
        strategy.step(replica, spy.comm, step)
        _check_all_once(spy, 238, bucket)
        assert spy.ended == spy.begun
        for found in (spy.begun, spy.then, spy.ended):
            found.clear()


def test_a_bucket_that_reaches_into_the_first_layer_waits_for_it() -> None:
    replica = make_replica(stack)
    spy, strategy = Spy(replica), sync.make("overlap:bucket=999")
    strategy.start(replica, spy.comm)
    replica.forward_backward(_batch(), 1.0)
    assert spy.begun == [(0, 238)]
    assert torch.equal(spy.then[0], replica.grads)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "autograd"])
def test_an_empty_slice_and_a_part_of_a_sum_are_not_announced(fuse: bool) -> None:
    replica = make_replica(stack, fuse=fuse)
    spy, strategy = Spy(replica), sync.make("overlap:bucket=30")
    strategy.start(replica, spy.comm)
    replica.forward_backward(_batch(0), 0.0)
    assert not spy.begun
    strategy.step(replica, spy.comm, 0)
    _check_all_once(spy, 238, 30)
    spy.begun.clear()
    replica.announces = False
    replica.forward_backward(_batch(), 1.0)
    assert not spy.begun
    strategy.step(replica, spy.comm, 1)
    _check_all_once(spy, 238, 30)


def test_statistics_are_final_after_the_backward_pass() -> None:
    """They lie behind the weights, so nothing begins before they are there."""
    replica = make_replica(normed)
    spy, strategy = Spy(replica), sync.make("overlap:bucket=7")
    strategy.start(replica, spy.comm)
    replica.forward_backward(_batch(), 1.0)
    assert spy.begun
    for then in spy.then:
        assert torch.equal(then, replica.grads)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 40), st.randoms(), st.integers(0, 8))
def test_whatever_becomes_final_when_each_bucket_begins_once_and_in_order(widths, bucket, random, told) -> None:  # type: ignore[no-untyped-def]
    """Parts are announced in any order, some of them never."""
    total = sum(widths)
    stops = [sum(widths[: i + 1]) for i in range(len(widths))]
    spans = [(stop - width, stop) for stop, width in zip(stops, widths, strict=True)]
    random.shuffle(spans)
    replica = _Announcing(total)
    spy, strategy = Spy(replica), sync.make(f"overlap:bucket={bucket}")  # type: ignore[arg-type]
    strategy.start(replica, spy.comm)  # type: ignore[arg-type]
    for step in range(2):
        final: set[int] = set()
        for start, stop in spans[:told]:
            final |= set(range(start, stop))
            replica.ready(start, stop)
            begun = {i for a, b in spy.begun for i in range(a, b)}
            assert begun <= final
        strategy.step(replica, spy.comm, step)  # type: ignore[arg-type]
        _check_all_once(spy, total, bucket)
        assert spy.ended == spy.begun
        spy.begun.clear()
        spy.ended.clear()


class _Announcing:
    """As much of a replica as the strategy sees."""

    def __init__(self, total: int) -> None:
        self.params, self.grads = torch.zeros(total), torch.zeros(total)
        self.ready: Callable[[int, int], None] = lambda start, stop: None

    def on_grad_ready(self, fn: Callable[[int, int], None]) -> None:
        """Keep it."""
        self.ready = fn

    def apply(self) -> None:
        """Do nothing."""


def _check_all_once(spy: Spy, total: int, bucket: int) -> None:
    """The buckets are cut from the end, whatever was announced: so they are the same on every rank."""
    assert spy.begun == [(max(0, stop - bucket), stop) for stop in range(total, 0, -bucket)]


def test_what_one_step_announced_is_forgotten_in_the_next() -> None:
    """A network may leave its last layer out in one step and use it in the next."""
    replica = make_replica(stack)
    announce: list[Callable[[int, int], None]] = []
    replica.on_grad_ready = announce.append  # type: ignore[method-assign]
    spy, strategy = Spy(replica), sync.make("overlap:bucket=30")
    strategy.start(replica, spy.comm)
    announce[0](0, 100)
    strategy.step(replica, spy.comm, 0)
    spy.begun.clear()
    announce[0](100, 238)
    assert spy.begun
    assert min(start for start, _ in spy.begun) >= 100
