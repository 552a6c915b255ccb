"""Costs of collectives on a cluster with several ranks per node: inside the nodes, between node leaders, and back.

MPI libraries that know which ranks share a host proceed this way (Graham and Shipman 2008): only one rank of a node
uses its port at a time.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from manyhands.model.cluster import Cluster
from manyhands.model.collectives import best_s
from manyhands.model.links import Floats


class LevelCall(NamedTuple):
    """A call among the ranks of each node, or among the nodes' leaders."""

    inside: bool
    call: str
    num_bytes: Callable[[Floats, Floats, Floats], Floats] = lambda n, nodes, size: n
    """Bytes of this call, given those of the whole collective, the nodes, and the ranks per node."""


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
"""The parts of each hierarchical collective; other calls send every message directly from rank to rank."""


def hierarchical_s(
    call: str, nodes: npt.ArrayLike, node_size: npt.ArrayLike, num_bytes: npt.ArrayLike, cluster: Cluster, gamma: float
) -> Floats:
    """Return the cost of `call` among all ranks of `nodes` nodes with `node_size` ranks each.

    Each part uses its cheapest algorithm; `gamma` is γ of a calibrated core in seconds per byte.
    """
    k, m, n = (np.asarray(values, dtype=np.float64) for values in (nodes, node_size, num_bytes))
    inside, between, gamma = cluster.inside.link(), cluster.between.link(), gamma / cluster.core_speed
    in_one_node = best_s(call, m, n, inside, gamma)
    if call in PARTS:
        costs = []
        for part in PARTS[call]:
            ranks, link = (m, inside) if part.inside else (k, between)
            costs.append(best_s(part.call, ranks, part.num_bytes(n, k, m), link, gamma))
        across = np.asarray(sum(costs))
    else:
        across = best_s(call, k * m, n, between, gamma)
    return np.where(k == 1, in_one_node, across)


def call_s(call: str, p: npt.ArrayLike, num_bytes: npt.ArrayLike, cluster: Cluster, gamma: float) -> Floats:
    """Return the cost of `call` among the first p ranks of `cluster`."""
    size = np.minimum(np.asarray(p), cluster.node_size)
    return hierarchical_s(call, cluster.nodes_of(p), size, num_bytes, cluster, gamma)
