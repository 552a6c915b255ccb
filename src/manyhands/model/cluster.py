"""A cluster to predict for: its nodes, links, price and faults, as a TOML file tells them.

Latencies are those of an empty message through MPI, half of a ping-pong; rates are what a large message reaches. The
ready links have figures that are typical of their kind:

- `shared-memory`: two processes of a host; the OSU micro-benchmarks give 0.3 to 0.6 µs and about 10 GB/s a pair.
- `ethernet-1g`, `ethernet-10g`: MPI over TCP, whose latency is mostly the kernel's; of a full frame's 1,538 bytes on
  the wire 1,448 are payload, 94 %.
- `infiniband`: HDR, 200 Gb/s; the OSU micro-benchmarks give 1.0 to 1.3 µs and about 24.5 GB/s.
- `nvlink`: NVLink 4 of an H100, 450 GB/s each way, of which NCCL's all-reduce reaches about 360; NCCL's own table of
  costs counts 3.4 µs a hop.
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
"""Nodes, and ranks of a node, that a cluster may have: more is a slip of the pen."""
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _check_keys(kind: str, table: object, model: type[BaseModel]) -> None:
    if isinstance(table, dict):
        for key in table:
            if key not in model.model_fields:
                unknown(kind, key, model.model_fields)


class LinkSpec(BaseModel):
    """A link as people describe it."""

    model_config = STRICT

    latency_us: float = Field(ge=0, le=1e9)
    """Microseconds of an empty message."""
    gigabit_per_s: float = Field(gt=0, le=1e9)
    """Rate of a large message, each way."""
    overhead_us: float = Field(default=0.0, ge=0)
    """Part of the latency for which a port is busy, so that messages to one server queue up for it."""
    duplex: Literal["full", "half"] = "full"
    """Whether a port sends and receives at the same time."""

    def link(self) -> Link:
        """Return it in seconds and bytes."""
        return Link(self.latency_us * 1e-6, 8e-9 / self.gigabit_per_s, self.overhead_us * 1e-6, self.duplex == "full")


READY_LINKS = {
    "shared-memory": LinkSpec(latency_us=0.5, gigabit_per_s=80, overhead_us=0.2),
    "ethernet-1g": LinkSpec(latency_us=30, gigabit_per_s=0.94, overhead_us=5),
    "ethernet-10g": LinkSpec(latency_us=15, gigabit_per_s=9.4, overhead_us=3),
    "infiniband": LinkSpec(latency_us=1.1, gigabit_per_s=196, overhead_us=0.2),
    "nvlink": LinkSpec(latency_us=3.4, gigabit_per_s=2900, overhead_us=0.5),
}


def _read_link(given: object) -> object:
    """Look a name up, and check the keys of a table."""
    if isinstance(given, str):
        if given not in READY_LINKS:
            unknown("link", given, READY_LINKS)
        return READY_LINKS[given]
    ready = ", ".join(READY_LINKS)
    check(
        isinstance(given, dict | LinkSpec),
        f"a link is one of {ready}, or a table with latency_us and gigabit_per_s, got {shown(given)}",
    )
    _check_keys("setting of a link", given, LinkSpec)
    return given


class SlowNode(BaseModel):
    """A node that takes longer than the others."""

    model_config = STRICT

    node: int = Field(ge=0)
    """Which; the first is 0."""
    factor: float = Field(ge=1, le=1e6)
    """How many times as long its ranks compute."""


def _read_slow(given: object) -> object:
    """Check the keys of each slow node."""
    well = isinstance(given, list | tuple) and all(isinstance(each, dict | SlowNode) for each in given)
    check(well, f"slow is a list such as [{{ node = 3, factor = 2.0 }}], got {shown(given)}")
    assert isinstance(given, list | tuple)
    for each in given:
        _check_keys("setting of a slow node", each, SlowNode)
    return tuple(given)


class Cluster(BaseModel):
    """Nodes of equal ranks, which fill them in order: the first node has the first ranks."""

    model_config = STRICT

    nodes: int = Field(ge=1, le=MOST)
    """How many there are."""
    cores: int = Field(ge=1, le=MOST)
    """Cores of a node, or GPUs where these compute."""
    ranks_per_node: int = Field(default=0, ge=0)
    """Ranks that run on a node; 0 for one on each core."""
    core_speed: float = Field(default=1.0, gt=0, le=1e6)
    """How many times as fast a core computes as one of the machine that was calibrated."""
    inside: Annotated[LinkSpec, BeforeValidator(_read_link)] = READY_LINKS["shared-memory"]
    """The link between ranks of a node."""
    between: Annotated[LinkSpec, BeforeValidator(_read_link)]
    """The link between nodes: each has one port, which its ranks share."""
    price_per_hour: float = Field(default=0.0, ge=0, le=1e9)
    """Of a node."""
    currency: str = "USD"
    slow: Annotated[tuple[SlowNode, ...], BeforeValidator(_read_slow)] = ()
    """Nodes that are slower than the others."""
    mtbf_hours: float | None = Field(default=None, gt=0)
    """Hours between two failures of a node, on average; none fails if not given."""
    restart_s: float = Field(default=0.0, ge=0, le=1e7)
    """Seconds from a failure until all ranks compute again."""

    def model_post_init(self, _: Any) -> None:
        """Check what concerns several settings."""
        for name, link in (("inside", self.inside), ("between", self.between)):
            check(
                link.overhead_us <= link.latency_us,
                f"overhead_us is a part of latency_us, got {link.overhead_us:g} of {link.latency_us:g} for '{name}'",
            )
        check(
            self.ranks_per_node <= self.cores,
            f"ranks_per_node must be at most the {self.cores} cores of a node, got {self.ranks_per_node}",
        )
        times = Counter(each.node for each in self.slow)
        for node, count in times.items():
            last = self.nodes - 1
            check(node <= last, f"slow names node {node}, but the {self.nodes} nodes are numbered 0 to {last}")
            check(count == 1, f"slow names node {node} {count} times; once is enough")

    @property
    def node_size(self) -> int:
        """Ranks of a node."""
        return self.ranks_per_node or self.cores

    @property
    def max_ranks(self) -> int:
        """Ranks that the cluster has room for."""
        return self.nodes * self.node_size

    def check_room(self, p: int) -> None:
        """Refuse more ranks than there is room for."""
        room = f"{self.max_ranks}: {self.nodes} nodes of {self.node_size}"
        check(p <= self.max_ranks, f"{p} ranks are more than the cluster has room for, which is {room}")

    def nodes_of(self, p: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return how many nodes p ranks take."""
        return -(-np.asarray(p, dtype=np.int64) // self.node_size)

    def slowness(self, p: int) -> Floats:
        """Return for each of p ranks how many times as long it computes as a rank of the calibrated machine."""
        of_rank = np.full(p, 1 / self.core_speed)
        for each in self.slow:
            of_rank[each.node * self.node_size : (each.node + 1) * self.node_size] *= each.factor
        return of_rank

    def price(self, p: npt.ArrayLike, seconds: npt.ArrayLike) -> Floats:
        """Return what p ranks cost for so long; a node is paid for as a whole."""
        return np.asarray(self.nodes_of(p) * np.asarray(seconds) / 3600 * self.price_per_hour)


READY_CLUSTERS = {
    name: Cluster(nodes=MOST, cores=1, between=READY_LINKS[name])
    for name in ("ethernet-1g", "ethernet-10g", "infiniband")
} | {"nvlink": Cluster(nodes=MOST, cores=8, inside=READY_LINKS["nvlink"], between=READY_LINKS["infiniband"])}
"""As many nodes as one likes: of one rank, or of eight GPUs where NVLink joins them."""


def read_cluster(path_or_name: str | Path) -> Cluster:
    """Read a cluster's TOML file, or return a ready cluster by its name; a bad one is an error in one sentence."""
    if isinstance(path_or_name, str) and path_or_name in READY_CLUSTERS:
        return READY_CLUSTERS[path_or_name]
    path = Path(path_or_name)
    if not os.path.exists(path) and len(path.parts) == 1 and not path.suffix:
        unknown("cluster", str(path), [*READY_CLUSTERS, "FILE.toml"])
    try:
        return _make_cluster(_read_toml(path))
    except UserError as error:
        raise UserError(f"cluster file '{path}': {error}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_bytes())
    except FileNotFoundError:
        raise UserError("there is no such file") from None
    except OSError as error:
        raise UserError(f"it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"it is not valid TOML: {error}") from None


def _make_cluster(values: dict[str, Any]) -> Cluster:
    _check_keys("setting of a cluster", values, Cluster)
    try:
        return Cluster.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        missing = first["type"] == "missing"
        raise UserError(f"it needs a value for {name}" if missing else sentence_of(error, name=name)) from None
