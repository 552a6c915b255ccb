"""Find the α, β and γ with which the formulas come nearest to measured calls: non-negative least squares.

Errors are relative, or the largest messages alone would decide. Each formula is linear in α, β and γ; which of a
call's algorithms is the cheapest depends on them, so the choice and the fit take turns.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import nnls

from manyhands.model.collectives import Formula, algorithms
from manyhands.model.links import Link
from manyhands.model.slices import SLICES

CommModel = Literal["messages", "slices"]
TURNS = 30
"""Turns that choice and fit may take; they agree after a few, or go in a circle of nearly equal ones."""
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
    return min(_apply(way, p, num_bytes, link, gamma_s_per_byte) for way in _ways(model, call)) if p > 1 else 0.0


def fit_comm(model: CommModel, points: Sequence[Point]) -> Fit:
    """Fit to points; of messages, as if both directions at once took no longer, and as if they did: the better one."""
    used = [point for point in points if model == "messages" or point.call in SLICES]
    assert used
    duplex = (True, False) if model == "messages" else (True,)
    return min((_solve(model, used, full_duplex=each) for each in duplex), key=lambda fit: fit.error)


def _solve(model: CommModel, points: Sequence[Point], *, full_duplex: bool) -> Fit:
    seconds = np.array([point.seconds for point in points])
    guess = np.array(FIRST_GUESS)
    found: list[Fit] = []
    for _ in range(TURNS):
        rows = np.array([_row(model, point, guess.tolist(), full_duplex) for point in points])
        guess, _ = nnls(rows / seconds[:, None], np.ones(len(points)))
        link, gamma = _unpack(guess.tolist(), full_duplex)
        predicted = np.array([cost_s(model, p.call, p.ranks, p.num_bytes, link, gamma) for p in points])
        fit = Fit(link, gamma, float(np.median(np.abs(predicted / seconds - 1))))
        if fit in found:
            break
        found.append(fit)
    return min(found, key=lambda fit: fit.error)


def _row(model: CommModel, point: Point, guess: Sequence[float], full_duplex: bool) -> list[float]:
    """Return how often α, β and γ each count in the algorithm that is the cheapest by the guess."""
    p, n = point.ranks, point.num_bytes
    cheapest = min(_ways(model, point.call), key=lambda way: _apply(way, p, n, *_unpack(guess, full_duplex)))
    units = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    return [_apply(cheapest, p, n, *_unpack(unit, full_duplex)) for unit in units]


def _unpack(values: Sequence[float], full_duplex: bool) -> tuple[Link, float]:
    alpha_s, beta_s_per_byte, gamma_s_per_byte = values
    return Link(alpha_s, beta_s_per_byte, full_duplex=full_duplex), gamma_s_per_byte


def _ways(model: CommModel, call: str) -> list[Formula]:
    """Return the formulas of a call; a message from one thread to another is no matter of slices."""
    if model == "slices" and call in SLICES:
        return [SLICES[call]]
    return [way.formula for way in algorithms(call).values()]


def _apply(formula: Formula, p: float, num_bytes: float, link: Link, gamma_s_per_byte: float) -> float:
    return float(formula(np.asarray(float(p)), np.asarray(float(num_bytes)), link, gamma_s_per_byte))
