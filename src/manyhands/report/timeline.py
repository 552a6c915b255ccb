"""The timeline of some steps on every rank, read from a run's trace."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from manyhands.record.run import RunDir

MOST_SPANS = 1500
"""Most spans of one timeline; later steps are left out."""

COLLECTIVES = ("all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter", "barrier")
"""Exchanges in which all ranks take part: the n-th of a step is the same on each of them."""


@dataclass(frozen=True)
class Piece:
    """A span of time that a rank spent on one piece of work."""

    rank: int
    name: str
    kind: str
    """compute, serial, comm or wait."""
    start_ms: float
    end_ms: float
    step: int


@dataclass(frozen=True)
class Timeline:
    """Some steps on every rank; no two pieces of a rank overlap."""

    ranks: list[int]
    pieces: list[Piece]
    starts_ms: dict[int, float]
    """When rank 0 began each step."""


def read_timeline(run: RunDir) -> Timeline | None:
    """Read a run's timeline; None where there is no trace, or a damaged one."""
    try:
        events = json.loads(run.trace.read_text(encoding="utf-8"))["traceEvents"]
        ranks = sorted({int(e["pid"]) for e in events if e["name"] == "process_name"})
        pieces = [_piece(e) for e in events if e["ph"] == "X"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if not pieces or any(piece.rank not in ranks for piece in pieces):
        return None
    pieces = _first_steps(pieces)
    zero_ms = min(piece.start_ms for piece in pieces)
    pieces = [replace(p, start_ms=p.start_ms - zero_ms, end_ms=p.end_ms - zero_ms) for p in pieces]
    starts: dict[int, float] = {}
    for piece in sorted((p for p in pieces if p.rank == ranks[0]), key=lambda p: p.start_ms):
        starts.setdefault(piece.step, piece.start_ms)
    comm = [piece for piece in pieces if piece.kind == "comm"]
    others = [part for piece in pieces if piece.kind != "comm" for part in _without(piece, comm)]
    return Timeline(ranks, [*others, *_waits(comm)], starts)


def _piece(event: dict[str, Any]) -> Piece:
    start_ms, length_ms = float(event["ts"]) / 1e3, float(event["dur"]) / 1e3
    kind = "serial" if event["cat"] == "update" else str(event["cat"])
    if kind not in ("compute", "serial", "comm"):
        raise ValueError(f"no kind of work: {kind}")
    step = int(event["args"]["step"])
    return Piece(int(event["pid"]), str(event["name"]), kind, start_ms, start_ms + length_ms, step)


def _first_steps(pieces: list[Piece]) -> list[Piece]:
    """Leave out later steps where there are too many spans to draw."""
    if len(pieces) <= MOST_SPANS:
        return pieces
    steps = sorted({piece.step for piece in pieces})
    last = steps[max(0, MOST_SPANS * len(steps) // len(pieces) - 1)]
    return [piece for piece in pieces if piece.step <= last]


def _without(piece: Piece, comm: Iterable[Piece]) -> list[Piece]:
    """Return the parts of a piece that no exchange of its rank covers."""
    parts, at = [], piece.start_ms
    inside = (o for o in comm if o.rank == piece.rank and o.end_ms > piece.start_ms and o.start_ms < piece.end_ms)
    for other in sorted(inside, key=lambda o: o.start_ms):
        if other.start_ms > at:
            parts.append(replace(piece, start_ms=at, end_ms=other.start_ms))
        at = max(at, other.end_ms)
    return [*parts, replace(piece, start_ms=at)] if at < piece.end_ms else parts


def _waits(comm: list[Piece]) -> list[Piece]:
    """Split each collective: a rank waited, before the exchange, as long as it spent beyond the shortest rank."""
    calls: dict[tuple[int, int], list[Piece]] = defaultdict(list)
    counts: Counter[tuple[int, int]] = Counter()
    pieces = []
    for piece in sorted(comm, key=lambda p: p.start_ms):
        if piece.name in COLLECTIVES:
            counts[piece.rank, piece.step] += 1
            calls[piece.step, counts[piece.rank, piece.step]].append(piece)
        else:
            pieces.append(piece)
    num_ranks = len({piece.rank for piece in comm})
    for call in calls.values():
        is_matched = len(call) == num_ranks and len({piece.name for piece in call}) == 1
        shortest = min(piece.end_ms - piece.start_ms for piece in call)
        for piece in call:
            start_ms = piece.end_ms - shortest if is_matched else piece.start_ms
            if start_ms > piece.start_ms:
                pieces.append(replace(piece, name=f"waiting for {piece.name}", kind="wait", end_ms=start_ms))
            pieces.append(replace(piece, start_ms=start_ms))
    return pieces
