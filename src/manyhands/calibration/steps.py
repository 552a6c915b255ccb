"""Time the steps of a task for several numbers of rows, on one rank alone or on several at once.

The steps are those of a run: `allreduce` exchanges the gradients between the backward pass and the optimiser's step, so
that ranks keep together and find their caches as a run would. The exchange does not count as a part of the step; for
one number of rows its calls are timed beside it, and those of `reduce-broadcast`. Several ranks also make silent steps:
at the same time but without an exchange, which tells the cost of sharing the host from the cost of an exchange.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, final

import torch

from manyhands import sync, tasks
from manyhands.calibration.calls import GoOn, Stamp
from manyhands.comm import Comm
from manyhands.comm.self_ import SelfComm
from manyhands.comm.spans import Spans
from manyhands.comm.traced import TracedComm
from manyhands.machine.load import interruptions
from manyhands.record.calibration import RowTimes
from manyhands.replica import Replica
from manyhands.tasks.setup import device_of, load_data, make_replica
from manyhands.training.job import Job
from manyhands.training.meter import StepMeter
from manyhands.training.plan import Plan
from manyhands.training.step import Stepper, compute_gradients
from manyhands.training.watch import Watch

ROUNDS, LEAST_ROUNDS = 5, 2
"""Rounds of a visit; in each, every number of rows gets a block of steps."""
MOST_STEPS = 40
"""Steps of a block."""
WARM_UP, SLOW_S = 2, 0.02
"""Steps of a block that do not count, since they make buffers and fill caches; 1 if a step takes `SLOW_S` or more."""
TIMES = ("compute_ms", "serial_ms", "disturbed", "touch_ms", "update_ms")
"""Keys of a rank's times that two visits add up."""
BATCHES = 256
"""Batches to go through again and again."""


class _Step(NamedTuple):
    """One step on this rank."""

    compute_s: float
    serial_s: float
    exchange_s: float
    disturbed: bool
    """Whether another program took the core in the forward and backward pass; a rank that waits gives it away."""


@final
@dataclass
class _Point:
    """The steps with one number of rows, on this rank."""

    plan: Plan
    rows: int
    steps: list[_Step] = field(default_factory=list)
    """With exchanges."""
    silent: list[_Step] = field(default_factory=list)
    """Of all ranks at the same time, without exchanges."""
    exchanges: dict[str, list[Stamp]] = field(default_factory=lambda: defaultdict(list))
    """Calls of the steps, by their names, where they were timed."""
    touch_ms: list[float] = field(default_factory=list)
    """Reading and writing all gradients right after a step, as a strategy does that scales them."""
    update_ms: list[float] = field(default_factory=list)
    """The optimiser's step alone, after the same step."""
    step_s: float = SLOW_S
    """About the duration of a step, exchange included."""

    @property
    def warm_up(self) -> int:
        """Steps at the beginning of a block that do not count."""
        return WARM_UP if self.step_s < SLOW_S else 1

    def __post_init__(self) -> None:
        self.batches = self.plan.batches(0)[: min(BATCHES, len(self.plan.split) // self.plan.batch_size)]


@final
@dataclass
class _Bench:
    """Makes and times this rank's steps."""

    comm: Comm
    watch: Watch
    replica: Replica

    def __post_init__(self) -> None:
        self._first = self.replica.params.clone()

    def time_block(self, point: _Point, steps: int) -> None:
        """Time a block of steps, a block without exchanges, one pass over the gradients, and one update."""
        point.steps += self.run(point, steps, "allreduce", Spans(), self.comm)
        if self.comm.size > 1:
            self.comm.barrier()
            point.silent += self.run(point, steps, "allreduce", Spans(), SelfComm())
        begun = self.comm.clock()
        self.replica.grads.mul_(1.0)
        touched = self.comm.clock()
        self.replica.apply()
        point.touch_ms.append(1e3 * (touched - begun))
        point.update_ms.append(1e3 * (self.comm.clock() - touched))

    def time_exchanges(self, point: _Point, steps: int) -> None:
        """Make blocks of steps, and note when their calls began and ended."""
        for strategy in ("allreduce", "reduce-broadcast"):
            spans = Spans(steps)
            spans.open(point.warm_up)
            self.run(point, steps, strategy, spans, self.comm)
            for span in spans.kept:
                if span.kind == "comm":
                    point.exchanges[span.name].append((span.start_s, span.end_s))

    def run(self, point: _Point, steps: int, name: str, spans: Spans, comm: Comm) -> list[_Step]:
        """Make a block with the strategy of this name, and return the steps after the warm-up."""
        self.replica.params.copy_(self._first)  # so that no weight diverges
        traced = TracedComm(comm, spans)
        gradients = partial(compute_gradients, self.replica, point.plan)
        meter, strategy, epoch = StepMeter(comm, traced), sync.make(name), point.plan.steps_per_epoch
        stepper = Stepper(self.replica, strategy, traced, meter, epoch, gradients, self.watch.at)
        timed = []
        for step in range(point.warm_up + steps):
            calls, taken = len(traced.collective_s), interruptions()
            stepper.compute(point.batches[step % len(point.batches)], step)
            taken = interruptions() - taken
            computed = comm.clock()
            stepper.update(step)
            ended = comm.clock()
            exchange = sum(traced.collective_s[calls:]) if comm.size > 1 else 0.0
            compute_s, serial_s = stepper.computed_s - stepper.begun_s, ended - computed - exchange
            timed.append(_Step(compute_s, serial_s, exchange, taken > 0))
        return timed[point.warm_up :]


def time_steps(
    comm: Comm, job: Job, watch: Watch, row_counts: Sequence[int], blocks: Sequence[int], seconds: float, go_on: GoOn
) -> list[dict[str, Any]]:
    """Time blocks of steps with each number of rows in turn for about `seconds`; return this rank's times.

    `blocks` has the length of a block with each number of rows, as on an earlier visit; without it, they are chosen.
    """
    task = job.task or tasks.load(job.config.task)
    data = job.data or load_data(task, job.config)
    bench = _Bench(comm, watch, make_replica(task, job.config, data, device_of(job.config, comm.rank)))
    points = []
    for rows in row_counts:
        config = job.config.model_copy(update={"batch_size": rows * comm.size})
        points.append(_Point(Plan(config, data.train, comm.rank, comm.size), rows))
    usual = min(points, key=lambda point: abs(comm.size * point.rows - Plan(job.config, data.train, 0, 1).batch_size))
    began_s = time.perf_counter()
    kinds = 2 if comm.size > 1 else 1  # of steps in a block
    chosen = _choose_blocks(bench, points, seconds / ROUNDS / kinds)
    lengths = list(zip(points, blocks or chosen, strict=True))
    for turn in range(ROUNDS + 1):
        spent = max(turn / ROUNDS, (time.perf_counter() - began_s) / seconds)
        enough = turn == ROUNDS or (spent >= 1 and turn >= LEAST_ROUNDS)
        if not go_on(1.0 if enough else min(spent, 0.99)):
            break
        for point, length in lengths:
            bench.time_block(point, length)
            if comm.size > 1 and point is usual:
                bench.time_exchanges(point, length)
    return [
        {
            **_times(point.rows, length, point.steps),
            "silent": _times(point.rows, length, point.silent),
            "touch_ms": point.touch_ms,
            "update_ms": point.update_ms,
            "exchanges": [
                {"call": call, "num_bytes": bench.replica.grads.nbytes, "stamps": stamps}
                for call, stamps in point.exchanges.items()
            ],
        }
        for point, length in lengths
    ]


def _times(rows: int, block: int, steps: Sequence[_Step]) -> dict[str, Any]:
    return {
        "rows": rows,
        "block": block,
        "compute_ms": [1e3 * step.compute_s for step in steps],
        "serial_ms": [1e3 * step.serial_s for step in steps],
        "disturbed": sum(step.disturbed for step in steps),
    }


def added_steps(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's times of steps with one number of rows, from two visits."""
    both = {name: before[name] + after[name] for name in TIMES if name in before}
    if "silent" in before:
        both["silent"] = added_steps(before["silent"], after["silent"])
        both["exchanges"] = [
            {**call, "stamps": call["stamps"] + later["stamps"]}
            for call, later in zip(before["exchanges"], after["exchanges"], strict=True)
        ]
    return {**before, **both}


def joined_steps(of_ranks: Sequence[Sequence[dict[str, Any]]]) -> list[RowTimes]:
    """Join the ranks' times of each number of rows, block by block."""
    joined = []
    for same in zip(*of_ranks, strict=True):
        block = same[0]["block"]
        starts = range(0, len(same[0]["compute_ms"]), block)
        times = {
            part: [round(ms, 5) for start in starts for rank in same for ms in rank[part][start : start + block]]
            for part in ("compute_ms", "serial_ms")
        }
        if starts:
            disturbed_pct = round(100 * sum(rank["disturbed"] for rank in same) / len(times["compute_ms"]), 1)
            joined.append(RowTimes(rows=same[0]["rows"], block=block * len(same), disturbed_pct=disturbed_pct, **times))
    return joined


def _choose_blocks(bench: _Bench, points: Sequence[_Point], seconds: float) -> list[int]:
    """Try each number of rows, and choose how many steps of each a round of `seconds` shall have.

    The fastest come first, so that the time they do not need is left to the slower ones.
    """
    tried = [sum(bench.run(point, 1, "allreduce", Spans(), bench.comm)[-1][:3]) for point in points]
    agreed = torch.tensor(tried, dtype=torch.float64)
    bench.comm.broadcast_(agreed)
    for point, step_s in zip(points, agreed.tolist(), strict=True):
        point.step_s = step_s
    chosen, left_s = dict[int, int](), seconds
    for done, point in enumerate(sorted(points, key=lambda point: point.step_s)):
        fit = round(left_s / (len(points) - done) / point.step_s) - point.warm_up
        chosen[point.rows] = min(MOST_STEPS, max(1, fit))
        left_s -= (chosen[point.rows] + point.warm_up) * point.step_s
    return [chosen[point.rows] for point in points]
