"""The time of a synchronous step without running it: the expected slowest compute, then what is exchanged.

Vectorised over everything that may differ between configurations, so that a hundred thousand take seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from manyhands.model.cluster import Cluster
from manyhands.model.hierarchy import call_s
from manyhands.model.links import Floats


class Compute(Protocol):
    """What a step's compute takes on the calibrated machine, such as a `Slowest`."""

    def expected_s(self, p: npt.ArrayLike) -> Floats:
        """Return the expected slowest of p ranks."""


@dataclass(frozen=True)
class Call:
    """A call of a `Comm` that every step makes."""

    name: str
    num_bytes: npt.ArrayLike
    """Of the tensor that is passed to the call; one for all configurations, or one for each."""
    per_step: float = 1.0
    """How often it is made; 1/8 for once in eight steps."""


def step_s(
    p: npt.ArrayLike, compute: Compute, calls: Sequence[Call], cluster: Cluster, gamma_s_per_byte: float = 0.0
) -> Floats:
    """Return the expected time of a step of p ranks, for arrays of p."""
    cluster.check_room(int(np.max(p)))
    exchange = [each.per_step * call_s(each.name, p, each.num_bytes, cluster, gamma_s_per_byte) for each in calls]
    return np.asarray(sum(exchange, slowest_s(p, compute, cluster)))


def slowest_s(p: npt.ArrayLike, compute: Compute, cluster: Cluster) -> Floats:
    """Return the expected slowest compute of the first p ranks.

    With slow nodes it is the slowest of the kind of node that is expected to take longest: a little less than the truth
    where two kinds are about as slow.
    """
    ranks = np.asarray(p, dtype=np.int64)
    of_factor = {1.0: ranks.copy()}
    for node in cluster.slow:
        here = np.clip(ranks - node.node * cluster.node_size, 0, cluster.node_size)
        of_factor[1.0] = of_factor[1.0] - here
        of_factor[node.factor] = of_factor.get(node.factor, 0) + here
    kinds = [
        np.where(count > 0, factor * compute.expected_s(np.maximum(count, 1)), 0.0)
        for factor, count in of_factor.items()
    ]
    return np.asarray(np.max(kinds, axis=0) / cluster.core_speed)
