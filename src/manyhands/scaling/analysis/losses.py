"""Split the lost time of a step by its causes: what n workers take beyond 1/n of one worker's step.

A step of n workers takes compute + data + serial + comm + waiting, as its typical rank sees it (`ranks`). Ideal would
be the time of the baseline's step × share, where share is the part of the baseline's batch that one of n workers gets:
1/n in a strong sweep, 1 in a weak one. Each part of the step loses its time beyond the baseline's × share. Servers of
the strategy occupy cores, too, and their whole time is a loss of its own. A probe (one worker alone with the batch of
one of n) tells what smaller batches cost in compute; the rest of that loss is the price of sharing a machine. Where all
runs of the probe failed, the two stay one part. In percent of the time of all ranks, the parts sum up to 100 −
efficiency, in every repeat.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from manyhands.measurement.stats import median, partner
from manyhands.record.run import RankSteps
from manyhands.record.sweep import Cause, Cell, Measure, Row
from manyhands.scaling.analysis.measured import Measured
from manyhands.scaling.analysis.ranks import StepView, view


@dataclass(frozen=True)
class Repeat:
    """One run of a row, and what it lost."""

    run: Measure
    view: StepView
    """Its step as the typical rank sees it."""
    lost_ms: dict[Cause, float]
    alone: StepView
    """The step of the baseline."""
    start_ms: float
    """Computing and gathering time of a worker alone that does not grow with its batch."""


@dataclass(frozen=True)
class Loss:
    """A row beside its baseline, and the time that was lost."""

    measured: Measured
    row: Row
    alone: Row
    """The row of the baseline."""

    @property
    def cell(self) -> Cell:
        """The configuration of the row."""
        return self.row.cell

    @property
    def batch(self) -> int:
        """Number of samples in a global batch."""
        return self._first.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the workers see every sample once."""
        return self._first.steps_per_epoch

    @property
    def ranks(self) -> int:
        """Number of ranks, servers included."""
        return self.measured.ranks(self.cell)

    def ms_of(self, percent: float) -> float:
        """Return how long a worker takes in each step for a part that is `percent` of the time of all ranks."""
        return percent / 100 * self.step_ms * self.ranks / self.cell.size

    @property
    def share(self) -> float:
        """The part of the baseline's batch that one worker gets."""
        alone = next(iter(self.measured.good(self.alone.cell).values()))
        return self.batch / self.cell.size / alone.batch_size

    @property
    def step_ms(self) -> float:
        """Median time of a step."""
        assert self.row.step_ms
        return self.row.step_ms.value

    @cached_property
    def probe(self) -> Cell | None:
        """The cell of one worker alone with the batch of one of n; None in a weak sweep."""
        return self.measured.probe(self.cell)

    @property
    def has_probe(self) -> bool:
        """Whether a run of the probe succeeded."""
        return bool(self.measured.good(self.probe))

    @property
    def is_unclear(self) -> bool:
        """Whether small batches and sharing the machine cannot be told apart, for lack of a probe."""
        return self.measured.kind == "strong" and not self.has_probe

    @cached_property
    def parts(self) -> dict[Cause, float]:
        """Percent of the ranks' time lost to each cause: medians over the repeats.

        The parts of a repeat sum up to 100 − efficiency, their medians need not: the difference is `unattributed`.
        """
        assert self.row.efficiency
        parts = {cause: float(np.median(percents)) for cause, percents in self._percents.items()}
        return {**parts, "unattributed": 100 * (1 - self.row.efficiency.value) - sum(parts.values())}

    @cached_property
    def doubtful(self) -> set[Cause]:
        """Causes whose interval includes 0: they cost time in some repeats and saved it in others."""
        intervals = {cause: median(percents) for cause, percents in self._percents.items()}
        return {cause for cause, interval in intervals.items() if interval.low <= 0 <= interval.high}

    @cached_property
    def repeats(self) -> list[Repeat]:
        """The runs of the row, each compared with baseline and probe of the same repeat."""
        return [_repeat(self, i, run) for i, run in self.measured.good(self.cell).items()]

    @property
    def compute_ms(self) -> float:
        """Median computing time of the typical rank."""
        return float(np.median([repeat.view.compute_ms for repeat in self.repeats]))

    @property
    def alone_compute_ms(self) -> float:
        """Median computing time of the baseline."""
        return float(np.median([repeat.alone.compute_ms for repeat in self.repeats]))

    @cached_property
    def slow_rank(self) -> RankSteps | None:
        """The rank that is slow in most repeats; None where there is none."""
        slow = [repeat.view.slow for repeat in self.repeats if repeat.view.slow]
        rank, times = max(Counter(steps.rank for steps in slow).items(), key=lambda item: item[1], default=(0, 0))
        same = sorted((steps for steps in slow if steps.rank == rank), key=lambda steps: steps.median_ms)
        return same[(len(same) - 1) // 2] if 2 * times > len(self.repeats) else None

    @property
    def hosts(self) -> int:
        """Number of hosts that its ranks are on."""
        return self._first.hosts

    @cached_property
    def _percents(self) -> dict[Cause, list[float]]:
        causes = dict.fromkeys(cause for repeat in self.repeats for cause in repeat.lost_ms)
        workers = self.cell.size / self.ranks
        percents: dict[Cause, list[float]] = {
            cause: [repeat.lost_ms.get(cause, 0.0) / repeat.run.step_ms * 100 * workers for repeat in self.repeats]
            for cause in causes
        }
        return percents if workers == 1 else percents | {"servers": [100 * (1 - workers)] * len(self.repeats)}

    @property
    def _first(self) -> Measure:
        return next(iter(self.measured.good(self.cell).values()))


def _repeat(loss: Loss, number: int, run: Measure) -> Repeat:
    """Return what one repeat lost to each cause, compared with baseline and probe of the same repeat."""
    alone_run = partner(loss.measured.good(loss.alone.cell), number)
    share, rows = run.batch_size / loss.cell.size / alone_run.batch_size, run.batch_size / loss.cell.size
    alone = view(alone_run, 1)
    ideal = undisturbed = alone.compute_ms * share
    if probes := loss.measured.good(loss.probe):
        probe = partner(probes, number)
        undisturbed = view(probe, 1).compute_ms * rows / probe.batch_size
    seen = view(run, loss.cell.size, undisturbed / rows, crowded=loss.ranks > loss.measured.cores)
    lost_ms: dict[Cause, float] = {
        "comm": seen.comm_ms - alone.comm_ms * share,
        **seen.waits_ms,
        "serial": seen.serial_ms - alone.serial_ms * share,
    }
    # One worker alone waits for nobody, but has long steps, too.
    lost_ms["wait" if "wait" in lost_ms else "straggler"] -= alone.waiting_ms * share
    if seen.typical or alone.data_ms:
        lost_ms["data"] = seen.data_ms - alone.data_ms * share
    sharing = seen.compute_ms - undisturbed
    crowded = undisturbed * max(0.0, loss.ranks / loss.measured.cores - 1)
    oversubscription = min(max(sharing, 0.0), crowded)
    lost_ms |= {} if loss.is_unclear else {"small-batch": undisturbed - ideal}
    lost_ms["oversubscription"] = oversubscription
    lost_ms["unclear" if loss.is_unclear else "memory"] = sharing - oversubscription
    start_ms = 0.0
    if rows < alone_run.batch_size:
        growth = rows / (alone_run.batch_size - rows)
        for part_ms, whole_ms in ((undisturbed, alone.compute_ms), (seen.data_ms, alone.data_ms)):
            start_ms += min(max(0.0, part_ms - growth * (whole_ms - part_ms)), part_ms)
    return Repeat(run, seen, _taken_from(lost_ms), alone, start_ms if loss.has_probe else 0.0)


def _taken_from(lost_ms: dict[Cause, float]) -> dict[Cause, float]:
    """Return the losses, where those to other programs that are more than all waiting are taken from other parts.

    A rank without a core computes and exchanges for longer as well.
    """
    lost_ms, missing_ms = dict(lost_ms), -lost_ms.get("straggler", 0.0)
    if lost_ms.get("others", 0.0) <= 0 or missing_ms <= 0:
        return lost_ms
    sources: tuple[Cause, ...] = ("comm", "memory", "unclear", "serial", "data")
    room_ms = {cause: max(0.0, lost_ms.get(cause, 0.0)) for cause in sources}
    moved_ms = min(missing_ms, sum(room_ms.values()))
    for cause, room in room_ms.items():
        if room:
            lost_ms[cause] -= moved_ms * room / sum(room_ms.values())
    lost_ms["others"] -= missing_ms - moved_ms
    lost_ms["straggler"] = 0.0
    return lost_ms
