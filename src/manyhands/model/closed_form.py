"""How long the slowest of so many ranks of a cluster is expected to compute.

For arrays of them, so that a hundred thousand configurations take seconds.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from manyhands.model.cluster import Cluster
from manyhands.model.links import Floats


class Compute(Protocol):
    """What a step's compute takes on the calibrated machine, such as a `Slowest`."""

    def expected_s(self, p: npt.ArrayLike) -> Floats:
        """Return the expected slowest of p ranks."""


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
