"""A timeline of some steps: the computations and calls of each rank, with their start and end."""

import json
from collections.abc import Sequence
from typing import NamedTuple, final


class Span(NamedTuple):
    """One computation or call of a rank; its times are those of the rank's clock."""

    name: str
    kind: str
    """One of compute, update and comm."""
    start_s: float
    end_s: float
    step: int


@final
class Spans:
    """Records the spans of `num_steps` steps, and costs next to nothing in all others."""

    def __init__(self, num_steps: int = 0) -> None:
        self.num_steps, self._steps, self._step = num_steps, range(0), -1
        self.kept: list[Span] = []
        self.zero_s = 0.0
        """This rank's clock at a barrier of all ranks."""

    def open(self, first: int) -> None:
        """Record from step `first` on."""
        self._steps = range(first, first + self.num_steps)

    def at(self, step: int) -> None:
        """Set the number of the current step."""
        self._step = step

    def add(self, name: str, kind: str, start_s: float, end_s: float) -> None:
        """Keep a span, if the current step is recorded."""
        if self._step in self._steps:
            self.kept.append(Span(name, kind, start_s, end_s, self._step))


class RankSpans(NamedTuple):
    """The spans of one rank, and what the timeline says about it."""

    rank: int
    role: str
    host: str
    spans: list[Span]
    zero_s: float


def chrome_trace(ranks: Sequence[RankSpans]) -> str:
    """Return the timeline in the JSON format of Perfetto and Chrome's tracing page, with one process per rank."""
    events = []
    for r in ranks:
        # Ranks of one host share a clock; clocks of different hosts are aligned at the barrier.
        zero_s = ranks[0].zero_s if r.host == ranks[0].host else r.zero_s
        where = {"pid": r.rank, "tid": 0}
        name = {"name": f"rank {r.rank} ({r.role}, {r.host})"}
        events.append({"name": "process_name", "ph": "M", **where, "args": name})
        events.append({"name": "process_sort_index", "ph": "M", **where, "args": {"sort_index": r.rank}})
        for span in r.spans:
            times = {"ts": round((span.start_s - zero_s) * 1e6, 3), "dur": round((span.end_s - span.start_s) * 1e6, 3)}
            about = {"name": span.name, "cat": span.kind, "ph": "X", "args": {"step": span.step}}
            events.append({**about, **where, **times})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"
