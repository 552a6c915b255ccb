"""From predicted steps to table rows: epoch, speed-up, efficiency and cost, each with its interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import pdtr, pdtrik

from manyhands.model.between import gpu_spread
from manyhands.model.cluster import Cluster
from manyhands.model.crowd import step_times
from manyhands.record.simulation import Estimate, SimulationRow
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.spread import between_runs, estimate, estimates

WITHIN = (0.05, 0.95)
"""Levels of a 90 % interval."""
HOPELESS = 100.0
"""Expected failures per restart beyond which no work is ever finished; its exponential is still finite."""


@final
@dataclass(frozen=True)
class Alone:
    """The step of one worker alone on a node that is not slow, the reference of all speed-ups."""

    batch_size: int
    step_s: float
    drawn_s: tuple[float, ...]
    """The step time with each seed."""
    share: float
    """Relative standard deviation between runs."""

    @staticmethod
    def of(predictor: Predictor, batch_size: int) -> "Alone":
        """Predict the step of one worker alone on the whole batch."""
        task, engine = predictor.task, predictor.engine
        speed = predictor.cluster.core_speed if predictor.cluster else 1.0
        alone = predictor.corrected(workers=1)
        step_s, *drawn_s = (
            float(step_times(calibration, task, engine, batch_size, 1).whole_s.mean()) / speed
            for calibration in (alone.calibration, *alone.others)
        )
        spread = between_runs(alone.calibration, task, engine, alone.correction, 1)
        share = math.hypot(spread, gpu_spread(alone.calibration, task, batch_size))
        return Alone(batch_size, step_s, tuple(drawn_s), share)

    @property
    def step_ms(self) -> Estimate:
        """The step time with its interval."""
        return estimate(1e3 * self.step_s, [1e3 * drawn for drawn in self.drawn_s], self.share)


def make_rows(predictions: Sequence[Predicted], alone: Alone, cluster: Cluster | None) -> list[SimulationRow]:
    """Return a table row for each prediction; vectorised, since there may be a hundred thousand."""
    steps_s = np.array([predicted.split.step_s for predicted in predictions])
    shares = np.array([predicted.share for predicted in predictions])
    drawn_s = np.array([predicted.drawn_s for predicted in predictions])
    gains = np.array([predicted.point.batch_size for predicted in predictions]) / alone.batch_size
    steps = estimates(steps_s, drawn_s, shares)
    drawn = gains[:, None] * np.array(alone.drawn_s) / drawn_s
    speed_ups = estimates(gains * alone.step_s / steps_s, drawn, np.hypot(shares, alone.share))
    return [_row(*columns, cluster) for columns in zip(predictions, steps, speed_ups, strict=True)]


def _row(predicted: Predicted, step_s: Estimate, speed_up: Estimate, cluster: Cluster | None) -> SimulationRow:
    point, split, ranks = predicted.point, predicted.split, predicted.point.workers + predicted.servers
    epoch_s, failures = with_failures(step_s.scaled(point.steps_per_epoch), ranks, cluster)
    return SimulationRow(
        by=point.by,
        nodes=point.nodes if point.by == "nodes" or cluster is None else int(cluster.nodes_of(ranks)),
        workers=point.workers,
        servers=predicted.servers,
        sync=predicted.sync,
        batch_size=point.batch_size,
        method=predicted.method,
        step_ms=step_s.scaled(1e3),
        compute_ms=1e3 * split.compute_s,
        serial_ms=1e3 * split.serial_s,
        comm_ms=1e3 * split.comm_s,
        wait_ms=1e3 * split.wait_s,
        epoch_s=epoch_s,
        speed_up=speed_up,
        efficiency=speed_up.scaled(1 / ranks),
        cost=epoch_s.scaled(float(cluster.price(ranks, 1.0))) if cluster and cluster.price_per_hour else None,
        failures=failures,
    )


def with_failures(sound: Estimate, ranks: int, cluster: Cluster | None) -> tuple[Estimate, float]:
    """Return the time of `sound` seconds of work with node failures, and how many are expected.

    Failures are a Poisson process, and each restarts all ranks. At λ failures per second, a restart of R seconds, which
    may fail too, takes (exp λR − 1) / λ on average. The bounds add the 5 % and 95 % quantiles of the lost time.
    """
    if cluster is None or cluster.mtbf_hours is None:
        return sound, 0.0
    rate = float(cluster.nodes_of(ranks)) / (3600 * cluster.mtbf_hours)
    expected = rate * sound.value
    value = math.exp(min(rate * cluster.restart_s, HOPELESS)) * sound.value
    least_s, most_s = (cluster.restart_s * _poisson_quantile(level, expected) for level in WITHIN)
    return Estimate(value, min(value, sound.low + least_s), max(value, sound.high + most_s)), expected


def _poisson_quantile(level: float, expected: float) -> float:
    """Return the quantile of a Poisson distribution, as scipy.stats does, which takes long to import."""
    quantile = float(pdtrik(level, expected))
    if math.isnan(quantile):
        return expected  # too large to be computed, where all quantiles are close to the mean
    above = math.ceil(quantile)
    below = max(0, above - 1)
    return float(below if pdtr(below, expected) >= level else above)
