"""From predicted steps to the figures of a table: epoch, speed-up, efficiency, cost, each with its interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from scipy.special import pdtr, pdtrik

from manyhands.model.cluster import Cluster
from manyhands.model.crowd import run_spread
from manyhands.record.simulation import Estimate, SimulationRow
from manyhands.simulation.predict import Predicted, Predictor
from manyhands.simulation.spread import estimate, estimates

WITHIN = (0.05, 0.95)
"""Levels of a 90 % interval."""
HOPELESS = 100.0
"""Failures in the time of one restart after which nothing is ever done; e to that power is a number still."""


@final
@dataclass(frozen=True)
class Alone:
    """A step of one worker by itself, on a sound node: what all others are compared with."""

    batch_size: int
    step_s: float
    drawn_s: tuple[float, ...]
    """With each seed."""
    share: float
    """By how much one run's step differs from another's: standard deviation, as a share."""

    @staticmethod
    def of(predictor: Predictor, batch_size: int) -> "Alone":
        """Predict the step of one worker alone on the whole batch."""
        step_s, drawn_s = predictor.alone_s(batch_size)
        share = run_spread(predictor.calibration, predictor.task, predictor.engine, 1)
        return Alone(batch_size, step_s, tuple(drawn_s), share)

    @property
    def step_ms(self) -> Estimate:
        """The step, with its interval."""
        return estimate(1e3 * self.step_s, [1e3 * each for each in self.drawn_s], self.share)


class Failures(NamedTuple):
    """What failures of nodes do to the time of an epoch."""

    expected: float
    factor: float
    """How many times as long it takes on average."""
    least_s: float = 0.0
    """What is lost at least in nineteen of twenty epochs."""
    most_s: float = 0.0
    """What is lost at most in as many."""


def make_rows(found: Sequence[Predicted], alone: Alone, cluster: Cluster | None) -> list[SimulationRow]:
    """Work out what people ask for; a hundred thousand at once, whose intervals take most of the time."""
    steps_s, shares = (np.array(each) for each in zip(*((one.split.step_s, one.share) for one in found), strict=True))
    drawn_s = np.array([one.drawn_s for one in found])
    gains = np.array([one.point.batch_size for one in found]) / alone.batch_size
    steps = estimates(steps_s, drawn_s, shares)
    drawn = gains[:, None] * np.array(alone.drawn_s) / drawn_s
    speed_ups = estimates(gains * alone.step_s / steps_s, drawn, np.hypot(shares, alone.share))
    return [_row(*each, cluster) for each in zip(found, steps, speed_ups, strict=True)]


def _row(found: Predicted, step_s: Estimate, speed_up: Estimate, cluster: Cluster | None) -> SimulationRow:
    point, split, ranks = found.point, found.split, found.point.workers + found.servers
    sound_s = step_s.scaled(point.steps_per_epoch)
    failures = failures_in(sound_s.value, ranks, cluster)
    epoch_s = with_failures(failures, sound_s)
    return SimulationRow(
        by=point.by,
        nodes=point.nodes if point.by == "nodes" or cluster is None else int(cluster.nodes_of(ranks)),
        workers=point.workers,
        servers=found.servers,
        sync=found.sync,
        batch_size=point.batch_size,
        method=found.method,
        step_ms=step_s.scaled(1e3),
        compute_ms=1e3 * split.compute_s,
        serial_ms=1e3 * split.serial_s,
        comm_ms=1e3 * split.comm_s,
        wait_ms=1e3 * split.wait_s,
        epoch_s=epoch_s,
        speed_up=speed_up,
        efficiency=speed_up.scaled(1 / point.workers),
        cost=_price(epoch_s, ranks, cluster),
        failures=failures.expected,
    )


def failures_in(sound_s: float, ranks: int, cluster: Cluster | None) -> Failures:
    """Return what failures add to so many seconds of work: each node fails at any moment, and all restart.

    With a rate of λ failures a second, a restart of R seconds, which may fail too, takes (exp λR − 1) / λ on average.
    """
    if cluster is None or cluster.mtbf_hours is None:
        return Failures(0.0, 1.0)
    rate = float(cluster.nodes_of(ranks)) / (3600 * cluster.mtbf_hours)
    factor = math.exp(min(rate * cluster.restart_s, HOPELESS))
    expected = rate * sound_s
    fewest, most = (cluster.restart_s * _poisson_quantile(level, expected) for level in WITHIN)
    return Failures(expected, factor, fewest, most)


def _poisson_quantile(level: float, expected: float) -> float:
    """Return how many there are at most with this probability; scipy.stats knows it too, but takes long to import."""
    found = float(pdtrik(level, expected))
    if math.isnan(found):
        return expected  # of so many that nobody could work it out, each run has about as many
    above = math.ceil(found)
    below = max(0, above - 1)
    return float(below if pdtr(below, expected) >= level else above)


def with_failures(failures: Failures, sound: Estimate) -> Estimate:
    """Add what is lost: on average to the value, and to the bounds as often as they must hold."""
    value = failures.factor * sound.value
    low, high = sound.low + failures.least_s, sound.high + failures.most_s
    return Estimate(value=value, low=min(value, low), high=max(value, high))


def _price(epoch_s: Estimate, ranks: int, cluster: Cluster | None) -> Estimate | None:
    if cluster is None or cluster.price_per_hour == 0:
        return None
    return epoch_s.scaled(float(cluster.price(ranks, 1.0)))
