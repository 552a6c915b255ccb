"""Find the α, β and γ with which the formulas come nearest to measured calls: the least sum of logarithms' errors.

Errors are relative, or the largest messages alone would decide, and a tenth counts as much as ten times; they are not
squared, or the few calls that take a way of their own would decide. Each formula is linear in α, β and γ, so that each
turn is one of non-negative least squares. Its weights come from the turn before (Schlossmacher 1973), and so does the
choice of a call's algorithms, of which the cheapest is taken.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import nnls

from manyhands.model.collectives import Formula, algorithms
from manyhands.model.links import Floats, Link
from manyhands.model.mpich import chosen
from manyhands.model.slices import SLICES

CommModel = Literal["messages", "mpich", "slices"]
TURNS = 30
"""Turns that choice and fit may take; they agree after a few, or go in a circle of nearly equal ones."""
SMALL_ERROR, LEAST_S = 0.02, 1e-12
"""Errors below the first are as good as none; no call takes less than the second."""
FIRST_GUESS = (1e-6, 1e-10, 1e-10)
"""α in seconds, β and γ in seconds per byte, for the first choice of algorithms."""


class Point(NamedTuple):
    """A call that was measured."""

    call: str
    ranks: int
    num_bytes: float
    seconds: float


class Fit(NamedTuple):
    """What fits best."""

    link: Link
    gamma_s_per_byte: float
    error: float
    """Relative, in the median over the points."""


def cost_s(model: CommModel, call: str, p: float, num_bytes: float, link: Link, gamma_s_per_byte: float) -> float:
    """Return what a call takes by the formulas of a model."""
    if p <= 1:
        return 0.0
    return min(_apply(way, p, num_bytes, link, gamma_s_per_byte) for way in _ways(model, call, p, num_bytes))


def fit_comm(model: CommModel, points: Sequence[Point]) -> Fit:
    """Fit to points; of messages, as if both directions at once took no longer, and as if they did: the better one."""
    used = [point for point in points if model != "slices" or point.call in SLICES]
    assert used
    duplex = (True,) if model == "slices" else (True, False)
    return min((_solve(model, used, full_duplex=each) for each in duplex), key=lambda fit: fit.error)


def _solve(model: CommModel, points: Sequence[Point], *, full_duplex: bool) -> Fit:
    seconds = np.array([point.seconds for point in points])
    guess = np.array(FIRST_GUESS)
    weights = 1 / seconds
    found: list[Fit] = []
    for _ in range(TURNS):
        rows = np.array([_row(model, point, guess.tolist(), full_duplex) for point in points])
        guess, _ = nnls(rows * weights[:, None], seconds * weights)
        link, gamma = _unpack(guess.tolist(), full_duplex)
        predicted = np.array([cost_s(model, p.call, p.ranks, p.num_bytes, link, gamma) for p in points])
        fit = Fit(link, gamma, float(np.median(np.abs(predicted / seconds - 1))))
        if fit in found:
            break
        found.append(fit)
        weights = _weights(seconds, np.maximum(predicted, LEAST_S))
    return min(found, key=lambda fit: fit.error)


def _weights(seconds: Floats, predicted: Floats) -> Floats:
    """Return the weights with which a sum of squares is nearly the sum of the logarithms' errors."""
    errors = np.maximum(np.abs(np.log(predicted / seconds)), SMALL_ERROR)
    return np.asarray(1 / np.sqrt(seconds * predicted * errors))


def _row(model: CommModel, point: Point, guess: Sequence[float], full_duplex: bool) -> list[float]:
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
    if model == "mpich":
        return [chosen(call, p, num_bytes)]
    return [way.formula for way in algorithms(call).values()]


def _apply(formula: Formula, p: float, num_bytes: float, link: Link, gamma_s_per_byte: float) -> float:
    return float(formula(np.asarray(float(p)), np.asarray(float(num_bytes)), link, gamma_s_per_byte))
