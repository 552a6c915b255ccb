"""Costs of each collective call of a `Comm`, one formula per algorithm.

Thakur, Rabenseifner and Gropp 2005 (all-reduce, reduce, reduce-scatter, all-gather, broadcast), Rabenseifner 2004 (any
number of ranks), Chan et al. 2007 (the same as compositions), Bruck et al. 1997 (all-gather of any number of ranks),
Hensgen, Finkel and Manber 1988 (barrier).

All p ranks enter the call at the same time with n bytes each, counted as `Comm` counts them: the size of the sum for a
reduce-scatter, one rank's share for all-gather, scatter and gather. A single rank sends nothing and pays nothing. Every
formula is vectorised over p and n, is exact where ports are busy for the whole of α, and is an upper bound where
latencies overlap.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from manyhands.model.links import Floats, Link

Formula = Callable[[Floats, Floats, Link, float], Floats]
"""Seconds from the call until the last rank is done, given p, n, the link and γ."""


def best_s(call: str, p: npt.ArrayLike, num_bytes: npt.ArrayLike, link: Link, gamma_s_per_byte: float = 0.0) -> Floats:
    """Return the cost of the cheapest algorithm, which MPI libraries approximate by tables of thresholds."""
    ranks, n = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(num_bytes, dtype=np.float64))
    costs = np.stack([formula(ranks, n, link, gamma_s_per_byte) for formula in ALGORITHMS[call].values()])
    return np.asarray(costs.min(axis=0))


def ring_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Reduce-scatter around a ring, then all-gather around it."""
    return pairwise_reduce_scatter(p, n, link, gamma) + ring_all_gather(p, n / p, link, gamma)


def recursive_doubling_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Exchange whole tensors at distances 1, 2, 4 …; ranks beyond a power of two first send theirs to a neighbour."""
    butterfly = _lg_floor(p) * (link.turns * link.message_s(n) + n * gamma)
    return butterfly + _beyond_power(p) * (2 * link.message_s(n) + n * gamma)


def rabenseifner_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling, both among a power of two of ranks."""
    q = power_below(p)
    inner = recursive_halving(q, n, link, gamma) + recursive_doubling_all_gather(q, n / q, link, gamma)
    return inner + _fold(p, n, link, gamma) + _beyond_power(p) * link.message_s(n)


def reduce_broadcast(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Reduce up a binomial tree, then broadcast the sum down it."""
    return binomial_reduce(p, n, link, gamma) + binomial_broadcast(p, n, link, gamma)


def binomial_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Reduce up a binomial tree."""
    return _lg_ceil(p) * (link.message_s(n) + n * gamma)


def rabenseifner_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Reduce-scatter by recursive halving, then gather the pieces up a binomial tree."""
    q = power_below(p)
    inner = recursive_halving(q, n, link, gamma) + binomial_scatter(q, n / q, link, gamma)
    return inner + _fold(p, n, link, gamma)


def binomial_broadcast(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Broadcast down a binomial tree."""
    return _lg_ceil(p) * link.message_s(n)


def scatter_ring(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Scatter pieces down a binomial tree, then pass them around a ring (van de Geijn)."""
    return binomial_scatter(p, n / p, link, gamma) + ring_all_gather(p, n / p, link, gamma)


def scatter_doubling(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Scatter pieces down a binomial tree, then gather them everywhere by recursive doubling."""
    scatter = binomial_scatter(p, n / p, link, gamma)
    return scatter + recursive_doubling_all_gather(p, n / p, link, gamma)


def ring_all_gather(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Pass every rank's tensor around a ring."""
    return link.turns * (p - 1) * link.message_s(n)


def recursive_doubling_all_gather(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Exchange all data gathered so far with partners at distances 1, 2, 4 …; Bruck's variant for other p."""
    return link.turns * (_lg_ceil(p) * link.alpha_s + (p - 1) * n * link.beta_s_per_byte)


def pairwise_reduce_scatter(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send each rank its piece directly, or around a ring, which costs the same."""
    return (p - 1) * (link.turns * link.message_s(n / p) + n / p * gamma)


def recursive_halving(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Run the all-gather by recursive doubling backwards."""
    return recursive_doubling_all_gather(p, n / p, link, gamma) + (p - 1) / p * n * gamma


def binomial_scatter(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send each rank its tensor down a binomial tree; a gather is the reverse, at the same cost."""
    return _lg_ceil(p) * link.alpha_s + (p - 1) * n * link.beta_s_per_byte


def dissemination(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Signal ranks at distances 1, 2, 4 …"""
    return link.turns * _lg_ceil(p) * link.alpha_s


def direct(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send one message from one rank to another."""
    return np.where(p > 1, link.message_s(n), 0.0)


def _fold(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Return the cost of merging ranks beyond a power of two with a neighbour: swap halves, add, pass one half on."""
    swap = link.turns * link.message_s(n / 2) + n / 2 * gamma
    return _beyond_power(p) * (swap + link.message_s(n / 2))


def _lg_floor(p: Floats) -> Floats:
    return np.frexp(p)[1] - 1.0


def _lg_ceil(p: Floats) -> Floats:
    return _lg_floor(p) + _beyond_power(p)


def power_below(p: Floats) -> Floats:
    """Return the largest power of two up to p."""
    return np.exp2(_lg_floor(p))


def _beyond_power(p: Floats) -> Floats:
    """Return 1 where p is not a power of two, else 0."""
    return (power_below(p) < p).astype(np.float64)


ALGORITHMS: dict[str, dict[str, Formula]] = {
    "all-reduce": {
        "ring": ring_all_reduce,
        "recursive-doubling": recursive_doubling_all_reduce,
        "rabenseifner": rabenseifner_all_reduce,
        "reduce-broadcast": reduce_broadcast,
    },
    "reduce": {"binomial": binomial_reduce, "rabenseifner": rabenseifner_reduce},
    "broadcast": {"binomial": binomial_broadcast, "scatter-ring": scatter_ring, "scatter-doubling": scatter_doubling},
    "all-gather": {"ring": ring_all_gather, "recursive-doubling": recursive_doubling_all_gather},
    "reduce-scatter": {"pairwise": pairwise_reduce_scatter, "recursive-halving": recursive_halving},
    "scatter": {"binomial": binomial_scatter},
    "gather": {"binomial": binomial_scatter},
    "barrier": {"dissemination": dissemination},
    "send": {"direct": direct},
}
"""The formulas of each call, by the name of the algorithm."""
