"""The algorithms that MPICH takes for its calls, by ranks and bytes alone: whatever the links are like.

Thakur, Rabenseifner and Gropp (2005) chose the thresholds, which its default settings still have. Where ranks are no
power of two, MPICH first hands the whole tensors of the extra ranks to a neighbour each. These neighbours come late to
the halving that follows, where their partners wait for them already: what the two send each other does not overlap as
it does among ranks that come together, since the word that a partner may send queues behind the neighbour's own data.
"""

import numpy as np

from manyhands.model.collectives import Formula, algorithms, power_below
from manyhands.model.links import Floats, Link

SHORT = 2048
"""Bytes up to which a reduction sends whole tensors."""
SHORT_BROADCAST, LONG_BROADCAST, FEW = 12_288, 524_288, 8
"""A short broadcast, or one of few ranks, is a tree."""
SHORT_GATHER, LONG_GATHER = 81_920, 524_288
"""Of all ranks' tensors together."""
LONG_SCATTER = 524_288


def chosen(call: str, p: float, num_bytes: float, *, between_hosts: bool = False) -> Formula:
    """Return the formula of the algorithm that MPICH takes for a call of p ranks."""
    if between_hosts and call == "broadcast" and p < FEW:
        return tree_between_hosts
    if call in ("all-reduce", "reduce") and num_bytes > SHORT:
        return halving_all_reduce if call == "all-reduce" else halving_reduce
    return algorithms(call)[_name(call, p, num_bytes)].formula


def _name(call: str, p: float, num_bytes: float) -> str:
    power = p == power_below(np.asarray(float(p)))
    match call:
        case "all-reduce":
            return "recursive-doubling"
        case "reduce":
            return "binomial"
        case "broadcast":
            if num_bytes < SHORT_BROADCAST or p < FEW:
                return "binomial"
            return "scatter-doubling" if num_bytes < LONG_BROADCAST and power else "scatter-ring"
        case "all-gather":
            together = p * num_bytes
            return "recursive-doubling" if together < (LONG_GATHER if power else SHORT_GATHER) else "ring"
        case "reduce-scatter":
            return "recursive-halving" if num_bytes < LONG_SCATTER else "pairwise"
    return next(iter(algorithms(call)))


def halving_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Do Rabenseifner's all-reduce; neighbours of extra ranks take their tensors first and hand the sums back."""
    q = power_below(p)
    extra = (q < p).astype(np.float64)
    inner = algorithms("all-reduce")["rabenseifner"].formula(q, n, link, gamma)
    return inner + _late(p, n, link, gamma) + extra * link.message_s(n)


def halving_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Do Rabenseifner's reduction; neighbours of extra ranks take their tensors first."""
    inner = algorithms("reduce")["rabenseifner"].formula(power_below(p), n, link, gamma)
    return inner + _late(p, n, link, gamma)


def tree_between_hosts(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Send down a binomial tree; a rank sends to all its children at once, so that they share its port.

    All children have the tensor at the same time, and only then does the one with the most below it go on.
    """
    messages, below = 0.0, float(p)
    while below > 1:
        children = np.ceil(np.log2(below))
        messages += children
        below = max(2.0 ** (children - 2), below - 2.0 ** (children - 1))
    rounds = np.ceil(np.log2(p))
    return rounds * link.alpha_s + messages * n * link.beta_s_per_byte


def _late(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Return what the extra ranks' tensors cost, and what is in the way of those that take them."""
    q = power_below(p)
    queued = (q - 1) / q * n * link.beta_s_per_byte if link.full_duplex else 0.0
    return np.where(q < p, link.message_s(n) + n * gamma + queued, 0.0)
