"""What each call costs on a cluster whose nodes have several ranks: inside the nodes, between their leaders, and back.

The leaders' way is that of MPI libraries that know which ranks share a host (Graham and Shipman 2008): only one rank of
a node uses its port at a time.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from manyhands.model.cluster import Cluster
from manyhands.model.collectives import best
from manyhands.model.links import Floats, Link


class LevelCall(NamedTuple):
    """A call of the ranks of a node, or of the nodes' leaders."""

    inside: bool
    call: str
    num_bytes: Callable[[Floats, Floats, Floats], Floats] = lambda n, nodes, size: n
    """Of the whole call's bytes, the nodes, and the ranks of a node."""


PARTS: dict[str, tuple[LevelCall, ...]] = {
    "all-reduce": (LevelCall(True, "reduce"), LevelCall(False, "all-reduce"), LevelCall(True, "broadcast")),
    "reduce": (LevelCall(True, "reduce"), LevelCall(False, "reduce")),
    "broadcast": (LevelCall(False, "broadcast"), LevelCall(True, "broadcast")),
    "all-gather": (
        LevelCall(True, "gather"),
        LevelCall(False, "all-gather", lambda n, nodes, size: n * size),
        LevelCall(True, "broadcast", lambda n, nodes, size: n * size * nodes),
    ),
    "reduce-scatter": (
        LevelCall(True, "reduce"),
        LevelCall(False, "reduce-scatter"),
        LevelCall(True, "scatter", lambda n, nodes, size: n / (size * nodes)),
    ),
    "barrier": (LevelCall(True, "barrier"), LevelCall(False, "barrier"), LevelCall(True, "barrier")),
}
"""Calls that nodes do in parts; of the others every message goes straight from one rank to another."""


def hierarchical_s(
    call: str,
    nodes: npt.ArrayLike,
    node_size: npt.ArrayLike,
    num_bytes: npt.ArrayLike,
    inside: Link,
    between: Link,
    gamma_s_per_byte: float = 0.0,
) -> Floats:
    """Return the cost of a call among all ranks of some nodes, each part by its cheapest algorithm."""
    k, m, n = (np.asarray(each, dtype=np.float64) for each in (nodes, node_size, num_bytes))
    in_one_node = best(call, m, n, inside, gamma_s_per_byte).cost_s
    if call in PARTS:
        costs = [
            best(part.call, m, part.num_bytes(n, k, m), inside, gamma_s_per_byte).cost_s
            if part.inside
            else best(part.call, k, part.num_bytes(n, k, m), between, gamma_s_per_byte).cost_s
            for part in PARTS[call]
        ]
        across = np.asarray(sum(costs))
    else:
        across = best(call, k * m, n, between, gamma_s_per_byte).cost_s
    return np.where(k == 1, in_one_node, across)


def call_s(
    call: str, p: npt.ArrayLike, num_bytes: npt.ArrayLike, cluster: Cluster, gamma_s_per_byte: float = 0.0
) -> Floats:
    """Return the cost of a call among the first p ranks of a cluster; γ is the calibrated core's."""
    nodes, size = cluster.nodes_of(p), np.minimum(np.asarray(p), cluster.node_size)
    gamma = gamma_s_per_byte / cluster.core_speed
    return hierarchical_s(call, nodes, size, num_bytes, cluster.inside.link(), cluster.between.link(), gamma)
