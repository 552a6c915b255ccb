"""Find what α, β and γ fit the calls that a calibration has measured."""

from collections.abc import Sequence

from manyhands.calibration.engines import MODELS
from manyhands.machine import facts
from manyhands.model.fit_comm import CommModel, TimedCall, fit_comm
from manyhands.model.host import overhead_s
from manyhands.model.undisturbed import undisturbed
from manyhands.record.calibration import CallTimes, CommCosts

FASTEST = 1000.0
"""Gigabytes a second beyond which a fit tells nothing but that there is no cost."""


def model_of(engine: str, hosts: int) -> CommModel:
    """Return whose formulas to fit to an engine's calls."""
    if engine == "mpi" and facts.version("mpich"):
        return "mpich-hosts" if hosts > 1 else "mpich"
    return MODELS[engine]


def comm_costs(engine: str, points: Sequence[CallTimes], made: str, hosts: int = 1) -> CommCosts:
    """Fit α, β and γ to what was measured of an engine's calls."""
    model = model_of(engine, hosts)
    seconds = [
        TimedCall(each.call, each.ranks, each.num_bytes, max(1e-9, 1e-6 * undisturbed(each.us)))
        for each in points
        if each.call != "stream" and (each.num_bytes > 0 or each.call in ("send", "barrier"))  # libraries skip others
    ]
    fit = fit_comm(model, seconds)
    return CommCosts(
        engine=engine,
        made=made,
        ranks=max(each.ranks for each in points),
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
