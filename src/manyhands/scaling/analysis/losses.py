"""Split the lost time of a step by its causes: what n workers take beyond 1/n of one worker's step.

A step of n workers takes compute + serial + comm + wait. Ideal would be the time of the baseline's step × share, where
share is the part of the baseline's batch that one of n workers gets: 1/n in a strong sweep, 1 in a weak one. Each part
of the step loses its time beyond the baseline's × share. Servers of the strategy occupy cores, too, and their whole
time is a loss of its own. A probe (one worker alone with the batch of one of n) tells what smaller batches cost in
compute; the rest of that loss is the price of sharing a machine. Where all runs of the probe failed, the two stay one
part. In percent of the time of all ranks, the parts sum up to 100 − efficiency, in every repeat.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from manyhands.measurement.stats import median, partner
from manyhands.record.sweep import Cause, Cell, Measure, Row
from manyhands.scaling.analysis.measured import Measured


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
    def undisturbed_ms(self) -> float:
        """Compute time of one worker alone for the batch of one of n, by the probe or else the baseline."""
        runs = self.measured.good(self.probe) or self.measured.good(self.alone.cell)
        sample_ms = float(np.median([run.compute_ms / run.batch_size for run in runs.values()]))
        return sample_ms * self.batch / self.cell.size

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

        The parts of a repeat sum up to 100 − efficiency, their medians need not. The difference is shared out in
        proportion to the range of each part, so that the sum holds.
        """
        assert self.row.efficiency
        by_repeat = np.array([list(parts.values()) for parts in self._by_repeat])
        middle, spread = np.median(by_repeat, axis=0), np.ptp(by_repeat, axis=0)
        missing = 100 * (1 - self.row.efficiency.value) - middle.sum()
        if spread.any():
            middle += missing * spread / spread.sum()
        return dict(zip(self._by_repeat[0], middle.tolist(), strict=True))

    @cached_property
    def doubtful(self) -> set[Cause]:
        """Causes whose interval includes 0: they cost time in some repeats and saved it in others."""
        intervals = {cause: median([parts[cause] for parts in self._by_repeat]) for cause in self.parts}
        return {cause for cause, interval in intervals.items() if interval.low <= 0 <= interval.high}

    @cached_property
    def _by_repeat(self) -> list[dict[Cause, float]]:
        return [_parts(self, i, run) for i, run in self.measured.good(self.cell).items()]

    @property
    def _first(self) -> Measure:
        return next(iter(self.measured.good(self.cell).values()))


def _parts(loss: Loss, repeat: int, run: Measure) -> dict[Cause, float]:
    """Return the percent lost to each cause in one repeat, compared with baseline and probe of the same repeat."""
    alone = partner(loss.measured.good(loss.alone.cell), repeat)
    share = run.batch_size / loss.cell.size / alone.batch_size
    lost_ms: dict[Cause, float] = {
        "comm": run.comm_ms - alone.comm_ms * share,
        "wait": run.wait_ms - alone.wait_ms * share,
        "serial": run.serial_ms - alone.serial_ms * share,
    }
    ideal = _compute_ms(alone) * share
    undisturbed = ideal
    if probes := loss.measured.good(loss.probe):
        probe = partner(probes, repeat)
        undisturbed = _compute_ms(probe) * run.batch_size / loss.cell.size / probe.batch_size
    sharing = _compute_ms(run) - undisturbed
    crowded = undisturbed * max(0.0, loss.ranks / loss.measured.cores - 1)
    oversubscription = min(max(sharing, 0.0), crowded)
    rest = sharing - oversubscription
    lost_ms |= {} if loss.is_unclear else {"small-batch": undisturbed - ideal}
    lost_ms |= {"oversubscription": oversubscription, "unclear" if loss.is_unclear else "memory": rest}
    workers = loss.cell.size / loss.ranks
    parts = {cause: ms / run.step_ms * 100 * workers for cause, ms in lost_ms.items()}
    return parts if workers == 1 else parts | {"servers": 100 * (1 - workers)}


def _compute_ms(run: Measure) -> float:
    """Return the rest of a step as compute, so that the parts sum up in spite of rounding."""
    return run.step_ms - run.serial_ms - run.comm_ms - run.wait_ms
