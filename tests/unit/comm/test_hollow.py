"""Tensors without memory: what goes through their values is charged, and nothing else is done."""

from typing import Any

import pytest
import torch

from manyhands.comm.hollow import Hollow, hollow
from manyhands.comm.sim import Instant, SimComm, SimWorld


class Meter:
    """Adds up the bytes that are charged."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def __call__(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def t(meter: Meter) -> Hollow:
    return hollow((10**12,), torch.float32, meter)


def test_it_has_the_size_and_no_memory(t: Hollow) -> None:
    assert t.numel() == 10**12
    assert t.nbytes == 4 * 10**12
    assert t.is_meta
    assert not t.is_cuda
    assert t.dtype == torch.float32


@pytest.mark.parametrize(
    "work",
    [
        lambda t: t.mul_(2),
        lambda t: t.add_(t),
        lambda t: t.copy_(t),
        lambda t: t.__iadd__(t),
        lambda t: t.__itruediv__(3),
        lambda t: t.clone(),
        lambda t: t + t,
        lambda t: t.__setitem__(slice(None), t),
    ],
)
def test_work_on_all_values_costs_all_bytes(t: Hollow, meter: Meter, work: Any) -> None:
    work(t)
    assert meter.num_bytes == t.nbytes


@pytest.mark.parametrize(
    "look",
    [
        lambda t: t[5:],
        lambda t: t.view(-1),
        lambda t: t[:100].view(10, 10)[3],
        lambda t: t.split_with_sizes([1, 10**12 - 1]),
        lambda t: torch.empty_like(t),
        lambda t: (t.shape, t.numel(), t.device, t.element_size()),
    ],
)
def test_looking_at_parts_costs_nothing(t: Hollow, meter: Meter, look: Any) -> None:
    look(t)
    assert meter.num_bytes == 0


def test_work_on_a_part_costs_its_bytes(t: Hollow, meter: Meter) -> None:
    t[10:20].add_(1)
    t[100:150] = torch.empty(50, device="meta")
    assert meter.num_bytes == 4 * (10 + 50)


def test_what_comes_of_it_is_charged_too(t: Hollow, meter: Meter) -> None:
    copy = t[:7].clone()
    copy += t[7:14]
    assert isinstance(copy, Hollow)
    assert meter.num_bytes == 4 * 14


def test_work_in_place_gives_the_same_tensor(t: Hollow) -> None:
    before = t
    t += 1
    assert t is before


def test_only_the_first_values_of_a_message_are_kept(t: Hollow, meter: Meter) -> None:
    message = t.new_zeros(1000)
    meter.num_bytes = 0
    message[0], message[1:3] = 7, torch.tensor([1.5, 2.5])
    message[3:] = t[:997]
    assert int(message[0]) == 7
    assert message[1:3].tolist() == [1.5, 2.5]
    assert meter.num_bytes == 4 * 997


def test_first_values_travel_and_are_the_receivers_own(meter: Meter) -> None:
    def work(comm: SimComm) -> list[float]:
        t = hollow((10**9,), torch.float32, meter)
        mail = t.new_zeros(10**9)
        if comm.rank == 0:
            mail[0] = 3
            comm.send(mail, to=1)
            mail[0] = 4
            comm.send(mail, to=1)
            return []
        found = []
        for _ in range(2):
            comm.recv(mail, source=0)
            found.append(float(mail[0]))
        return found

    assert SimWorld(2, Instant()).run(work)[1] == [3.0, 4.0]


def test_every_call_of_a_comm_takes_them(meter: Meter) -> None:
    def work(comm: SimComm) -> tuple[int, ...]:
        t = hollow((6,), torch.float32, meter)
        comm.all_reduce_(t)
        comm.reduce_(t)
        comm.broadcast_(t)
        comm.begin_all_reduce_(t)()
        return (*comm.all_gather(t).shape, *comm.reduce_scatter(t.view(3, 2)).shape)

    assert SimWorld(3, Instant()).run(work) == [(3, 6, 2)] * 3
    assert meter.num_bytes == 0
