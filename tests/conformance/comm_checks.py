"""The laws of a `Comm`, each as a function that every rank of a group runs.

Every rank draws every rank's tensors from the same seeds, so that each can compute by itself what must come out.
A check makes all its calls, whatever it finds, and complains at its end: a rank that is wrong must not leave the
others waiting. The values are small whole numbers, whose sums are exact in every order, unless a check says otherwise.
"""

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhands.comm import ANY, Comm
from manyhands.comm.exact import ExactComm, subtrees
from manyhands.comm.traced import TracedComm
from manyhands.training.job import Job
from manyhands.training.watch import Watch

DTYPES = (torch.float32, torch.float64, torch.int64)
SHAPES = ((0,), (1,), (7,), (30,), (3, 5), (2, 0, 4), (2, 3, 4), (8209,))
"""Empty, single, not divisible by 2, 3 or 5, divisible by all, of more dimensions, and beyond a small message."""

LARGE, LARGE_ROUNDS = 100_000, 4
"""Numbers in a message that no engine buffers, and how often every rank is the root of such messages."""

PATIENCE_S = 3.0
"""How long a call that should return at once is waited for, so that one that hangs is a finding, not the end."""

Check = Callable[[Comm], None]


class Findings:
    """What a check found wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def same(self, found: object, expected: object, *what: object) -> None:
        """Note it unless the two are equal."""
        if found != expected:
            self.wrong.append(f"{what}: {found} instead of {expected}")

    def equal(self, found: Tensor, expected: Tensor, *what: object) -> None:
        """Note it unless type, shape and every bit are equal."""
        self.same(found.dtype, expected.dtype, "type", *what)
        self.same(found.shape, expected.shape, "shape", *what)
        if not torch.equal(found, expected):
            self.wrong.append(f"{what}: {found} instead of {expected}")


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
        told = comm.all_gather(torch.tensor([comm.rank, comm.size]))
        found.same(told.tolist(), [[rank, comm.size] for rank in range(comm.size)])


def check_all_reduce(comm: Comm) -> None:
    """Every rank has the sum, in the same tensor."""
    with findings() as found:
        for seed, shape, dtype in cases():
            t = draw(seed, comm.rank, shape, dtype)
            comm.all_reduce_(t)
            found.equal(t, everyone(comm, seed, shape, dtype).sum(0), dtype, shape)


def check_all_reduce_same_bits(comm: Comm) -> None:
    """The sum is near the true one and has the same bits everywhere: replicas that apply it must not drift apart."""
    with findings() as found:
        for seed, shape, dtype in cases():
            if not dtype.is_floating_point:
                continue
            t = draw_reals(seed, comm.rank, shape, dtype)
            comm.all_reduce_(t)
            for rank, other in enumerate(comm.all_gather(t)):
                found.equal(other, t, "bits of rank", rank, dtype, shape)
            total = torch.stack([draw_reals(seed, r, shape, torch.float64) for r in range(comm.size)]).sum(0)
            near = torch.allclose(t.double(), total, rtol=0, atol=20 * comm.size * torch.finfo(dtype).eps)
            found.same(near, True, "near the true sum", dtype, shape)


def check_begun_all_reduce(comm: Comm) -> None:
    """What is begun and ended is an all-reduce to round-off, with the same bits everywhere, in the same tensor."""
    with findings() as found:
        for seed, shape, dtype in cases():
            make = draw_reals if dtype.is_floating_point else draw
            t, expected = make(seed, comm.rank, shape, dtype), make(seed, comm.rank, shape, dtype)
            end = comm.begin_all_reduce_(t)
            found.same(end(), None, "the end returns")
            comm.all_reduce_(expected)
            found.same(_near(t, expected), True, "as all_reduce_", dtype, shape)
            for rank, other in enumerate(comm.all_gather(t)):
                found.equal(other, t, "bits of rank", rank, dtype, shape)


def check_begun_all_reduce_is_the_sum(comm: Comm) -> None:
    """Every rank has the sum, also of a part of a tensor, whose rest is left alone."""
    with findings() as found:
        for seed, shape, dtype in cases():
            t = draw(seed, comm.rank, shape, dtype)
            comm.begin_all_reduce_(t)()
            found.equal(t, everyone(comm, seed, shape, dtype).sum(0), dtype, shape)
        t, total = draw(5, comm.rank, (40,), torch.float32), everyone(comm, 5, (40,), torch.float32).sum(0)
        before = t.clone()
        comm.begin_all_reduce_(t[7:30])()
        found.equal(t, torch.cat([before[:7], total[7:30], before[30:]]), "a part")


def check_several_all_reduces_in_flight(comm: Comm) -> None:
    """Buckets of one tensor are begun while others are on their way, by ranks that come early and late."""
    with findings() as found:
        for round_, bucket in enumerate((1, 7, 100, 5000)):
            t, ends = draw(round_, comm.rank, (300,), torch.float64), []
            for number, stop in enumerate(range(300, 0, -bucket)):
                if number % (comm.size + 7) == comm.rank:
                    time.sleep(0.001)
                ends.append(comm.begin_all_reduce_(t[max(0, stop - bucket) : stop]))
            for end in ends:
                end()
            found.equal(t, everyone(comm, round_, (300,), torch.float64).sum(0), "buckets of", bucket)
            after = torch.tensor([comm.rank])
            comm.all_reduce_(after)
            found.same(after.item(), sum(range(comm.size)), "an all_reduce_ afterwards")


def check_begun_and_ended_in_turns(comm: Comm) -> None:
    """Some end while later ones go on, always in the order in which they began."""
    with findings() as found:
        tensors = [draw(i, comm.rank, (11 + i,), torch.float32) for i in range(9)]
        flying = []
        for t in tensors:
            flying.append(comm.begin_all_reduce_(t))
            if len(flying) == 3:
                flying.pop(0)()
        for end in flying:
            end()
        for i, t in enumerate(tensors):
            found.equal(t, everyone(comm, i, (11 + i,), torch.float32).sum(0), i)


def check_sums_of_parts(comm: Comm) -> None:
    """One rank that has everybody's tensors can sum them by itself, and leaves them as they are."""
    with findings() as found:
        for seed, shape, dtype in cases():
            parts = list(everyone(comm, seed, shape, dtype))
            found.equal(comm.add(parts), everyone(comm, seed, shape, dtype).sum(0), dtype, shape)
            found.equal(torch.stack(parts), everyone(comm, seed, shape, dtype), "the parts", dtype, shape)


def check_reduce(comm: Comm) -> None:
    """Every root in turn has the sum."""
    with findings() as found:
        for seed, shape, dtype in cases():
            for root in range(comm.size):
                t = draw(seed + root, comm.rank, shape, dtype)
                comm.reduce_(t, root)
                if comm.rank == root:
                    found.equal(t, everyone(comm, seed + root, shape, dtype).sum(0), dtype, shape, "root", root)


def check_broadcast(comm: Comm) -> None:
    """Every rank has the root's tensor, whichever the root is; the root still has it too."""
    with findings() as found:
        for seed, shape, dtype in cases():
            for root in range(comm.size):
                t = draw(seed, comm.rank, shape, dtype)
                comm.broadcast_(t, root)
                found.equal(t, draw(seed, root, shape, dtype), dtype, shape, "root", root)


def check_default_root(comm: Comm) -> None:
    """Without a root it is rank 0."""
    with findings() as found:
        t, u = draw(1, comm.rank, (5,), torch.float32), draw(2, comm.rank, (5,), torch.float32)
        comm.broadcast_(t)
        comm.reduce_(u)
        found.equal(t, draw(1, 0, (5,), torch.float32), "broadcast_")
        if comm.rank == 0:
            found.equal(u, everyone(comm, 2, (5,), torch.float32).sum(0), "reduce_")


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
        found.same([bytes(row.tolist()).decode() for row in letters], [f"rank-{r}" for r in range(comm.size)])
        found.equal(scalars, torch.arange(comm.size).float())


def check_reduce_scatter(comm: Comm) -> None:
    """Every rank has its own row of the sum."""
    with findings() as found:
        for seed, shape, dtype in cases():
            whole = (comm.size, *shape)
            row = comm.reduce_scatter(draw(seed, comm.rank, whole, dtype))
            found.equal(row, everyone(comm, seed, whole, dtype).sum(0)[comm.rank], dtype, shape)


def check_all_gather_leaves_its_argument(comm: Comm) -> None:
    """A call without a trailing underscore does not change what it is given."""
    with findings() as found:
        for seed, shape, dtype in cases():
            t = draw(seed, comm.rank, shape, dtype)
            comm.all_gather(t)
            found.equal(t, draw(seed, comm.rank, shape, dtype), dtype, shape)


def check_reduce_scatter_leaves_its_argument(comm: Comm) -> None:
    """A call without a trailing underscore does not change what it is given."""
    with findings() as found:
        for seed, shape, dtype in cases():
            t = draw(seed, comm.rank, (comm.size, *shape), dtype)
            comm.reduce_scatter(t)
            found.equal(t, draw(seed, comm.rank, (comm.size, *shape), dtype), dtype, shape)


def check_results_are_ones_own(comm: Comm) -> None:
    """What a rank does to a result, or to its argument afterwards, no other rank sees."""
    with findings() as found:
        gathered = comm.all_gather(torch.full((3,), float(comm.rank)))
        row = comm.reduce_scatter(torch.full((comm.size, 3), float(comm.rank)))
        summed, cast = torch.full((3,), float(comm.rank)), torch.full((3,), float(comm.rank))
        comm.all_reduce_(summed)
        comm.broadcast_(cast)
        mine, total = 1000.0 * (comm.rank + 1), float(sum(range(comm.size)))
        for t in (gathered, row, summed, cast):
            t += mine
        comm.barrier()
        found.equal(gathered[:, 0], torch.arange(comm.size) + mine, "all_gather")
        found.equal(row, torch.full((3,), total + mine), "reduce_scatter")
        found.equal(summed, torch.full((3,), total + mine), "all_reduce_")
        found.equal(cast, torch.full((3,), mine), "broadcast_")


def check_many_in_a_row(comm: Comm) -> None:
    """Ranks that come early and late, and calls that follow at once on the same tensor, do not mix."""
    with findings() as found:
        t = torch.arange(11) + comm.rank
        expected = [comm.size * i + sum(range(comm.size)) for i in range(11)]
        for i in range(2 * comm.size + 3):
            if i % comm.size == comm.rank:
                time.sleep(0.002)
            comm.all_reduce_(t)
            found.same(t.tolist(), expected, "all_reduce_ of round", i)
            root = i % comm.size
            t += comm.rank
            comm.reduce_(t, root)
            comm.broadcast_(t, root)
            found.same(t.tolist(), [comm.size * e + sum(range(comm.size)) for e in expected], "round", i)
            t = comm.all_gather(torch.arange(11) + comm.rank)[comm.rank].clone()


def check_ring(comm: Comm) -> None:
    """A tensor handed once round the ring comes back; each rank has held everybody's."""
    with findings() as found:
        for seed, shape, dtype in cases():
            t = draw(seed, comm.rank, shape, dtype)
            for hop in range(1, comm.size + 1):
                received = torch.empty_like(t)
                source = _shift(comm, t, received, tag=hop)
                found.equal(t, draw(seed, (comm.rank - hop + 1) % comm.size, shape, dtype), "sent", dtype, shape)
                t = received
                found.same(source, (comm.rank - 1) % comm.size, "sender")
                found.equal(t, draw(seed, (comm.rank - hop) % comm.size, shape, dtype), "got", dtype, shape, hop)


def check_messages_keep_order_and_tags(comm: Comm) -> None:
    """Messages of one tag arrive in the order sent; another tag's wait until they are asked for."""
    with findings() as found:
        if comm.size == 1:
            return
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for tag, value in ((1, 10), (2, 20), (1, 11), (2, 21), (1, 12)):
            comm.send(torch.tensor([value, comm.rank]), after, tag)
        got = []
        for tag in (2, 1, 1, 2, 1):
            t = torch.zeros(2, dtype=torch.int64)
            comm.recv(t, before, tag)
            got.append(t.tolist())
        found.same(got, [[value, before] for value in (20, 10, 11, 21, 12)])


def check_a_source_can_be_chosen(comm: Comm) -> None:
    """A receiver that names a sender gets its message, though others' came first."""
    with findings() as found:
        if comm.rank == 0:
            comm.barrier()
            for source in range(comm.size - 1, 0, -1):
                t = torch.zeros(1)
                found.same(comm.recv(t, source, tag=3), source, "sender")
                found.same(t.item(), float(source), "message")
        else:
            comm.send(torch.tensor([float(comm.rank)]), 0, tag=3)
            comm.barrier()


def check_send_takes_a_copy(comm: Comm) -> None:
    """A tensor may be changed as soon as `send` returns."""
    with findings() as found:
        if comm.size == 1:
            return
        t = torch.full((5,), float(comm.rank))
        comm.send(t, (comm.rank + 1) % comm.size)
        t.fill_(-1)
        received = torch.empty(5)
        comm.recv(received, (comm.rank - 1) % comm.size)
        found.equal(received, torch.full((5,), float((comm.rank - 1) % comm.size)))


def check_large_messages_of_many_senders(comm: Comm) -> None:
    """Messages too large to be buffered arrive whole, though every other rank sends and receives at the same time."""
    with findings() as found:
        for i, root in enumerate([*range(comm.size)] * LARGE_ROUNDS):
            others = [rank for rank in range(comm.size) if rank != root]
            t = torch.empty(LARGE)
            if comm.rank == root:
                for rank in others:
                    comm.recv(t, rank)
                    found.same(bool((t == 1000 * i + rank).all()), True, "to the root", root, rank)
                for rank in others:
                    comm.send(torch.full((LARGE,), -1000.0 * i - rank), rank)
            else:
                comm.send(torch.full((LARGE,), 1000.0 * i + comm.rank), root)
                comm.recv(t, root)
                found.same(bool((t == -1000 * i - comm.rank).all()), True, "from the root", root, comm.rank)


def check_send_to_oneself(comm: Comm) -> None:
    """A message to one's own rank is kept until it is received, as the comm of one rank does."""
    with findings() as found:
        sender = threading.Thread(target=comm.send, args=(torch.tensor([7.0]), comm.rank, 5), daemon=True)
        sender.start()
        sender.join(PATIENCE_S)
        found.same(sender.is_alive(), False, "send still waits for a receiver")
        t = torch.zeros(1)
        comm.recv(t, comm.rank, 5)  # also lets a sender go that does wait
        sender.join()
        found.equal(t, torch.tensor([7.0]))


def check_any_source(comm: Comm) -> None:
    """A receiver that takes anybody's message gets each once, and is told whose it is."""
    with findings() as found:
        for root in range(comm.size):
            got: list[tuple[int, list[float]]] = []
            if comm.rank == root:
                for _ in range(comm.size - 1):
                    t = torch.zeros(3)
                    source = comm.recv(t, ANY, tag=7)
                    got.append((source, t.tolist()))
                others = [r for r in range(comm.size) if r != root]
                found.same(sorted(got), [(r, draw(root, r, (3,), torch.float32).tolist()) for r in others])
            else:
                comm.send(draw(root, comm.rank, (3,), torch.float32), root, tag=7)
            comm.barrier()


def check_barrier(comm: Comm) -> None:
    """Nobody leaves before all have come."""
    with findings() as found:
        for late in range(comm.size):
            folder = _agree_on_folder(comm)
            if comm.rank == late:
                time.sleep(0.02)
            (folder / str(comm.rank)).touch()
            comm.barrier()
            came = {int(p.name) for p in folder.iterdir()}
            found.same(came, set(range(comm.size)), "late", late)
            comm.barrier()
            if comm.rank == 0:
                shutil.rmtree(folder)


def check_split(comm: Comm) -> None:
    """Ranks of one color form a comm in the same order, which obeys the same laws and leaves the others alone."""
    with findings() as found:
        for color_of in (lambda r: r % 2, lambda r: 0, lambda r: r, lambda r: 9 - r // 2):
            color = color_of(comm.rank)
            members = [r for r in range(comm.size) if color_of(r) == color]
            part = comm.split(color)
            found.same((part.rank, part.size), (members.index(comm.rank), len(members)), "place")
            t, received = torch.tensor([2**comm.rank]), torch.zeros(1, dtype=torch.int64)
            found.same(part.all_gather(t).flatten().tolist(), [2**r for r in members], "all_gather")
            part.all_reduce_(t)
            found.same(t.item(), sum(2**r for r in members), "all_reduce_")
            _shift(part, torch.tensor([comm.rank]), received)
            found.same(received.item(), members[(part.rank - 1) % part.size], "ring")
            whole = comm.all_gather(torch.tensor([comm.rank]))
            found.same(whole.flatten().tolist(), list(range(comm.size)), "the whole afterwards")


def check_split_of_split(comm: Comm) -> None:
    """A part can be split again."""
    with findings() as found:
        part = comm.split(comm.rank % 2).split(0)
        t = torch.tensor([comm.rank])
        part.all_reduce_(t)
        found.same(t.item(), sum(r for r in range(comm.size) if r % 2 == comm.rank % 2))


def check_exact(comm: Comm) -> None:
    """Reductions of subtree sums through `ExactComm` have the bits of one rank that sums the whole tree."""
    lanes = 8
    with findings() as found:
        exact = ExactComm(comm, lanes)
        first, last = subtrees(lanes, comm.size)[comm.rank]
        for seed, (dtype, shape) in enumerate(itertools.product((torch.float32, torch.float64), SHAPES)):
            whole = (comm.size, *shape)
            leaves = [draw_reals(seed, lane, whole, dtype) * 3.0 ** (lane - 4) for lane in range(lanes)]
            expected, own = tree_sum(leaves), tree_sum(leaves[first:last])
            everywhere, at_root, begun = own.clone(), own.clone(), own.clone()
            exact.all_reduce_(everywhere)
            exact.begin_all_reduce_(begun)()
            found.equal(begun, expected, "begin_all_reduce_", dtype, shape)
            parts = [tree_sum(leaves[a:b]) for a, b in subtrees(lanes, comm.size)]
            found.equal(exact.add(parts), expected, "add", dtype, shape)
            exact.reduce_(at_root, comm.size - 1)
            row = exact.reduce_scatter(own.clone())
            found.equal(everywhere, expected, "all_reduce_", dtype, shape)
            if comm.rank == comm.size - 1:
                found.equal(at_root, expected, "reduce_", dtype, shape)
            found.equal(row, expected[comm.rank], "reduce_scatter", dtype, shape)


def check_exact_leaves_its_argument(comm: Comm) -> None:
    """The exact sum's calls without a trailing underscore do not change what they are given either."""
    with findings() as found:
        t = draw(1, comm.rank, (comm.size, 3), torch.float32)
        ExactComm(comm, 8).reduce_scatter(t)
        found.equal(t, draw(1, comm.rank, (comm.size, 3), torch.float32))


def tree_sum(leaves: list[Tensor]) -> Tensor:
    """Add up the leaves of a balanced binary tree, as one rank would."""
    if len(leaves) == 1:
        return leaves[0]
    middle = len(leaves) // 2
    return tree_sum(leaves[:middle]) + tree_sum(leaves[middle:])


NEEDS = {
    "ring": "p2p",
    "messages_keep_order_and_tags": "p2p",
    "a_source_can_be_chosen": "p2p",
    "send_takes_a_copy": "p2p",
    "large_messages_of_many_senders": "p2p",
    "send_to_oneself": "p2p",
    "any_source": "any-source",
    "split": "split",
    "split_of_split": "split",
}
"""The feature without which a check has nothing to check."""

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}


def run_checks(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Run every check as one rank, bare and traced; return the error text of each, empty where it holds."""
    told = {}
    for label, tried in (("bare", comm), ("traced", TracedComm(comm))):
        for number, (name, check) in enumerate(CHECKS.items()):
            watch.at(number)
            if name in NEEDS and NEEDS[name] not in comm.features:
                continue
            try:
                check(tried)
                told[f"{name}-{label}"] = ""
            except AssertionError as error:
                told[f"{name}-{label}"] = str(error) or repr(error)
            comm.barrier()
    return told


def _near(t: Tensor, expected: Tensor) -> bool:
    """Tell whether two sums of the same numbers differ by no more than their order can make."""
    if not t.is_floating_point():
        return torch.equal(t, expected)
    return torch.allclose(t, expected, rtol=0, atol=100 * torch.finfo(t.dtype).eps)


def _generator(seed: int, rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + rank)


def _shift(comm: Comm, t: Tensor, received: Tensor, tag: int = 0) -> int:
    """Send to the next rank and receive from the one before, in an order that needs no buffering."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:  # `check_send_to_oneself` is for this
        received.copy_(t)
        return 0
    if comm.rank % 2 == 0:
        comm.send(t, after, tag)
        return comm.recv(received, before, tag)
    source = comm.recv(received, before, tag)
    comm.send(t, after, tag)
    return source


def _agree_on_folder(comm: Comm) -> Path:
    path = tempfile.mkdtemp(prefix="manyhands-barrier-").encode() if comm.rank == 0 else b""
    letters = torch.tensor(list(path.ljust(500)), dtype=torch.uint8)
    comm.broadcast_(letters)
    return Path(bytes(letters.tolist()).decode().strip())
