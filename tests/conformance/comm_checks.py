"""The laws of a `Comm`, each as a function that every rank of a group runs.

Every rank draws every rank's tensors from the same seeds, so that each can compute by itself what must come out.
A check makes all its calls, whatever it finds, and complains at its end: a rank that is wrong must not leave the
others waiting.
The values are small whole numbers, whose sums are exact in every order, unless a check says otherwise.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhands.comm import ANY, Comm
from manyhands.comm.exact import ExactComm, join, subtrees
from manyhands.comm.traced import TracedComm
from manyhands.training import Job
from manyhands.watch import Watch

DTYPES = (torch.float32, torch.float64, torch.int64)
SHAPES = ((0,), (1,), (7,), (30,), (3, 5), (2, 0, 4), (2, 3, 4), (8209,))
"""Empty, single, not divisible by 2, 3 or 5, divisible by all, of more dimensions, and beyond the small-message size."""

Check = Callable[[Comm], None]


class Findings:
    """What a check found wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def true(self, condition: bool, what: str) -> None:
        """Note it unless the condition holds."""
        if not condition:
            self.wrong.append(what)

    def equal(self, found: Tensor, expected: Tensor, *what: object) -> None:
        """Note it unless type, shape and every bit are equal."""
        self.true(found.dtype == expected.dtype, f"{what}: {found.dtype} instead of {expected.dtype}")
        self.true(
            found.shape == expected.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
        )
        self.true(torch.equal(found, expected), f"{what}: {found} instead of {expected}")


@contextmanager
def findings() -> Iterator[Findings]:
    """Collect what is wrong, and raise it at the end."""
    found = Findings()
    yield found
    assert not found.wrong, "\n".join(found.wrong[:5])


def draw(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the whole numbers that this rank contributes."""
    return torch.randint(-99, 100, shape, generator=_generator(seed, rank)).to(dtype)


def draw_reals(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return numbers whose sum depends on the order."""
    return torch.randn(shape, generator=_generator(seed, rank), dtype=torch.float64).to(dtype)


def _generator(seed: int, rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + rank)


def everyone(comm: Comm, seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return what all ranks contribute, stacked."""
    return torch.stack([draw(seed, rank, shape, dtype) for rank in range(comm.size)])


def cases() -> Iterator[tuple[int, tuple[int, ...], torch.dtype]]:
    """Yield a seed, a shape and a type for each case."""
    for seed, (shape, dtype) in enumerate(itertools.product(SHAPES, DTYPES)):
        yield seed, shape, dtype


def check_rank_and_size(comm: Comm) -> None:
    """The ranks are 0 to size - 1, each once."""
    with findings() as found:
        ranks = comm.all_gather(torch.tensor([comm.rank, comm.size]))
        found.true(ranks[:, 0].tolist() == list(range(comm.size)), "")
        found.true(set(ranks[:, 1].tolist()) == {comm.size}, "")


def check_all_reduce(comm: Comm) -> None:
    """Every rank has the sum, in the same tensor."""
    with findings() as found:
        for seed, shape, dtype in cases():
            t = draw(seed, comm.rank, shape, dtype)
            address = t.data_ptr()
            comm.all_reduce_(t)
            found.equal(t, everyone(comm, seed, shape, dtype).sum(0), dtype, shape)
            found.true(t.data_ptr() == address, "")


def check_all_reduce_same_bits(comm: Comm) -> None:
    """The sum is near the true one and has the same bits everywhere: replicas that apply it must not drift apart."""
    with findings() as found:
        for seed, shape, dtype in cases():
            if not dtype.is_floating_point:
                continue
            t = draw_reals(seed, comm.rank, shape, dtype)
            comm.all_reduce_(t)
            results = comm.all_gather(t)
            total = sum(draw_reals(seed, rank, shape, torch.float64) for rank in range(comm.size))
            assert isinstance(total, Tensor)
            for rank, other in enumerate(results):
                found.true(torch.equal(other, t), f"rank {rank} has other bits for {dtype} {shape}")
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(t.double(), total, rtol=10 * eps, atol=10 * comm.size * eps)


def check_reduce(comm: Comm) -> None:
    """Every root in turn has the sum."""
    with findings() as found:
        for seed, shape, dtype in cases():
            for root in range(comm.size):
                t = draw(seed + root, comm.rank, shape, dtype)
                comm.reduce_(t, root)
                if comm.rank == root:
                    found.equal(t, everyone(comm, seed + root, shape, dtype).sum(0), dtype, shape, root)


def check_broadcast(comm: Comm) -> None:
    """Every rank has the root's tensor, whichever the root is."""
    with findings() as found:
        for seed, shape, dtype in cases():
            for root in range(comm.size):
                t = draw(seed, comm.rank, shape, dtype)
                comm.broadcast_(t, root)
                found.equal(t, draw(seed, root, shape, dtype), dtype, shape, root)


def check_default_root(comm: Comm) -> None:
    """Without a root it is rank 0."""
    with findings() as found:
        t, u = draw(1, comm.rank, (5,), torch.float32), draw(2, comm.rank, (5,), torch.float32)
        comm.broadcast_(t)
        comm.reduce_(u)
        found.true(torch.equal(t, draw(1, 0, (5,), torch.float32)), "")
        if comm.rank == 0:
            found.true(torch.equal(u, everyone(comm, 2, (5,), torch.float32).sum(0)), "")


def check_all_gather(comm: Comm) -> None:
    """Every rank has everybody's tensor in rank order."""
    with findings() as found:
        for seed, shape, dtype in cases():
            stacked = comm.all_gather(draw(seed, comm.rank, shape, dtype))
            found.equal(stacked, everyone(comm, seed, shape, dtype), dtype, shape)


def check_all_gather_of_bytes_and_scalars(comm: Comm) -> None:
    """Names travel as bytes, losses as tensors without dimensions."""
    with findings() as found:
        letters = comm.all_gather(torch.tensor(list(f"rank-{comm.rank}".encode()), dtype=torch.uint8))
        scalars = comm.all_gather(torch.tensor(float(comm.rank)))
        found.true([bytes(row.tolist()).decode() for row in letters] == [f"rank-{r}" for r in range(comm.size)], "")
        found.true(scalars.tolist() == [float(r) for r in range(comm.size)], "")


def check_reduce_scatter(comm: Comm) -> None:
    """Every rank has its own row of the sum."""
    with findings() as found:
        for seed, shape, dtype in cases():
            whole = (comm.size, *shape)
            row = comm.reduce_scatter(draw(seed, comm.rank, whole, dtype))
            found.equal(row, everyone(comm, seed, whole, dtype).sum(0)[comm.rank], dtype, shape)


def check_arguments_stay(comm: Comm) -> None:
    """Calls without a trailing underscore do not change what they are given, nor does a broadcast the root's."""
    with findings() as found:
        for seed, shape, dtype in cases():
            whole = (comm.size, *shape)
            gathered, scattered = draw(seed, comm.rank, shape, dtype), draw(seed, comm.rank, whole, dtype)
            cast, sent = draw(seed, comm.rank, shape, dtype), draw(seed, comm.rank, shape, dtype)
            comm.all_gather(gathered)
            comm.reduce_scatter(scattered)
            comm.broadcast_(cast, comm.size - 1)
            _shift(comm, sent, torch.empty_like(sent))
            found.equal(gathered, draw(seed, comm.rank, shape, dtype), "all_gather", dtype, shape)
            found.equal(scattered, draw(seed, comm.rank, whole, dtype), "reduce_scatter", dtype, shape)
            found.equal(cast, draw(seed, comm.size - 1, shape, dtype), "broadcast_", dtype, shape)
            found.equal(sent, draw(seed, comm.rank, shape, dtype), "send", dtype, shape)


def check_results_are_ones_own(comm: Comm) -> None:
    """What a rank does to a result, or to its argument afterwards, no other rank sees."""
    with findings() as found:
        given = torch.full((comm.size, 3), float(comm.rank))
        gathered, row = comm.all_gather(given), comm.reduce_scatter(given)
        summed = given.clone()
        comm.all_reduce_(summed)
        for t in (given, gathered, row, summed):
            t += 1000 * (comm.rank + 1)
        comm.barrier()
        total = sum(range(comm.size))
        mine = 1000 * (comm.rank + 1)
        found.true(torch.equal(gathered, torch.arange(comm.size).float().view(-1, 1, 1).expand_as(gathered) + mine), "")
        found.true(torch.equal(row, torch.full((3,), float(total + mine))), "")
        found.true(torch.equal(summed, torch.full((comm.size, 3), float(total + mine))), "")


def check_many_in_a_row(comm: Comm) -> None:
    """Ranks that come early and late, and calls that follow at once on the same tensors, do not mix."""
    with findings() as found:
        t = torch.arange(11, dtype=torch.float64) + comm.rank
        expected = sum(torch.arange(11, dtype=torch.float64) + rank for rank in range(comm.size))
        for i in range(20):
            if i % comm.size == comm.rank and i < 10:
                time.sleep(0.002)
            comm.all_reduce_(t)
            comm.broadcast_(t, i % comm.size)
            t /= comm.size
            first = comm.all_gather(t)[0]
            t.copy_(first)
            comm.reduce_(t, i % comm.size)
            comm.broadcast_(t, i % comm.size)
            t /= comm.size
        torch.testing.assert_close(t, expected / comm.size, rtol=1e-12, atol=0)


def check_ring(comm: Comm) -> None:
    """A tensor handed once round the ring comes back; each rank has held everybody's."""
    with findings() as found:
        for seed, shape, dtype in cases():
            t = draw(seed, comm.rank, shape, dtype)
            for hop in range(1, comm.size + 1):
                received = torch.empty_like(t)
                source = _shift(comm, t, received, tag=hop)
                t = received
                found.true(source == (comm.rank - 1) % comm.size, "")
                found.equal(t, draw(seed, (comm.rank - hop) % comm.size, shape, dtype), dtype, shape, hop)


def check_messages_keep_order_and_tags(comm: Comm) -> None:
    """Messages of one tag arrive in the order sent; another tag's wait until they are asked for."""
    with findings() as found:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for tag, value in ((1, 10), (2, 20), (1, 11), (2, 21), (1, 12)):
            comm.send(torch.tensor([value, comm.rank]), after, tag)
        got = []
        for tag in (2, 1, 1, 2, 1):
            t = torch.zeros(2, dtype=torch.int64)
            comm.recv(t, before, tag)
            got.append(t.tolist())
        found.true(got == [[value, before] for value in (20, 10, 11, 21, 12)], "")


def check_send_takes_a_copy(comm: Comm) -> None:
    """A tensor may be changed as soon as `send` returns."""
    with findings() as found:
        t = torch.full((5,), float(comm.rank))
        comm.send(t, (comm.rank + 1) % comm.size)
        t.fill_(-1)
        received = torch.empty(5)
        comm.recv(received, (comm.rank - 1) % comm.size)
        found.true(received.tolist() == [float((comm.rank - 1) % comm.size)] * 5, "")


def check_any_source(comm: Comm) -> None:
    """A receiver that takes anybody's message gets each once, and is told whose it is."""
    with findings() as found:
        for root in range(comm.size):
            got = {}
            if comm.rank == root:
                for _ in range(comm.size - 1):
                    t = torch.zeros(3)
                    source = comm.recv(t, ANY, tag=7)
                    found.true(source not in got, "")
                    got[source] = t
            else:
                comm.send(draw(root, comm.rank, (3,), torch.float32), root, tag=7)
            comm.barrier()
            for source, t in got.items():
                found.true(torch.equal(t, draw(root, source, (3,), torch.float32)), "")
            found.true(set(got) == (set(range(comm.size)) - {root} if comm.rank == root else set()), "")


def check_barrier(comm: Comm) -> None:
    """Nobody leaves before all have come."""
    with findings() as found:
        for late in range(comm.size):
            folder = _agree_on_folder(comm)
            if comm.rank == late:
                time.sleep(0.02)
            (folder / str(comm.rank)).touch()
            comm.barrier()
            came = {p.name for p in folder.iterdir()}
            comm.barrier()
            if comm.rank == 0:
                for p in folder.iterdir():
                    p.unlink()
                folder.rmdir()
            found.true(came == {str(r) for r in range(comm.size)}, "")


def check_split(comm: Comm) -> None:
    """Ranks of one color form a comm in the same order, which obeys the same laws and leaves the others alone."""
    with findings() as found:
        for color_of in (lambda r: r % 2, lambda r: 0, lambda r: r, lambda r: -(r // 2) + 9):
            color = color_of(comm.rank)
            members = [r for r in range(comm.size) if color_of(r) == color]
            part = comm.split(color)
            found.true((part.rank, part.size) == (members.index(comm.rank), len(members)), "")
            t = torch.tensor([2**comm.rank])
            seen = part.all_gather(t).flatten().tolist()
            part.all_reduce_(t)
            received = torch.zeros(1, dtype=torch.int64)
            _shift(part, torch.tensor([comm.rank]), received)
            whole = comm.all_gather(torch.tensor([comm.rank])).flatten().tolist()
            found.true(seen == [2**r for r in members], "")
            found.true(t.item() == sum(2**r for r in members), "")
            found.true(received.item() == members[(part.rank - 1) % part.size], "")
            found.true(whole == list(range(comm.size)), "")


def check_split_of_split(comm: Comm) -> None:
    """A part can be split again."""
    with findings() as found:
        part = comm.split(comm.rank % 2).split(0)
        t = torch.tensor([comm.rank])
        part.all_reduce_(t)
        found.true(t.item() == sum(r for r in range(comm.size) if r % 2 == comm.rank % 2), "")


def check_exact(comm: Comm) -> None:
    """Reductions of subtree sums through `ExactComm` have the bits of one rank that sums the whole tree."""
    with findings() as found:
        lanes = 8
        exact = ExactComm(comm, lanes)
        first, last = subtrees(lanes, comm.size)[comm.rank]
        for dtype in (torch.float32, torch.float64):
            for seed, shape in enumerate(SHAPES):
                whole = (comm.size, *shape)
                leaves = [draw_reals(seed, lane, whole, dtype) * 3.0 ** (lane - 4) for lane in range(lanes)]
                expected, own = tree_sum(leaves), tree_sum(leaves[first:last])
                results = [own.clone() for _ in range(3)]
                exact.all_reduce_(results[0])
                exact.reduce_(results[1], comm.size - 1)
                row = exact.reduce_scatter(results[2])
                found.true(torch.equal(results[0], expected), f"all_reduce_ of {dtype} {shape}")
                found.true(comm.rank != comm.size - 1 or torch.equal(results[1], expected), f"reduce_ of {dtype} {shape}")
                found.true(torch.equal(row, expected[comm.rank]), f"reduce_scatter of {dtype} {shape}")


def tree_sum(leaves: list[Tensor]) -> Tensor:
    """Add up the leaves of a balanced binary tree, as one rank would."""
    if len(leaves) == 1:
        return leaves[0]
    middle = len(leaves) // 2
    return tree_sum(leaves[:middle]) + tree_sum(leaves[middle:])


assert torch.equal(tree_sum([torch.ones(1)] * 4), join([torch.ones(1)] * 4, subtrees(4, 4)))

NEEDS = {
    "ring": "p2p",
    "messages_keep_order_and_tags": "p2p",
    "send_takes_a_copy": "p2p",
    "arguments_stay": "p2p",
    "any_source": "any-source",
    "split": "split",
    "split_of_split": "split",
}
"""The feature without which a check has nothing to check."""

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


def applies(check: str, features: frozenset[str]) -> bool:
    """Tell whether a comm of these features can be held to this law."""
    return check not in NEEDS or NEEDS[check] in features


def run_checks(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Run every check as one rank, bare and traced; return the error text of each, empty where it holds."""
    told = {}
    for label, tried in (("bare", comm), ("traced", TracedComm(comm))):
        for number, (name, check) in enumerate(CHECKS.items()):
            watch.at(number)
            if not applies(name, comm.features):
                continue
            try:
                check(tried)
                told[f"{name}-{label}"] = ""
            except AssertionError as error:
                told[f"{name}-{label}"] = str(error) or repr(error.__traceback__)
            comm.barrier()
    return told


def _shift(comm: Comm, t: Tensor, received: Tensor, tag: int = 0) -> int:
    """Send to the next rank and receive from the one before, in an order that needs no buffering."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1 or comm.rank % 2 == 0:
        comm.send(t, after, tag)
        return comm.recv(received, before, tag)
    source = comm.recv(received, before, tag)
    comm.send(t, after, tag)
    return source


def _agree_on_folder(comm: Comm) -> Path:
    path = tempfile.mkdtemp(prefix="manyhands-barrier-").encode().ljust(500) if comm.rank == 0 else b" " * 500
    letters = torch.tensor(list(path), dtype=torch.uint8)
    comm.broadcast_(letters)
    return Path(bytes(letters.tolist()).decode().strip())

