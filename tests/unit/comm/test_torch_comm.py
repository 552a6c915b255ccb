"""What engine torch's comm promises beyond the laws of every comm: it listens here alone, and tells a lost rank."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.comm import torch_
from manyhands.comm.torch_ import EAGER_BYTES, EAGER_MESSAGES, PeerLost, TorchComm, address_of, connect, listen

Work = Callable[[TorchComm], Any]


def connected(size: int, device: str = "cpu") -> list[TorchComm]:
    """Connect so many ranks, all in this process."""
    listener = listen()
    address = address_of(listener)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(connect, address, r, size, device, listener if r == 0 else None) for r in range(size)]
    return [future.result() for future in futures]


def on_each(comms: list[TorchComm], work: Work) -> list[Any]:
    """Run some work as every rank at once."""
    with ThreadPoolExecutor(len(comms)) as pool:
        return list(pool.map(work, comms))


@pytest.fixture(scope="module")
def three() -> Iterator[list[TorchComm]]:
    """Keep a group of three for many tests."""
    comms = connected(3)
    yield comms
    on_each(comms, TorchComm.close)


@settings(max_examples=25)
@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_sums_begun_together_are_those_made_one_by_one(three: list[TorchComm], lengths: list[int], seed: int) -> None:
    def draw(rank: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        return [torch.randn(n, generator=generator) for n in lengths]

    def work(comm: TorchComm) -> bool:
        together, alone = draw(comm.rank), draw(comm.rank)
        for end in [comm.begin_all_reduce_(t) for t in together]:
            end()
        for t in alone:
            comm.all_reduce_(t)
        return all(map(torch.equal, together, alone))

    assert all(on_each(three, work))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool, torch.float16])
def test_other_types_travel(three: list[TorchComm], dtype: torch.dtype) -> None:
    def work(comm: TorchComm) -> tuple[bool, bool]:
        values = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
        t = values.clone() if comm.rank == 1 else torch.zeros_like(values)
        comm.broadcast_(t, 1)
        return torch.equal(t, values), torch.equal(comm.all_gather(t), torch.stack([values] * 3))

    assert on_each(three, work) == [(True, True)] * 3


def test_more_messages_than_are_kept_arrive_in_order(three: list[TorchComm]) -> None:
    count = 2 * EAGER_MESSAGES + 3

    def work(comm: TorchComm) -> list[float]:
        t, got = torch.zeros(1), []
        for i in range(count):
            if comm.rank == 0:
                comm.send(torch.tensor([float(i)]), 1)
            if comm.rank == 1:
                comm.recv(t, 0)
                got.append(t.item())
        return got

    assert on_each(three, work)[1] == list(range(count))


def test_a_large_message_may_be_changed_once_it_is_sent(three: list[TorchComm]) -> None:
    def work(comm: TorchComm) -> float:
        t = torch.full((EAGER_BYTES,), float(comm.rank))
        if comm.rank == 0:
            comm.send(t, 2)
            t.fill_(-1.0)
        if comm.rank == 2:
            comm.recv(t, 0)
        return t.unique().item()

    assert on_each(three, work) == [-1.0, 1.0, 0.0]


def test_it_listens_on_the_loopback_interface_alone() -> None:
    before = {c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
    comms = connected(2)
    opened = {c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN} - before
    on_each(comms, TorchComm.close)
    assert opened
    assert {address.ip for address in opened} == {"127.0.0.1"}


def test_a_process_may_belong_to_two_worlds() -> None:
    first, second = connected(2), connected(2)

    def work(comm: TorchComm) -> float:
        t = torch.tensor([1.0 if comm in first else 10.0])
        comm.all_reduce_(t)
        return t.item()

    assert on_each(first + second, work) == [2.0, 2.0, 20.0, 20.0]
    on_each(first + second, TorchComm.close)


@pytest.mark.parametrize("wait", ["all_reduce_", "recv", "barrier", "send"])
def test_a_rank_that_is_gone_is_told(wait: str) -> None:
    comms = connected(2)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce_": lambda: comms[0].all_reduce_(torch.zeros(5)),
        "recv": lambda: comms[0].recv(torch.zeros(5), 1),
        "barrier": comms[0].barrier,
        "send": lambda: comms[0].send(torch.zeros(EAGER_BYTES), 1),
    }
    leave = threading.Timer(0.2, lambda: vars(comms[1]).update(_gloo=None))
    leave.start()
    with pytest.raises(PeerLost, match="the connection to another rank broke"):
        calls[wait]()
    leave.join()


def test_our_own_mistakes_are_not_blamed_on_others() -> None:
    with pytest.raises(RuntimeError, match="wrong shape") as caught, torch_.explained():
        raise RuntimeError("wrong shape")
    assert not isinstance(caught.value, PeerLost)


@pytest.mark.parametrize(("gpus", "nccl"), [(("a", "b"), True), (("a", "a"), False)])
def test_nccl_is_for_ranks_with_a_gpu_each(monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, str], nccl: bool) -> None:
    names = iter(gpus)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=next(names)))
    monkeypatch.setattr(torch_, "_nccl", lambda *_: SimpleNamespace(shutdown=lambda: None))
    comms = connected(2, "cuda:0")
    assert [comm._nccl is not None for comm in comms] == [nccl, nccl]
    t = torch.ones(3)
    assert all(comm._at(t)[0] is comm._gloo for comm in comms), "what lies on the CPU does not need it"
    on_each(comms, TorchComm.close)


def test_ranks_with_and_without_a_gpu_go_through_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="a"))
    world = connected(2)
    comms = on_each(world, lambda comm: comm.on("cuda:0" if comm.rank else "cpu"))
    assert [comm._nccl for comm in comms] == [None, None]
    sums = on_each(comms, lambda comm: comm.all_gather(torch.tensor(comm.rank)).tolist())
    assert sums == [[0, 1], [0, 1]]
    assert on_each(world, lambda comm: comm.on("cpu") is comm) == [True, True]
    on_each(comms + world, TorchComm.close)


def test_a_slow_rank_is_waited_for_longer_than_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_, "START_S", 2.0)
    calls: list[tuple[Work, Work]] = [
        (lambda comm: comm.all_reduce_(torch.zeros(5)), lambda comm: comm.all_reduce_(torch.zeros(5))),
        (lambda comm: comm.recv(torch.zeros(5)), lambda comm: comm.send(torch.zeros(5), 0)),
        (lambda comm: comm.recv(torch.zeros(5), 1), lambda comm: comm.send(torch.zeros(5), 0)),
        (
            lambda comm: comm.send(torch.zeros(EAGER_BYTES), 1),
            lambda comm: comm.recv(torch.zeros(EAGER_BYTES), 0),
        ),
    ]
    pairs = [connected(2) for _ in calls]
    everyone = [comm for pair in pairs for comm in pair]

    def work(comm: TorchComm) -> None:
        first, second = calls[everyone.index(comm) // 2]
        if comm.rank == 0:
            first(comm)
        else:
            threading.Event().wait(3.0)
            second(comm)

    on_each(everyone, work)
    on_each(everyone, TorchComm.close)


def test_a_rank_that_never_comes_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_, "START_S", 0.5)
    listener = listen()
    with pytest.raises(PeerLost):
        connect(address_of(listener), 0, 2, listener=listener)


def test_an_abort_is_seen_by_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr("os._exit", statuses.append)
    comms = connected(2)
    assert not comms[1].aborted()
    comms[0].abort(3)
    assert statuses == [3]
    comms[1]._store.wait(["aborted"])  # the word of it travels on its own
    assert comms[1].aborted()
    on_each(comms, TorchComm.close)


def test_the_address_that_another_host_sees() -> None:
    assert torch_.own_address("127.0.0.1") == "127.0.0.1"
    assert torch_.own_address("localhost") in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("seen", "places"),
    [
        (["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"]),
        (["127.0.1.1", "10.0.0.2"], ["way to 10.0.0.2", "10.0.0.2"]),
        (["127.0.1.1", "127.0.1.1"], ["127.0.0.1", "127.0.0.1"]),
    ],
    ids=["others", "a-host-that-calls-itself-loopback", "one-host"],
)
def test_ranks_listen_where_the_others_reach_them(
    monkeypatch: pytest.MonkeyPatch, seen: list[str], places: list[str]
) -> None:
    monkeypatch.setattr(torch_, "own_address", lambda peer: f"way to {peer}")
    store = torch_.dist.HashStore()

    def place(rank: int) -> torch_.Place:
        return torch_._listening_place(store, rank, 2, "head", seen[rank], "")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(place, range(2))) == places


def test_the_users_choice_of_interfaces_comes_first() -> None:
    store = torch_.dist.HashStore()
    assert torch_._listening_place(store, 0, 1, "head", "10.0.0.1", "ib0,ib1") == ("ib0", "ib1")
    assert torch_._listening_place(store, 0, 1, "127.0.0.1", "", "ib0") == torch_.LOOPBACK
    (loopback,) = [name for name, found in psutil.net_if_addrs().items() if "127.0.0.1" in {a.address for a in found}]
    TorchComm(store, 0, 1, at=(loopback,)).close()


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("[::1]", True), ("10.0.0.5", False), ("node127.cluster", False)],
)
def test_only_the_loopback_interface_is_local(host: str, local: bool) -> None:
    assert torch_.is_loopback(host) == local
