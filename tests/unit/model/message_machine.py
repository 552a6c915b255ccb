"""A small machine that carries out the messages of each algorithm one by one: what the formulas are tested against.

A schedule is a list of rounds. A rank enters a round when it is done with the one before, whatever the others do, and
then posts all its messages of the round. A message starts when both its ranks and both their ports are ready.
Values travel with the messages, so that a schedule which sums wrongly is found out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from manyhands.model.links import Link


@dataclass(frozen=True)
class Message:
    """Some chunks, which the receiver puts in the place of its own or adds to them."""

    source: int
    dest: int
    chunks: tuple[int, ...]
    adds: bool = False


Schedule = list[list[Message]]


class Machine:
    """Ranks with clocks, ports and chunks; rank r's contribution to each of its chunks is the bit r."""

    def __init__(self, size: int, num_chunks: int, link_of: Callable[[int, int], Link], gamma: float = 0.0) -> None:
        self.clock = np.zeros(size)
        self.values = [[1 << rank] * num_chunks for rank in range(size)]
        self._link_of, self._gamma = link_of, gamma
        self._sends_until, self._receives_until = np.zeros(size), np.zeros(size)

    def run(self, schedule: Schedule, chunk_bytes: float) -> float:
        """Carry out all rounds and return when the last rank is done."""
        for messages in schedule:
            self._run_round(messages, chunk_bytes)
        return float(self.clock.max())

    def _run_round(self, messages: list[Message], chunk_bytes: float) -> None:
        entered, sent = self.clock.copy(), [row.copy() for row in self.values]
        for m in messages:
            num_bytes = len(m.chunks) * chunk_bytes
            link = self._link_of(m.source, m.dest)
            ports = (self._sends_until[m.source], self._receives_until[m.dest])
            start = max(entered[m.source], entered[m.dest], *ports)
            self._occupy(m, link, start + link.busy_s(num_bytes))
            arrival = start + link.message_s(num_bytes)
            if m.adds:
                arrival = max(arrival, self.clock[m.dest]) + num_bytes * self._gamma
            self.clock[m.source] = max(self.clock[m.source], start + link.busy_s(num_bytes))
            self.clock[m.dest] = max(self.clock[m.dest], arrival)
            for chunk in m.chunks:
                self.values[m.dest][chunk] = sent[m.source][chunk] + (self.values[m.dest][chunk] if m.adds else 0)

    def _occupy(self, m: Message, link: Link, until: float) -> None:
        self._sends_until[m.source] = self._receives_until[m.dest] = until
        if not link.full_duplex:
            self._receives_until[m.source] = self._sends_until[m.dest] = until


def backwards(schedule: Schedule) -> Schedule:
    """Turn every message round and let it add: a broadcast becomes a reduction, a gather a reduction that scatters."""
    return [[Message(m.dest, m.source, m.chunks, adds=True) for m in messages] for messages in reversed(schedule)]


def among(ranks: list[int], schedule: Schedule) -> Schedule:
    """Let other ranks than 0, 1, 2 … carry out a schedule."""
    return [[Message(ranks[m.source], ranks[m.dest], m.chunks, m.adds) for m in messages] for messages in schedule]


def distances(p: int) -> list[int]:
    """Return the powers of two below p."""
    return [1 << k for k in range((p - 1).bit_length())]


def tree(p: int, chunks_of: Callable[[int, int], tuple[int, ...]]) -> Schedule:
    """Send from rank 0 down a binomial tree; `chunks_of` tells what ranks from one to another get."""
    return [
        [Message(r, r + d, chunks_of(r + d, min(r + 2 * d, p))) for r in range(0, p, 2 * d) if r + d < p]
        for d in reversed(distances(p))
    ]


def broadcast(p: int) -> Schedule:
    """Send chunk 0 down a binomial tree."""
    return tree(p, lambda first, end: (0,))


def scatter(p: int) -> Schedule:
    """Send chunk r to rank r down a binomial tree."""
    return tree(p, lambda first, end: tuple(range(first, end)))


def gather(p: int) -> Schedule:
    """Send chunk r of rank r to rank 0 up a binomial tree."""
    return [[Message(m.dest, m.source, m.chunks) for m in messages] for messages in reversed(scatter(p))]


def ring(p: int) -> Schedule:
    """Pass chunk r of rank r around a ring; even ranks first, since neighbours share half-duplex ports."""
    order = [*range(0, p, 2), *range(1, p, 2)]
    return [[Message(r, (r + 1) % p, ((r - step) % p,)) for r in order] for step in range(p - 1)]


def doubling(p: int) -> Schedule:
    """Give chunk r of rank r to all: in pairs at distances 1, 2, 4 … or, beside powers of two, by Bruck's shifts."""
    if p & (p - 1) == 0:
        blocks = {d: [tuple(range(r - r % d, r - r % d + d)) for r in range(p)] for d in distances(p)}
        return [[Message(r, r ^ d, blocks[d][r]) for r in range(p)] for d in distances(p)]
    return [
        [Message(r, (r - d) % p, tuple((r + j) % p for j in range(min(d, p - d)))) for r in range(p)]
        for d in distances(p)
    ]


def survivors(p: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a power of two of ranks, and the pairs (survivor, other) that bring p down to it."""
    extra = p - (1 << p.bit_length() - 1)
    pairs = [(2 * i, 2 * i + 1) for i in range(extra)]
    return [first for first, _ in pairs] + list(range(2 * extra, p)), pairs


def recursive_doubling(p: int) -> Schedule:
    """All-reduce chunk 0."""
    ranks, pairs = survivors(p)
    hand_in = [Message(other, first, (0,), adds=True) for first, other in pairs]
    butterfly = [[Message(r, r ^ d, (0,), adds=True) for r in range(len(ranks))] for d in distances(len(ranks))]
    return [hand_in, *among(ranks, butterfly), [Message(first, other, (0,)) for first, other in pairs]]


def fold(p: int) -> tuple[list[int], Schedule, Schedule]:
    """Return the survivors of Rabenseifner's first step, the step, and what hands the result to the others."""
    ranks, pairs = survivors(p)
    chunks = tuple(range(len(ranks)))
    low, high = chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]
    swap = [Message(a, b, high, adds=True) for a, b in pairs] + [Message(b, a, low, adds=True) for a, b in pairs]
    hand_over = [Message(b, a, high) for a, b in pairs]
    return ranks, [swap, hand_over], [[Message(a, b, chunks) for a, b in pairs]]


def rabenseifner(p: int) -> Schedule:
    """All-reduce as many chunks as there are survivors."""
    ranks, before, after = fold(p)
    inner = backwards(doubling(len(ranks))) + doubling(len(ranks))
    return before + among(ranks, inner) + after


def rabenseifner_to_root(p: int) -> Schedule:
    """Reduce to rank 0."""
    ranks, before, _ = fold(p)
    return before + among(ranks, backwards(doubling(len(ranks))) + gather(len(ranks)))


@dataclass(frozen=True)
class Plan:
    """How an algorithm is carried out: its messages, and into how many chunks p ranks cut a tensor."""

    schedule: Callable[[int], Schedule]
    num_chunks: Callable[[int], int] = lambda p: 1
    chunk_is_whole: bool = False
    """Whether a chunk is a rank's tensor, not a piece of it."""

    def chunk_bytes(self, p: int, num_bytes: float) -> float:
        """Return the size of a chunk."""
        return num_bytes if self.chunk_is_whole else num_bytes / self.num_chunks(p)


def _power(p: int) -> int:
    return 1 << p.bit_length() - 1


def _one_each(p: int) -> int:
    return p


PLANS: dict[tuple[str, str], Plan] = {
    ("all-reduce", "ring"): Plan(lambda p: backwards(ring(p)) + ring(p), _one_each),
    ("all-reduce", "recursive-doubling"): Plan(recursive_doubling),
    ("all-reduce", "rabenseifner"): Plan(rabenseifner, _power),
    ("all-reduce", "reduce-broadcast"): Plan(lambda p: backwards(broadcast(p)) + broadcast(p)),
    ("reduce", "binomial"): Plan(lambda p: backwards(broadcast(p))),
    ("reduce", "rabenseifner"): Plan(rabenseifner_to_root, _power),
    ("broadcast", "binomial"): Plan(broadcast),
    ("broadcast", "scatter-ring"): Plan(lambda p: scatter(p) + ring(p), _one_each),
    ("broadcast", "scatter-doubling"): Plan(lambda p: scatter(p) + doubling(p), _one_each),
    ("all-gather", "ring"): Plan(ring, _one_each, chunk_is_whole=True),
    ("all-gather", "recursive-doubling"): Plan(doubling, _one_each, chunk_is_whole=True),
    ("reduce-scatter", "pairwise"): Plan(lambda p: backwards(ring(p)), _one_each),
    ("reduce-scatter", "recursive-halving"): Plan(lambda p: backwards(doubling(p)), _one_each),
    ("scatter", "binomial"): Plan(scatter, _one_each, chunk_is_whole=True),
    ("gather", "binomial"): Plan(gather, _one_each, chunk_is_whole=True),
    ("barrier", "dissemination"): Plan(doubling, _one_each),
    ("send", "direct"): Plan(lambda p: [[Message(0, 1, (0,))]]),
}


def rank_has_its_result(call: str, p: int, rank: int, chunks: list[int]) -> bool:
    """Tell whether a rank's chunks are those that a call promises it."""
    total, roots = (1 << p) - 1, [1] * len(chunks)
    everyone = [1 << r for r in range(p)]
    match call:
        case "all-reduce":
            return chunks == [total] * len(chunks)
        case "reduce":
            return rank != 0 or chunks == [total] * len(chunks)
        case "broadcast":
            return chunks == roots
        case "reduce-scatter":
            return chunks[rank] == total
        case "all-gather" | "barrier":
            return chunks == everyone
        case "scatter":
            return chunks[rank] == 1
        case "gather":
            return rank != 0 or chunks == everyone
        case "send":
            return rank > 1 or chunks == roots
    raise AssertionError(f"what does {call} promise?")
