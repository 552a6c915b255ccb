"""Find the α, β and γ with which the formulas come nearest to measured calls: the least error of the logarithm.

Errors are relative, or the largest messages alone would decide, and a tenth counts as much as ten times; they are not
squared, or the few calls that take a way of their own would decide. The search begins where non-negative least squares
of relative errors end: each formula is linear in α, β and γ; which of a call's algorithms is the cheapest depends on
them, so the choice and the fit take turns.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize, nnls

from manyhands.model.collectives import Formula, algorithms
from manyhands.model.links import Floats, Link
from manyhands.model.mpich import chosen
from manyhands.model.slices import SLICES

CommModel = Literal["messages", "mpich", "mpich-hosts", "slices"]
TURNS = 30
"""Turns that choice and fit may take; they agree after a few, or go in a circle of nearly equal ones."""
GOOD, MOST_TRIES, LEAST = 0.01, 400, 1e-13
"""A fit so near is not improved; how many others are tried if not; and what is as good as nothing."""
FIRST_GUESS = (1e-6, 1e-10, 1e-10)
"""α in seconds, β and γ in seconds per byte, for the first choice of algorithms."""


class TimedCall(NamedTuple):
    """A call that was measured."""

    call: str
    ranks: int
    num_bytes: float
    seconds: float


class CallFit(NamedTuple):
    """Latency, bandwidth and adding rate that fit the measured calls best."""

    link: Link
    gamma_s_per_byte: float
    error: float
    """Relative, in the median over the points."""
    misfit: float
    """Error of the logarithm, on average over the points: what is least."""


def cost_s(model: CommModel, call: str, p: float, num_bytes: float, link: Link, gamma_s_per_byte: float) -> float:
    """Return what a call takes by the formulas of a model."""
    if p <= 1:
        return 0.0
    return min(_apply(way, p, num_bytes, link, gamma_s_per_byte) for way in _ways(model, call, p, num_bytes))


def fit_comm(model: CommModel, points: Sequence[TimedCall]) -> CallFit:
    """Fit to points; of messages, as if both directions at once took no longer, and as if they did: the better one.

    Of threads only two count: for more of them α is another.
    """
    used = [point for point in points if model != "slices" or (point.call in SLICES and point.ranks == 2)]
    assert used
    duplex = (True, False) if model in ("messages", "mpich") else (True,)  # links between hosts carry both
    return min((_solve(model, used, full_duplex=each) for each in duplex), key=lambda fit: fit.misfit)


def _solve(model: CommModel, points: Sequence[TimedCall], *, full_duplex: bool) -> CallFit:
    seconds = np.array([point.seconds for point in points])
    guess = np.array(FIRST_GUESS)
    found: list[CallFit] = []
    for _ in range(TURNS):
        rows = np.array([_row(model, point, guess.tolist(), full_duplex) for point in points])
        guess, _ = nnls(rows / seconds[:, None], np.ones(len(points)))
        fit = _judged(model, points, guess.tolist(), full_duplex)
        if fit in found:
            break
        found.append(fit)
    best = min(found, key=lambda fit: fit.misfit)
    return best if best.misfit < GOOD else _searched(model, points, best)


def _searched(model: CommModel, points: Sequence[TimedCall], begun: CallFit) -> CallFit:
    """Go downhill from a fit (Nelder and Mead 1965), in the logarithms of what is sought."""

    def at(logarithms: Floats) -> CallFit:
        return _judged(model, points, np.exp(logarithms).tolist(), begun.link.full_duplex)

    values = (begun.link.alpha_s, begun.link.beta_s_per_byte, begun.gamma_s_per_byte)
    start = np.log(np.maximum(values, LEAST))
    found = minimize(lambda x: at(x).misfit, start, method="Nelder-Mead", options={"maxfev": MOST_TRIES})
    return min((begun, at(found.x)), key=lambda fit: fit.misfit)


def _judged(model: CommModel, points: Sequence[TimedCall], values: Sequence[float], full_duplex: bool) -> CallFit:
    link, gamma = _unpack(values, full_duplex)
    costs = [cost_s(model, point.call, point.ranks, point.num_bytes, link, gamma) for point in points]
    ratios = np.maximum(costs, LEAST) / [point.seconds for point in points]
    return CallFit(link, gamma, float(np.median(np.abs(ratios - 1))), float(np.mean(np.abs(np.log(ratios)))))


def _row(model: CommModel, point: TimedCall, guess: Sequence[float], full_duplex: bool) -> list[float]:
    """Return how often α, β and γ each count in the algorithm that is the cheapest by the guess."""
    p, n = point.ranks, point.num_bytes
    cheapest = min(_ways(model, point.call, p, n), key=lambda way: _apply(way, p, n, *_unpack(guess, full_duplex)))
    units = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    return [_apply(cheapest, p, n, *_unpack(unit, full_duplex)) for unit in units]


def _unpack(values: Sequence[float], full_duplex: bool) -> tuple[Link, float]:
    alpha_s, beta_s_per_byte, gamma_s_per_byte = values
    return Link(alpha_s, beta_s_per_byte, full_duplex=full_duplex), gamma_s_per_byte


def _ways(model: CommModel, call: str, p: float, num_bytes: float) -> list[Formula]:
    """Return the formulas of a call; a message from one thread to another is no matter of slices."""
    if model == "slices" and call in SLICES:
        return [SLICES[call]]
    if model in ("mpich", "mpich-hosts"):
        return [chosen(call, p, num_bytes, between_hosts=model == "mpich-hosts")]
    return [way.formula for way in algorithms(call).values()]


def _apply(formula: Formula, p: float, num_bytes: float, link: Link, gamma_s_per_byte: float) -> float:
    return float(formula(np.asarray(float(p)), np.asarray(float(num_bytes)), link, gamma_s_per_byte))
