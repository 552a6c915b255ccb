"""A cluster to predict for, as described by a TOML file: its nodes, links, price and failure rate.

Latencies are half of an MPI ping-pong with an empty message; rates are the bandwidth of a large message. The predefined
links have typical figures:

- `shared-memory`: two processes of a host; the OSU micro-benchmarks give 0.3 to 0.6 µs and about 10 GB/s per pair.
- `ethernet-1g`, `ethernet-10g`: MPI over TCP, where most of the latency is the kernel's; 1,448 of the 1,538 bytes that
  a full frame takes on the wire are payload, 94 %.
- `infiniband`: HDR, 200 Gb/s; the OSU micro-benchmarks give 1.0 to 1.3 µs and about 24.5 GB/s.
- `nvlink`: NVLink 4 of an H100, 450 GB/s each way, of which NCCL's all-reduce reaches about 360; NCCL's cost table
  has 3.4 µs per hop.
- `pcie`: PCI Express 4.0 with 16 lanes, 31.5 GB/s each way, of which copies between GPUs reach about 24; NCCL's cost
  table has 5.7 µs per hop.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from manyhands.config import parse_toml, sentence_of
from manyhands.errors import UserError, check, shown, unknown
from manyhands.model.links import Floats, Link

MOST = 1_000_000
"""Nodes, and ranks per node, that a cluster may have: a larger number is taken for a typing error."""
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class LinkSpec(BaseModel):
    """A link in the units of a cluster file."""

    model_config = STRICT

    latency_us: float = Field(ge=0, le=1e9)
    """Microseconds of an empty message."""
    gigabit_per_s: float = Field(gt=0, le=1e9)
    """Bandwidth of a large message, each way."""
    overhead_us: float = Field(default=0.0, ge=0)
    """Part of the latency that occupies a port, so that messages to one server queue for it."""
    duplex: Literal["full", "half"] = "full"
    """Whether a port sends and receives at the same time."""

    def link(self) -> Link:
        """Return the link in seconds and bytes."""
        return Link(self.latency_us * 1e-6, 8e-9 / self.gigabit_per_s, self.overhead_us * 1e-6, self.duplex == "full")


READY_LINKS = {
    "shared-memory": LinkSpec(latency_us=0.5, gigabit_per_s=80, overhead_us=0.2),
    "ethernet-1g": LinkSpec(latency_us=30, gigabit_per_s=0.94, overhead_us=5),
    "ethernet-10g": LinkSpec(latency_us=15, gigabit_per_s=9.4, overhead_us=3),
    "infiniband": LinkSpec(latency_us=1.1, gigabit_per_s=196, overhead_us=0.2),
    "nvlink": LinkSpec(latency_us=3.4, gigabit_per_s=2900, overhead_us=0.5),
    "pcie": LinkSpec(latency_us=5.7, gigabit_per_s=190, overhead_us=0.5),
}


def _link_of(value: object) -> object:
    """Replace the name of a predefined link by the link."""
    if isinstance(value, str):
        if value not in READY_LINKS:
            unknown("link", value, READY_LINKS)
        return READY_LINKS[value]
    check(
        isinstance(value, dict | LinkSpec),
        f"a link is one of {', '.join(READY_LINKS)}, or a table with latency_us and gigabit_per_s, got {shown(value)}",
    )
    return value


class SlowNode(BaseModel):
    """A node that computes more slowly than the others."""

    model_config = STRICT

    node: int = Field(ge=0)
    """Index of the node; the first is 0."""
    factor: float = Field(ge=1, le=1e6)
    """Slow-down of its ranks' compute."""


def _slow_nodes_of(value: object) -> object:
    is_list = isinstance(value, list | tuple) and all(isinstance(entry, dict | SlowNode) for entry in value)
    check(is_list, f"slow is a list such as [{{ node = 3, factor = 2.0 }}], got {shown(value)}")
    return tuple(value)  # type: ignore[arg-type]


class Cluster(BaseModel):
    """Nodes with equally many ranks, numbered node by node: the first node has the first ranks."""

    model_config = STRICT

    nodes: int = Field(ge=1, le=MOST)
    """Number of nodes."""
    cores: int = Field(ge=1, le=MOST)
    """Cores per node, or GPUs where these compute."""
    ranks_per_node: int = Field(default=0, ge=0)
    """Ranks per node; 0 for one on each core."""
    core_speed: float = Field(default=1.0, gt=0, le=1e6)
    """Speed of a core relative to the calibrated machine's."""
    inside: Annotated[LinkSpec, BeforeValidator(_link_of)] = READY_LINKS["shared-memory"]
    """Link between the ranks of a node."""
    between: Annotated[LinkSpec, BeforeValidator(_link_of)]
    """Link between nodes: each node has one port, which its ranks share."""
    price_per_hour: float = Field(default=0.0, ge=0, le=1e9)
    """Price of a node per hour."""
    currency: str = "USD"
    slow: Annotated[tuple[SlowNode, ...], BeforeValidator(_slow_nodes_of)] = ()
    """Nodes that are slower than the others."""
    mtbf_hours: float | None = Field(default=None, gt=0)
    """Mean time between failures of a node, in hours; without it, no node fails."""
    restart_s: float = Field(default=0.0, ge=0, le=1e7)
    """Seconds from a failure until all ranks compute again."""

    def model_post_init(self, _: Any) -> None:
        """Check settings that depend on each other."""
        for name, link in (("inside", self.inside), ("between", self.between)):
            check(
                link.overhead_us <= link.latency_us,
                f"overhead_us is a part of latency_us, got {link.overhead_us:g} of {link.latency_us:g} for '{name}'",
            )
        check(
            self.ranks_per_node <= self.cores,
            f"ranks_per_node must be at most the {self.cores} cores of a node, got {self.ranks_per_node}",
        )
        last = self.nodes - 1
        for node, count in Counter(slow.node for slow in self.slow).items():
            check(node <= last, f"slow names node {node}, but the {self.nodes} nodes are numbered 0 to {last}")
            check(count == 1, f"slow names node {node} {count} times; once is enough")

    @property
    def node_size(self) -> int:
        """Ranks that a node has: `ranks_per_node`, or one per core."""
        return self.ranks_per_node or self.cores

    @property
    def max_ranks(self) -> int:
        """Ranks of the whole cluster."""
        return self.nodes * self.node_size

    def check_room(self, p: int) -> None:
        """Raise a `UserError` if the cluster has fewer than p ranks."""
        room = f"{self.max_ranks}: {self.nodes} nodes of {self.node_size}"
        check(p <= self.max_ranks, f"{p} ranks are more than the cluster has room for, which is {room}")

    def nodes_of(self, p: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the number of nodes that p ranks occupy."""
        return -(-np.asarray(p, dtype=np.int64) // self.node_size)

    def slowness(self, p: int) -> Floats:
        """Return the slow-down of each of p ranks relative to a core of the calibrated machine."""
        of_rank = np.full(p, 1 / self.core_speed)
        for slow in self.slow:
            of_rank[slow.node * self.node_size : (slow.node + 1) * self.node_size] *= slow.factor
        return of_rank

    def price(self, p: npt.ArrayLike, seconds: npt.ArrayLike) -> Floats:
        """Return the price of p ranks for `seconds`; a node is paid for as a whole."""
        return np.asarray(self.nodes_of(p) * np.asarray(seconds) / 3600 * self.price_per_hour)


READY_CLUSTERS = {
    name: Cluster(nodes=MOST, cores=1, between=READY_LINKS[name])
    for name in ("ethernet-1g", "ethernet-10g", "infiniband")
} | {
    name: Cluster(nodes=MOST, cores=8, inside=READY_LINKS[name], between=READY_LINKS["infiniband"])
    for name in ("nvlink", "pcie")
}
"""Predefined clusters of any size: nodes of one rank, or of eight GPUs that NVLink or PCI Express connects."""


def read_cluster(path_or_name: str | Path) -> Cluster:
    """Read a cluster's TOML file, or return the predefined cluster of this name."""
    if isinstance(path_or_name, str) and path_or_name in READY_CLUSTERS:
        return READY_CLUSTERS[path_or_name]
    path = Path(path_or_name)
    if not os.path.exists(path) and len(path.parts) == 1 and not path.suffix:
        unknown("cluster", str(path), [*READY_CLUSTERS, "FILE.toml"])
    try:
        return _validated(parse_toml(path.read_bytes()))
    except FileNotFoundError:
        problem = "there is no such file"
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}"
    except UserError as error:
        problem = str(error)
    except ValueError as error:
        problem = f"it is not valid TOML: {error}"
    raise UserError(f"cluster file '{path}': {problem}")


def _validated(values: dict[str, Any]) -> Cluster:
    try:
        return Cluster.model_validate(values)
    except ValidationError as error:
        for other in error.errors():
            if other["type"] == "extra_forbidden":
                # The depth tells the table: `nodes`, `inside.duplex` or `slow.0.node`.
                model, kind = ((Cluster, "cluster"), (LinkSpec, "link"), (SlowNode, "slow node"))[len(other["loc"]) - 1]
                unknown(f"setting of a {kind}", str(other["loc"][-1]), model.model_fields)
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        missing = first["type"] == "missing"
        raise UserError(f"it needs a value for {name}" if missing else sentence_of(error, name=name)) from None
