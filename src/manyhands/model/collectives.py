"""What each call of a `Comm` costs, by the algorithm that carries it out.

Thakur, Rabenseifner and Gropp 2005 (all-reduce, reduce, reduce-scatter, all-gather, broadcast), Rabenseifner 2004 (any
number of ranks), Chan et al. 2007 (the same as compositions), Bruck et al. 1997 (all-gather of any number of ranks),
Hensgen, Finkel and Manber 1988 (barrier).

p ranks make the call at the same moment with a tensor of n bytes each, as `Comm` counts them: the sum's size for a
reduce-scatter, one rank's share for an all-gather (and for scatter and gather, of which others are made). One rank
alone sends nothing, which costs nothing. All is vectorised over p and n. Every formula is exact for ports that are busy
all through α, and an upper bound where latencies overlap.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from manyhands.errors import unknown
from manyhands.model.links import Floats, Link

Formula = Callable[[Floats, Floats, Link, float], Floats]
"""Seconds, of p > 1 ranks, n bytes, the link, and γ."""


@final
@dataclass(frozen=True)
class Algorithm:
    """One way to carry out a call."""

    call: str
    name: str
    formula: Formula

    def __call__(self, p: npt.ArrayLike, num_bytes: npt.ArrayLike, link: Link, gamma_s_per_byte: float = 0.0) -> Floats:
        """Return the seconds from the call until the last rank is done."""
        ranks, n = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(num_bytes, dtype=np.float64))
        assert (ranks >= 1).all()
        return np.where(ranks > 1, self.formula(ranks, n, link, gamma_s_per_byte), 0.0)


class CheapestCall(NamedTuple):
    """The cheapest algorithm of a call."""

    cost_s: Floats
    name: npt.NDArray[np.str_]


ALGORITHMS: dict[str, dict[str, Algorithm]] = {}
"""The algorithms of each call that has a cost, by their names."""


def algorithm(call: str, name: str) -> Callable[[Formula], Algorithm]:
    """Make a formula one of the algorithms of a call."""

    def register(formula: Formula) -> Algorithm:
        known = ALGORITHMS.setdefault(call, {})
        assert name not in known
        known[name] = Algorithm(call, name, formula)
        return known[name]

    return register


def algorithms(call: str) -> dict[str, Algorithm]:
    """Return the algorithms of a call by their names."""
    if call not in ALGORITHMS:
        unknown("call", call, ALGORITHMS)
    return ALGORITHMS[call]


def best(
    call: str, p: npt.ArrayLike, num_bytes: npt.ArrayLike, link: Link, gamma_s_per_byte: float = 0.0
) -> CheapestCall:
    """Return the cheapest algorithm's cost and name: what MPI libraries approximate by tables of thresholds."""
    found = algorithms(call)
    costs = np.stack([each(p, num_bytes, link, gamma_s_per_byte) for each in found.values()])
    return CheapestCall(costs.min(axis=0), np.array(list(found))[costs.argmin(axis=0)])


@algorithm("all-reduce", "ring")
def ring_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Pass pieces around a ring, once to sum them and once to spread the sums."""
    return pairwise_reduce_scatter.formula(p, n, link, gamma) + ring_all_gather.formula(p, n / p, link, gamma)


@algorithm("all-reduce", "recursive-doubling")
def recursive_doubling_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Exchange whole tensors with partners at distances 1, 2, 4 …; ranks beyond a power of two hand theirs in first."""
    butterfly = _lg_floor(p) * (link.turns * link.message_s(n) + n * gamma)
    return butterfly + _beyond_power(p) * (2 * link.message_s(n) + n * gamma)


@algorithm("all-reduce", "rabenseifner")
def rabenseifner_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling, both among a power of two of ranks."""
    q = power_below(p)
    inner = recursive_halving.formula(q, n, link, gamma) + recursive_doubling_all_gather.formula(q, n / q, link, gamma)
    return inner + _fold(p, n, link, gamma) + _beyond_power(p) * link.message_s(n)


@algorithm("all-reduce", "reduce-broadcast")
def reduce_broadcast(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Sum up a binomial tree and send the sum down again."""
    return binomial_reduce.formula(p, n, link, gamma) + binomial_broadcast.formula(p, n, link, gamma)


@algorithm("reduce", "binomial")
def binomial_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Sum up a binomial tree."""
    return _lg_ceil(p) * (link.message_s(n) + n * gamma)


@algorithm("reduce", "rabenseifner")
def rabenseifner_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Reduce-scatter by recursive halving, then gather the pieces up a binomial tree."""
    q = power_below(p)
    inner = recursive_halving.formula(q, n, link, gamma) + binomial_gather.formula(q, n / q, link, gamma)
    return inner + _fold(p, n, link, gamma)


@algorithm("broadcast", "binomial")
def binomial_broadcast(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send down a binomial tree."""
    return _lg_ceil(p) * link.message_s(n)


@algorithm("broadcast", "scatter-ring")
def scatter_ring(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Scatter pieces down a binomial tree, then pass them around a ring (van de Geijn)."""
    return binomial_scatter.formula(p, n / p, link, gamma) + ring_all_gather.formula(p, n / p, link, gamma)


@algorithm("broadcast", "scatter-doubling")
def scatter_doubling(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Scatter pieces down a binomial tree, then gather them everywhere by recursive doubling."""
    scatter = binomial_scatter.formula(p, n / p, link, gamma)
    return scatter + recursive_doubling_all_gather.formula(p, n / p, link, gamma)


@algorithm("all-gather", "ring")
def ring_all_gather(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Pass every rank's tensor around a ring."""
    return link.turns * (p - 1) * link.message_s(n)


@algorithm("all-gather", "recursive-doubling")
def recursive_doubling_all_gather(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Exchange all that one has with partners at distances 1, 2, 4 …; Bruck's way beside powers of two."""
    return link.turns * (_lg_ceil(p) * link.alpha_s + (p - 1) * n * link.beta_s_per_byte)


@algorithm("reduce-scatter", "pairwise")
def pairwise_reduce_scatter(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send each rank its piece, or pass pieces around a ring, which costs the same."""
    return (p - 1) * (link.turns * link.message_s(n / p) + n / p * gamma)


@algorithm("reduce-scatter", "recursive-halving")
def recursive_halving(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Do the all-gather of recursive doubling backwards."""
    return recursive_doubling_all_gather.formula(p, n / p, link, gamma) + (p - 1) / p * n * gamma


@algorithm("scatter", "binomial")
def binomial_scatter(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send each rank its tensor down a binomial tree."""
    return _lg_ceil(p) * link.alpha_s + (p - 1) * n * link.beta_s_per_byte


@algorithm("gather", "binomial")
def binomial_gather(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Do the scatter backwards."""
    return binomial_scatter.formula(p, n, link, gamma)


@algorithm("barrier", "dissemination")
def dissemination(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Signal ranks at distances 1, 2, 4 …"""
    return link.turns * _lg_ceil(p) * link.alpha_s


@algorithm("send", "direct")
def direct(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send one message from one rank to another."""
    return link.message_s(n)


def _fold(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Merge ranks beyond a power of two with a neighbour: swap halves, add, hand the second half over."""
    swap = link.turns * link.message_s(n / 2) + n / 2 * gamma
    return _beyond_power(p) * (swap + link.message_s(n / 2))


def _lg_floor(p: Floats) -> Floats:
    return np.frexp(p)[1] - 1.0


def _lg_ceil(p: Floats) -> Floats:
    return _lg_floor(p) + _beyond_power(p)


def power_below(p: Floats) -> Floats:
    """Return the greatest power of two that is not above p."""
    return np.exp2(_lg_floor(p))


def _beyond_power(p: Floats) -> Floats:
    """Return 1 where p is no power of two, else 0."""
    return (power_below(p) < p).astype(np.float64)
