"""What calls take between ranks of the host that was calibrated.

Where a call was measured, it takes what was measured; in the middle of a step rather than by itself, if it was
measured there too, since that is where the caches are as in a run. For other numbers of ranks the formulas tell by how
much it grows, so that what they miss, such as the time that Python takes, stays in; of threads, whose operations they
count, with what bare threads take for one.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np

from manyhands.model.fit_comm import cost_s
from manyhands.model.links import Floats, Link
from manyhands.model.sharing import handing_on
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import CallTimes, CommCosts

ALIKE = 8.0
"""Calls vary alike, as a share of what they take, where one takes no more than about so many times as long."""
BURST = 8
"""Messages in a row that a `stream` has."""


@final
class HostCalls:
    """Costs of one engine's calls while nothing disturbs them, on average, and how they vary."""

    def __init__(
        self, costs: CommCosts, in_steps: Sequence[CallTimes] = (), lock_us: Mapping[int, float] | None = None
    ) -> None:
        self._costs, self._lock_us = costs, lock_us or {}
        self._in_steps = in_steps
        again = {(point.call, point.ranks, point.num_bytes) for point in in_steps}
        alone = [p for p in costs.points if (p.call, p.ranks, p.num_bytes) not in again]
        self.link = Link(
            costs.latency_us * 1e-6,
            1e-9 / costs.gigabyte_per_s,
            min(costs.overhead_us, costs.latency_us) * 1e-6,
            costs.duplex == "full",
        )
        self.gamma_s_per_byte = 1e-9 / costs.reduce_gigabyte_per_s
        self._curves: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(dict)
        """By call and ranks: bytes and seconds."""
        for point in sorted([*alone, *in_steps], key=lambda point: point.num_bytes):
            curve = self._curves[point.call].setdefault(point.ranks, [])
            curve.append((point.num_bytes, undisturbed(point.us) * 1e-6))

    def quiet_s(self, call: str, p: int, num_bytes: float) -> float:
        """Return what a call of p ranks takes: as measured, or as the formulas say from the nearest that were."""
        if p == 1:
            return 0.0
        curves = self._curves.get(call)
        if not curves:
            return self._formula(call, p, num_bytes)
        if p in curves:
            return _on_curve(curves[p], num_bytes)
        below, above = (
            max((k for k in curves if k < p), default=None),
            min((k for k in curves if k > p), default=None),
        )
        near = [k for k in (below, above) if k is not None]
        seconds = [self._grown_s(call, k, p, num_bytes) for k in near]
        return float(np.interp(np.log(p), np.log(near), seconds))

    def mean_s(self, call: str, p: int, num_bytes: float) -> float:
        """Return what it takes on average."""
        return self.quiet_s(call, p, num_bytes) * float(np.mean(self.jitter(call, num_bytes)))

    def jitter(self, call: str, num_bytes: float) -> Floats:
        """Return how many times as long as undisturbed calls took, one by one.

        Of the same call in the middle of steps, where it was measured there, else of all calls that take about as long.
        """
        length = _length(self.quiet_s(call, 2, num_bytes))
        if (call, length) in self._jitter:
            return self._jitter[call, length]
        return self._jitter[min((key for key in self._jitter if key[0] == ""), key=lambda key: abs(key[1] - length))]

    def message_s(self, num_bytes: float, ranks: int = 2) -> tuple[float, float]:
        """Return a message's latency, and how long it keeps the ports of its sender and receiver busy.

        Busy for what each further one adds to a stream of them (the gap of LogGP), on its way for the rest. The more
        threads there are, the longer what a message takes besides its bytes.
        """
        latency_s, busy_s = self._message_s(num_bytes)
        longer = self._longer(ranks) - 1
        if longer > 0:
            empty = self._message_s(0)
            latency_s, busy_s = latency_s + longer * empty[0], busy_s + longer * empty[1]
        return latency_s, busy_s

    def _message_s(self, num_bytes: float) -> tuple[float, float]:
        """Return the same between two ranks that are alone."""
        whole_s, burst_s = (self.quiet_s(call, 2, num_bytes) for call in ("send", "stream"))
        busy_s = gap_s(whole_s, burst_s)
        return whole_s - busy_s, busy_s

    def _formula(self, call: str, p: int, num_bytes: float) -> float:
        link = replace(self.link, alpha_s=2e-6 * self._lock_us[2] * self._longer(p)) if self._locked else self.link
        return cost_s(self._costs.model, call, p, num_bytes, link, self.gamma_s_per_byte)

    def _longer(self, ranks: int) -> float:
        """Return how many times as long as between two threads the lock takes to get."""
        return handing_on(self._lock_us, self._costs.ranks, ranks).value if self._locked else 1.0

    @property
    def _locked(self) -> bool:
        """Whether ranks are threads, which queue for a lock."""
        return self._costs.model == "slices" and 2 in self._lock_us

    def _grown_s(self, call: str, known: int, p: int, num_bytes: float) -> float:
        """Return what p ranks take, where another number is known: what that takes more than by the formulas stays.

        That is the time to wake up and that of Python, mostly. Where it takes less, the formulas are as far off for p.
        """
        measured_s = _on_curve(self._curves[call][known], num_bytes)
        formula_s, grown_s = (self._formula(call, ranks, num_bytes) for ranks in (known, p))
        more_s = measured_s - formula_s
        return grown_s + more_s if more_s >= 0 else grown_s * measured_s / formula_s

    @cached_property
    def _jitter(self) -> dict[tuple[str, int], Floats]:
        """By the call, or nothing for all calls, and about how long they take."""
        pools: dict[tuple[str, int], list[Floats]] = defaultdict(list)
        named = [*(("", point) for point in self._costs.points), *((point.call, point) for point in self._in_steps)]
        for name, point in named:
            pools[name, _length(undisturbed(point.us) * 1e-6)].append(_factors(point))
        return {key: np.concatenate(factors) for key, factors in pools.items()}


def overhead_s(points: list[CallTimes]) -> float:
    """Return for how long a small message keeps its ports busy."""
    smallest = {
        call: min((p for p in points if p.call == call), key=lambda p: (p.num_bytes, p.ranks))
        for call in ("send", "stream")
    }
    return gap_s(*(undisturbed(smallest[call].us) * 1e-6 for call in ("send", "stream")))


def gap_s(alone_s: float, burst_s: float) -> float:
    """Return what each further message adds to a stream of them, of which one alone takes so long."""
    return min(max(0.0, (burst_s - alone_s) / (BURST - 1)), alone_s)


def _length(seconds: float) -> int:
    """Return the same number for calls that take about as long."""
    return round(math.log(max(seconds, 1e-9), ALIKE))


def _factors(point: CallTimes) -> Floats:
    return np.asarray(point.us) / max(undisturbed(point.us), 1e-9)


def _on_curve(curve: list[tuple[float, float]], num_bytes: float) -> float:
    """Interpolate linearly in the bytes, and go on from the last two points with their slope."""
    sizes, seconds = zip(*curve, strict=True)
    if num_bytes <= sizes[-1] or len(curve) == 1:
        return float(np.interp(num_bytes, sizes, seconds))
    (n0, s0), (n1, s1) = list(pairwise(curve))[-1]
    return s1 + max(0.0, (s1 - s0) / (n1 - n0)) * (num_bytes - n1)
