"""From predicted steps to the figures of a table: epoch, speed-up, efficiency, cost, each with its interval."""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

from scipy import stats

from manyhands.lab.sim_predict import Predicted, Predictor
from manyhands.lab.sim_spread import estimate
from manyhands.model.cluster import Cluster
from manyhands.model.crowd import run_spread
from manyhands.record.simulation import Estimate, SimulationRow

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
        """Predict it."""
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


def make_row(found: Predicted, alone: Alone, cluster: Cluster | None) -> SimulationRow:
    """Work out what people ask for."""
    point, split, drawn = found.point, found.split, found.drawn_s
    gain = point.batch_size / alone.batch_size
    gains = [gain * own / step for own, step in zip(alone.drawn_s, drawn, strict=True)]
    speed_up = estimate(gain * alone.step_s / split.step_s, gains, math.hypot(found.share, alone.share))
    ranks = point.workers + found.servers
    sound_s = point.steps_per_epoch * split.step_s
    failures = failures_in(sound_s, ranks, cluster)
    epoch_s = with_failures(failures, estimate(sound_s, [point.steps_per_epoch * each for each in drawn], found.share))
    return SimulationRow(
        nodes=point.nodes,
        workers=point.workers,
        servers=found.servers,
        sync=found.sync,
        batch_size=point.batch_size,
        method=found.method,
        step_ms=estimate(1e3 * split.step_s, [1e3 * each for each in drawn], found.share),
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
    fewest, most = (cluster.restart_s * float(each) for each in stats.poisson.ppf(WITHIN, expected))
    return Failures(expected, factor, fewest, most)


def with_failures(failures: Failures, sound: Estimate) -> Estimate:
    """Add what is lost: on average to the value, and to the bounds as often as they must hold."""
    value = failures.factor * sound.value
    low, high = sound.low + failures.least_s, sound.high + failures.most_s
    return Estimate(value=value, low=min(value, low), high=max(value, high))


def _price(epoch_s: Estimate, ranks: int, cluster: Cluster | None) -> Estimate | None:
    if cluster is None or cluster.price_per_hour == 0:
        return None
    return epoch_s.scaled(float(cluster.price(ranks, 1.0)))
