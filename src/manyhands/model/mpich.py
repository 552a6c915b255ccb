"""The algorithms that MPICH chooses for its collectives, by ranks and bytes alone, independent of the link.

Thakur, Rabenseifner and Gropp (2005) chose the thresholds, and they are still MPICH's defaults. Where p is not a power
of two, MPICH first sends the whole tensor of each extra rank to a neighbour. This neighbour arrives late at the
recursive halving, where its partner already waits: their messages do not overlap as they do between ranks that arrive
together, since the partner's clear-to-send queues behind the neighbour's own data.
"""

import numpy as np

from manyhands.model.collectives import ALGORITHMS, Formula, power_below, rabenseifner_all_reduce, rabenseifner_reduce
from manyhands.model.links import Floats, Link

SHORT_REDUCE = 2048
"""Bytes up to which all-reduce and reduce send whole tensors."""
SHORT_BROADCAST, LONG_BROADCAST, FEW = 12_288, 524_288, 8
"""A broadcast of fewer bytes than the first, or among fewer ranks than the last, uses a binomial tree."""
SHORT_GATHER, LONG_GATHER = 81_920, 524_288
"""Bytes of all ranks' tensors together."""
LONG_SCATTER = 524_288


def chosen(call: str, p: float, num_bytes: float, *, between_hosts: bool = False) -> Formula:
    """Return the formula of the algorithm that MPICH uses for `call` among p ranks."""
    power = p == power_below(np.asarray(float(p)))
    formulas = ALGORITHMS[call]
    match call:
        case "all-reduce":
            return halving_all_reduce if num_bytes > SHORT_REDUCE else formulas["recursive-doubling"]
        case "reduce":
            return halving_reduce if num_bytes > SHORT_REDUCE else formulas["binomial"]
        case "broadcast":
            if between_hosts and p < FEW:
                return tree_between_hosts
            if num_bytes < SHORT_BROADCAST or p < FEW:
                return formulas["binomial"]
            return formulas["scatter-doubling" if num_bytes < LONG_BROADCAST and power else "scatter-ring"]
        case "all-gather":
            long = LONG_GATHER if power else SHORT_GATHER
            return formulas["recursive-doubling" if p * num_bytes < long else "ring"]
        case "reduce-scatter":
            return formulas["recursive-halving" if num_bytes < LONG_SCATTER else "pairwise"]
    return next(iter(formulas.values()))


def halving_all_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Run Rabenseifner's all-reduce; neighbours of extra ranks first take their tensors, and return the sums."""
    q = power_below(p)
    extra = (q < p).astype(np.float64)
    return rabenseifner_all_reduce(q, n, link, gamma) + _extra_ranks_s(p, n, link, gamma) + extra * link.message_s(n)


def halving_reduce(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Run Rabenseifner's reduce; neighbours of extra ranks first take their tensors."""
    return rabenseifner_reduce(power_below(p), n, link, gamma) + _extra_ranks_s(p, n, link, gamma)


def tree_between_hosts(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Broadcast down a binomial tree in which a rank sends to all its children at once, so that they share its port.

    All children receive the tensor at the same time; the one with the largest subtree decides when the next level ends.
    """
    messages, below = 0.0, float(p)
    while below > 1:
        children = np.ceil(np.log2(below))
        messages += children
        below = max(2.0 ** (children - 2), below - 2.0 ** (children - 1))
    rounds = np.ceil(np.log2(p))
    return rounds * link.alpha_s + messages * n * link.beta_s_per_byte


def _extra_ranks_s(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Return the cost of the extra ranks' tensors: message, addition, and the delay of the rank that takes it."""
    q = power_below(p)
    queued = (q - 1) / q * n * link.beta_s_per_byte if link.full_duplex else 0.0
    return np.where(q < p, link.message_s(n) + n * gamma + queued, 0.0)
