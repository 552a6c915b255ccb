"""Times of calls between ranks of the calibrated host.

A measured call takes its measured time; a measurement within steps replaces one of the call by itself, since there the
caches are as in a run. For other numbers of ranks the formulas give the increase only, so that costs they miss, such as
Python's, stay included. Formulas for threads use the lock's measured hand-over time for each operation.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import final

import numpy as np

from manyhands.model.fit_comm import cost_s
from manyhands.model.links import Floats, Link
from manyhands.model.sharing import lock_slow_down
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import CallTimes, CommCosts

JITTER_RATIO = 8.0
"""Calls whose durations differ by less than about this factor share one distribution of relative jitter."""
BURST = 8
"""Messages of a `stream`."""


@final
class HostCalls:
    """Times of one engine's calls: undisturbed, on average, and their jitter."""

    def __init__(
        self, costs: CommCosts, in_steps: Sequence[CallTimes] = (), lock_us: Mapping[int, float] | None = None
    ) -> None:
        self._costs, self._lock_us, self._in_steps = costs, lock_us or {}, in_steps
        self._locked = costs.model == "slices" and 2 in self._lock_us  # ranks are threads, which queue for the lock
        replaced = {(point.call, point.ranks, point.num_bytes) for point in in_steps}
        alone = [p for p in costs.points if (p.call, p.ranks, p.num_bytes) not in replaced]
        self.link = Link(
            costs.latency_us * 1e-6,
            1e-9 / costs.gigabyte_per_s,
            min(costs.overhead_us, costs.latency_us) * 1e-6,
            costs.duplex == "full",
        )
        self.gamma_s_per_byte = 1e-9 / costs.reduce_gigabyte_per_s
        self._curves: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(dict)
        """Pairs of bytes and seconds, by call and ranks."""
        for point in sorted([*alone, *in_steps], key=lambda point: point.num_bytes):
            curve = self._curves[point.call].setdefault(point.ranks, [])
            curve.append((point.num_bytes, undisturbed(point.us) * 1e-6))

    def quiet_s(self, call: str, p: int, num_bytes: float) -> float:
        """Return the undisturbed time of a call of p ranks: measured, or extrapolated from the nearest p measured."""
        if p == 1:
            return 0.0
        curves = self._curves.get(call)
        if not curves:
            return self._formula(call, p, num_bytes)
        if p in curves:
            return _on_curve(curves[p], num_bytes)
        near = [*sorted(k for k in curves if k < p)[-1:], *sorted(k for k in curves if k > p)[:1]]
        seconds = [self._extrapolated_s(call, k, p, num_bytes) for k in near]
        return float(np.interp(np.log(p), np.log(near), seconds))

    def mean_s(self, call: str, p: int, num_bytes: float) -> float:
        """Return the mean time of a call among p ranks, jitter included."""
        return self.quiet_s(call, p, num_bytes) * float(np.mean(self.jitter(call, num_bytes)))

    def jitter(self, call: str, num_bytes: float) -> Floats:
        """Return samples of duration over undisturbed duration.

        Those of the same call within steps, where it was measured there, else of all calls of similar duration.
        """
        if not self._jitter:
            return np.ones(1)  # the costs follow a formula, which has none
        magnitude = _magnitude(self.quiet_s(call, 2, num_bytes))
        if (call, magnitude) in self._jitter:
            return self._jitter[call, magnitude]
        return self._jitter[min((key for key in self._jitter if key[0] == ""), key=lambda key: abs(key[1] - magnitude))]

    def message_s(self, num_bytes: float, ranks: int = 2) -> tuple[float, float]:
        """Return a message's latency, and the time for which it occupies the ports of sender and receiver.

        The latter is the gap of LogGP: the time that each further message adds to a stream. Among more than two
        threads the time of an empty message grows with that of the lock.
        """
        latency_s, busy_s = self._pair_message_s(num_bytes)
        more = self._lock_factor(ranks) - 1
        if more > 0:
            empty = self._pair_message_s(0)
            latency_s, busy_s = latency_s + more * empty[0], busy_s + more * empty[1]
        return latency_s, busy_s

    def _pair_message_s(self, num_bytes: float) -> tuple[float, float]:
        whole_s, burst_s = (self.quiet_s(call, 2, num_bytes) for call in ("send", "stream"))
        busy_s = gap_s(whole_s, burst_s)
        return whole_s - busy_s, busy_s

    def _formula(self, call: str, p: int, num_bytes: float) -> float:
        link = replace(self.link, alpha_s=2e-6 * self._lock_us[2] * self._lock_factor(p)) if self._locked else self.link
        launch_s = 1e-6 * self._costs.launch_us
        return launch_s + cost_s(self._costs.model, call, p, num_bytes, link, self.gamma_s_per_byte)

    def _lock_factor(self, ranks: int) -> float:
        """Return the slow-down of acquiring the lock relative to two threads; 1 where ranks are not threads."""
        return lock_slow_down(self._lock_us, self._costs.ranks, ranks).value if self._locked else 1.0

    def _extrapolated_s(self, call: str, measured: int, p: int, num_bytes: float) -> float:
        """Return the formula's time for p ranks plus its residual at `measured` ranks.

        A positive residual is mostly wake-up time and Python, so it stays; a negative one scales with the cost.
        """
        measured_s = _on_curve(self._curves[call][measured], num_bytes)
        formula_s, extrapolated_s = (self._formula(call, ranks, num_bytes) for ranks in (measured, p))
        residual_s = measured_s - formula_s
        return extrapolated_s + residual_s if residual_s >= 0 else extrapolated_s * measured_s / formula_s

    @cached_property
    def _jitter(self) -> dict[tuple[str, int], Floats]:
        """Samples of jitter by call, or "" for all calls, and magnitude of the duration."""
        pools: dict[tuple[str, int], list[Floats]] = defaultdict(list)
        named = [*(("", point) for point in self._costs.points), *((point.call, point) for point in self._in_steps)]
        for name, point in named:
            quiet_us = undisturbed(point.us)
            pools[name, _magnitude(quiet_us * 1e-6)].append(np.asarray(point.us) / max(quiet_us, 1e-9))
        return {key: np.concatenate(factors) for key, factors in pools.items()}


def overhead_s(points: list[CallTimes]) -> float:
    """Return the time for which the smallest measured message occupies its ports."""
    smallest = {
        call: min((p for p in points if p.call == call), key=lambda p: (p.num_bytes, p.ranks))
        for call in ("send", "stream")
    }
    return gap_s(*(undisturbed(smallest[call].us) * 1e-6 for call in ("send", "stream")))


def gap_s(alone_s: float, burst_s: float) -> float:
    """Return the LogGP gap: the time that each further message adds to a stream, given that of one message alone."""
    return min(max(0.0, (burst_s - alone_s) / (BURST - 1)), alone_s)


def _magnitude(seconds: float) -> int:
    """Return the order of magnitude of a duration, to base `JITTER_RATIO`."""
    return round(math.log(max(seconds, 1e-9), JITTER_RATIO))


def _on_curve(curve: list[tuple[float, float]], num_bytes: float) -> float:
    """Interpolate linearly in the bytes, and extrapolate along the last two points."""
    sizes, seconds = zip(*curve, strict=True)
    if num_bytes <= sizes[-1] or len(curve) == 1:
        return float(np.interp(num_bytes, sizes, seconds))
    (n0, s0), (n1, s1) = curve[-2:]
    return s1 + max(0.0, (s1 - s0) / (n1 - n0)) * (num_bytes - n1)
