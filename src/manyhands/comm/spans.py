"""A timeline of some steps: what a rank did from when to when."""

import json
from collections.abc import Sequence
from typing import NamedTuple, final


class Span(NamedTuple):
    """One thing that a rank did; seconds of its own clock."""

    name: str
    kind: str
    """What it counts as: compute, update or comm."""
    start_s: float
    end_s: float
    step: int


@final
class Spans:
    """Keeps the spans of the steps that were asked for, and costs next to nothing in the others."""

    def __init__(self, num_steps: int = 0) -> None:
        self.num_steps, self._steps, self._step = num_steps, range(0), -1
        self.kept: list[Span] = []
        self.zero_s = 0.0
        """This rank's clock at a moment that was the same for all."""

    def open(self, first: int) -> None:
        """Ask for the steps from this one on."""
        self._steps = range(first, first + self.num_steps)

    def at(self, step: int) -> None:
        """Note that this step has begun."""
        self._step = step

    def add(self, name: str, kind: str, start_s: float, end_s: float) -> None:
        """Keep a span, if it is of a step that was asked for."""
        if self._step in self._steps:
            self.kept.append(Span(name, kind, start_s, end_s, self._step))


class RankSpans(NamedTuple):
    """The spans of one rank, and how to name it."""

    rank: int
    role: str
    host: str
    spans: list[Span]
    zero_s: float


def chrome_trace(ranks: Sequence[RankSpans]) -> str:
    """Write the timeline in the format that Perfetto and Chrome's tracing page open: a process for each rank."""
    if not ranks:
        return json.dumps({"traceEvents": []})
    first, events = ranks[0], []
    for r in ranks:
        # Ranks of one host have one clock; others only the moment that they passed together.
        zero_s = first.zero_s if r.host == first.host else r.zero_s
        where = {"pid": r.rank, "tid": 0}
        name = {"name": f"rank {r.rank} ({r.role}, {r.host})"}
        events.append({"name": "process_name", "ph": "M", **where, "args": name})
        events.append({"name": "process_sort_index", "ph": "M", **where, "args": {"sort_index": r.rank}})
        for span in r.spans:
            times = {"ts": round((span.start_s - zero_s) * 1e6, 3), "dur": round((span.end_s - span.start_s) * 1e6, 3)}
            about = {"name": span.name, "cat": span.kind, "ph": "X", "args": {"step": span.step}}
            events.append({**about, **where, **times})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"
