"""Time the steps of a task for several numbers of rows, on one rank alone or on several at once.

The steps are those of a run: `allreduce` exchanges the gradients between the backward pass and the optimiser's step,
so that ranks keep together and find their caches as a run would. The exchange does not count as a part of the step; for
one number of rows its calls are timed beside it, and those of `reduce-broadcast`. Several ranks make other steps, too,
at the same time but each for itself, which tells what sharing the host costs from what follows an exchange.
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
"""Each number of rows gets a block of steps in each round of a visit."""
MOST_STEPS = 40
"""Steps of a block."""
WARM_UP, SLOW_S = 2, 0.02
"""Steps before those of a block that count: buffers are made for the rows, and caches filled; one, of slow ones."""
TIMES = ("compute_ms", "serial_ms", "disturbed", "touch_ms", "update_ms")
BATCHES = 256
"""Batches to go through again and again."""


@final
@dataclass
class _Point:
    """The steps with one number of rows, on this rank."""

    plan: Plan
    rows: int
    made: list["_Made"] = field(default_factory=list)
    """Steps with their exchanges."""
    exchanges: dict[str, list[Stamp]] = field(default_factory=lambda: defaultdict(list))
    """Calls of the steps, by their names, where these were asked for."""
    silent: list["_Made"] = field(default_factory=list)
    """Steps that all ranks made at the same time, each for itself."""
    touch_ms: list[float] = field(default_factory=list)
    """Going through the gradients right after a step, as a strategy does that scales them."""
    update_ms: list[float] = field(default_factory=list)
    """The optimiser's step alone, after the same step."""
    step_s: float = SLOW_S
    """About what a step takes, exchange included."""

    @property
    def warm_up(self) -> int:
        """Steps at the beginning of a block that do not count."""
        return WARM_UP if self.step_s < SLOW_S else 1

    def __post_init__(self) -> None:
        self.batches = self.plan.batches(0)[: min(BATCHES, len(self.plan.split) // self.plan.batch_size)]


class _Made(NamedTuple):
    """One step on this rank."""

    compute_s: float
    serial_s: float
    exchange_s: float
    disturbed: bool
    """Whether another program took the core in the forward and backward pass; a rank that waits gives it away."""

    @property
    def whole_s(self) -> float:
        """Seconds of the whole step."""
        return self.compute_s + self.serial_s + self.exchange_s


@final
@dataclass
class _Bench:
    """Where this rank makes its steps."""

    comm: Comm
    watch: Watch
    replica: Replica

    def __post_init__(self) -> None:
        self._first = self.replica.params.clone()

    def make_steps(self, point: _Point, steps: int) -> None:
        """Make a block of steps, and one without exchanges; then go once more through the gradients, and apply them."""
        point.made += self.run(point, steps, "allreduce", Spans(), self.comm)
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
        """Make blocks of steps, and note when their calls began and were done."""
        for strategy in ("allreduce", "reduce-broadcast"):
            spans = Spans(steps)
            spans.open(point.warm_up)
            self.run(point, steps, strategy, spans, self.comm)
            for span in spans.kept:
                if span.kind == "comm":
                    point.exchanges[span.name].append((span.start_s, span.end_s))

    def run(self, point: _Point, steps: int, name: str, spans: Spans, comm: Comm) -> list[_Made]:
        """Make steps with the strategy of this name, and return those after the warm-up."""
        self.replica.params.copy_(self._first)  # so that no number ever gets out of hand
        traced = TracedComm(comm, spans)
        gradients = partial(compute_gradients, self.replica, point.plan)
        meter, strategy, epoch = StepMeter(comm, traced), sync.make(name), point.plan.steps_per_epoch
        stepper = Stepper(self.replica, strategy, traced, meter, epoch, gradients, self.watch.at)
        made = []
        for step in range(point.warm_up + steps):
            calls, taken = len(traced.collective_s), interruptions()
            stepper.compute(point.batches[step % len(point.batches)], step)
            taken = interruptions() - taken
            computed = comm.clock()
            stepper.update(step)
            ended = comm.clock()
            exchange = sum(traced.collective_s[calls:]) if comm.size > 1 else 0.0
            compute_s, serial_s = stepper.computed_s - stepper.begun_s, ended - computed - exchange
            made.append(_Made(compute_s, serial_s, exchange, taken > 0))
        return made[point.warm_up :]


def time_steps(
    comm: Comm, job: Job, watch: Watch, rows: Sequence[int], blocks: Sequence[int], seconds: float, go_on: GoOn
) -> list[dict[str, Any]]:
    """Make blocks of steps, as long as asked, with each number of rows in turn until the time is up; return the times
    of this rank."""
    task = job.task or tasks.load(job.config.task)
    data = job.data or load_data(task, job.config)
    bench = _Bench(comm, watch, make_replica(task, job.config, data, device_of(job.config, comm.rank)))
    points = []
    for each in rows:
        config = job.config.model_copy(update={"batch_size": each * comm.size})
        points.append(_Point(Plan(config, data.train, comm.rank, comm.size), each))
    usual = min(points, key=lambda point: abs(comm.size * point.rows - Plan(job.config, data.train, 0, 1).batch_size))
    began_s = time.perf_counter()
    kinds = 2 if comm.size > 1 else 1  # of steps in a block
    chosen = _choose_blocks(bench, points, seconds / ROUNDS / kinds)
    steps = blocks or chosen
    for turn in range(ROUNDS + 1):
        spent = max(turn / ROUNDS, (time.perf_counter() - began_s) / seconds)
        enough = turn == ROUNDS or (spent >= 1 and turn >= LEAST_ROUNDS)
        if not go_on(1.0 if enough else min(spent, 0.99)):
            break
        for point, num in zip(points, steps, strict=True):
            bench.make_steps(point, num)
            if comm.size > 1 and point is usual:
                bench.time_exchanges(point, num)
    return [
        {
            **_times(point.rows, num, point.made),
            "silent": _times(point.rows, num, point.silent),
            "touch_ms": point.touch_ms,
            "update_ms": point.update_ms,
            "exchanges": [
                {"call": call, "num_bytes": bench.replica.grads.nbytes, "stamps": stamps}
                for call, stamps in point.exchanges.items()
            ],
        }
        for point, num in zip(points, steps, strict=True)
    ]


def _times(rows: int, block: int, steps: Sequence[_Made]) -> dict[str, Any]:
    """Return the times of steps with this number of rows, in blocks of so many, as plain JSON."""
    return {
        "rows": rows,
        "block": block,
        "compute_ms": [1e3 * made.compute_s for made in steps],
        "serial_ms": [1e3 * made.serial_s for made in steps],
        "disturbed": sum(made.disturbed for made in steps),
    }


def added_steps(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what a rank saw of steps with so many rows, and what it saw on a later visit."""
    both = {name: before[name] + after[name] for name in TIMES if name in before}
    if "silent" in before:
        both["silent"] = added_steps(before["silent"], after["silent"])
        both["exchanges"] = [
            {**own, "stamps": own["stamps"] + later["stamps"]}
            for own, later in zip(before["exchanges"], after["exchanges"], strict=True)
        ]
    return {**before, **both}


def joined_steps(of_ranks: Sequence[Sequence[dict[str, Any]]]) -> list[RowTimes]:
    """Put the ranks' times together, block by block."""
    found = []
    for same in zip(*of_ranks, strict=True):
        block, ranks = same[0]["block"], len(same)
        starts = range(0, len(same[0]["compute_ms"]), block)

        def together(part: str, same: Sequence[dict[str, Any]] = same, starts: range = starts) -> list[float]:
            return [round(ms, 5) for start in starts for own in same for ms in own[part][start : start + starts.step]]

        compute_ms, serial_ms = together("compute_ms"), together("serial_ms")
        if compute_ms:
            disturbed_pct = round(100 * sum(own["disturbed"] for own in same) / len(compute_ms), 1)
            times = {"compute_ms": compute_ms, "serial_ms": serial_ms, "disturbed_pct": disturbed_pct}
            found.append(RowTimes(rows=same[0]["rows"], block=block * ranks, **times))
    return found


def _choose_blocks(bench: _Bench, points: Sequence[_Point], seconds: float) -> list[int]:
    """Try each number of rows, and choose how many steps of each a round shall have.

    The fastest come first, so that the time they do not need is left to the slower ones.
    """
    tried = [bench.run(point, 1, "allreduce", Spans(), bench.comm)[-1].whole_s for point in points]
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
