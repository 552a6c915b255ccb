"""Fit α, β and γ of the cost formulas to measured calls, by least absolute error of the logarithm.

Errors are relative, lest the largest messages alone decide, and not squared, lest a few outliers decide. The search
starts from non-negative least squares of relative errors: each formula is linear in α, β and γ, but which algorithm of
a call is the cheapest depends on them, so choice and fit alternate.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize, nnls

from manyhands.model.collectives import ALGORITHMS, Formula
from manyhands.model.links import Floats, Link
from manyhands.model.mpich import chosen
from manyhands.model.slices import SLICES

CommModel = Literal["messages", "mpich", "mpich-hosts", "slices"]
ROUNDS = 30
"""Alternations of choice and fit; they converge after a few, or cycle through nearly equal fits."""
GOOD, MOST_TRIES, LEAST = 0.01, 400, 1e-13
"""Misfit below which no search follows, evaluations of that search, and the smallest parameter or cost."""
FIRST_GUESS = (1e-6, 1e-10, 1e-10)
"""α in seconds, β and γ in seconds per byte, for the first choice of algorithms."""


class TimedCall(NamedTuple):
    """The measured time of a call."""

    call: str
    ranks: int
    num_bytes: float
    seconds: float


class CallFit(NamedTuple):
    """The link and γ that fit the measured calls best."""

    link: Link
    gamma_s_per_byte: float
    error: float
    """Median relative error over the calls."""
    misfit: float
    """Mean absolute error of the logarithm, which the fit minimises."""


def cost_s(model: CommModel, call: str, p: float, num_bytes: float, link: Link, gamma_s_per_byte: float) -> float:
    """Return the cost of a call by the formulas of `model`."""
    if p <= 1:
        return 0.0
    return min(
        _apply(formula, p, num_bytes, link, gamma_s_per_byte) for formula in _formulas(model, call, p, num_bytes)
    )


def fit_comm(model: CommModel, points: Sequence[TimedCall]) -> CallFit:
    """Fit α, β and γ to measured calls.

    For messages on one host, full- and half-duplex ports are tried, and the better fit is taken. Of threads, only calls
    between two are used: with more of them α grows.
    """
    used = [point for point in points if model != "slices" or (point.call in SLICES and point.ranks == 2)]
    assert used
    choices = (True, False) if model in ("messages", "mpich") else (True,)  # links between hosts are full-duplex
    return min((_solve(model, used, full_duplex=full) for full in choices), key=lambda fit: fit.misfit)


def _solve(model: CommModel, points: Sequence[TimedCall], *, full_duplex: bool) -> CallFit:
    seconds = np.array([point.seconds for point in points])
    guess = np.array(FIRST_GUESS)
    fits: list[CallFit] = []
    for _ in range(ROUNDS):
        rows = np.array([_row(model, point, guess.tolist(), full_duplex) for point in points])
        guess, _ = nnls(rows / seconds[:, None], np.ones(len(points)))
        fit = _fit_of(model, points, guess.tolist(), full_duplex)
        if fit in fits:
            break
        fits.append(fit)
    best = min(fits, key=lambda fit: fit.misfit)
    return best if best.misfit < GOOD else _searched(model, points, best)


def _searched(model: CommModel, points: Sequence[TimedCall], start: CallFit) -> CallFit:
    """Improve a fit by the simplex search of Nelder and Mead (1965), in the logarithms of α, β and γ."""

    def at(logarithms: Floats) -> CallFit:
        return _fit_of(model, points, np.exp(logarithms).tolist(), start.link.full_duplex)

    values = (start.link.alpha_s, start.link.beta_s_per_byte, start.gamma_s_per_byte)
    first = np.log(np.maximum(values, LEAST))
    result = minimize(lambda x: at(x).misfit, first, method="Nelder-Mead", options={"maxfev": MOST_TRIES})
    return min((start, at(result.x)), key=lambda fit: fit.misfit)


def _fit_of(model: CommModel, points: Sequence[TimedCall], values: Sequence[float], full_duplex: bool) -> CallFit:
    link, gamma = _unpack(values, full_duplex)
    costs = [cost_s(model, point.call, point.ranks, point.num_bytes, link, gamma) for point in points]
    ratios = np.maximum(costs, LEAST) / [point.seconds for point in points]
    return CallFit(link, gamma, float(np.median(np.abs(ratios - 1))), float(np.mean(np.abs(np.log(ratios)))))


def _row(model: CommModel, point: TimedCall, guess: Sequence[float], full_duplex: bool) -> list[float]:
    """Return the coefficients of α, β and γ in the algorithm that is the cheapest by the guess."""
    p, n = point.ranks, point.num_bytes
    guessed = _unpack(guess, full_duplex)
    cheapest = min(_formulas(model, point.call, p, n), key=lambda formula: _apply(formula, p, n, *guessed))
    units = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    return [_apply(cheapest, p, n, *_unpack(unit, full_duplex)) for unit in units]


def _unpack(values: Sequence[float], full_duplex: bool) -> tuple[Link, float]:
    alpha_s, beta_s_per_byte, gamma_s_per_byte = values
    return Link(alpha_s, beta_s_per_byte, full_duplex=full_duplex), gamma_s_per_byte


def _formulas(model: CommModel, call: str, p: float, num_bytes: float) -> list[Formula]:
    """Return the formulas of a call; those of slices have none for messages, which the general ones cover."""
    if model == "slices" and call in SLICES:
        return [SLICES[call]]
    if model in ("mpich", "mpich-hosts"):
        return [chosen(call, p, num_bytes, between_hosts=model == "mpich-hosts")]
    return list(ALGORITHMS[call].values())


def _apply(formula: Formula, p: float, num_bytes: float, link: Link, gamma_s_per_byte: float) -> float:
    return float(formula(np.asarray(float(p)), np.asarray(float(num_bytes)), link, gamma_s_per_byte))
