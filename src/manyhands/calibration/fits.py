"""Fit latency α, time per byte β and time per added byte γ to the calls that a calibration has timed."""

from collections.abc import Sequence

from manyhands.calibration.engines import MODELS
from manyhands.machine import facts
from manyhands.model.fit_comm import TimedCall, fit_comm
from manyhands.model.host import overhead_s
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import CallTimes, CommCosts

FASTEST = 1000.0
"""Gigabytes a second above which a fit says no more than that there is no cost."""


def comm_costs(engine: str, points: Sequence[CallTimes], measured_at: str, hosts: int) -> CommCosts:
    """Return the costs that fit an engine's timed calls, by the formulas of its library."""
    model = MODELS[engine]
    if engine == "mpi" and facts.version("mpich"):
        model = "mpich-hosts" if hosts > 1 else "mpich"
    calls = [
        TimedCall(point.call, point.ranks, point.num_bytes, max(1e-9, 1e-6 * undisturbed(point.us)))
        for point in points
        if point.call != "stream"
        and (point.num_bytes > 0 or point.call in ("send", "barrier"))  # libraries skip other empty calls
    ]
    fit = fit_comm(model, calls)
    return CommCosts(
        engine=engine,
        made=measured_at,
        ranks=max(point.ranks for point in points),
        hosts=hosts,
        model=model,
        latency_us=1e6 * fit.link.alpha_s,
        gigabyte_per_s=_rate(fit.link.beta_s_per_byte),
        reduce_gigabyte_per_s=_rate(fit.gamma_s_per_byte),
        overhead_us=1e6 * overhead_s(list(points)),
        duplex="full" if fit.link.full_duplex else "half",
        error_pct=100 * fit.error,
        points=list(points),
    )


def _rate(seconds_per_byte: float) -> float:
    return min(FASTEST, 1e-9 / seconds_per_byte) if seconds_per_byte > 0 else FASTEST
