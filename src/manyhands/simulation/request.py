"""The request of a simulation: numbers of nodes, strategies, batch, cluster."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal, cast, get_args

from manyhands import sync
from manyhands.errors import UserError, check, unknown
from manyhands.model.cluster import MOST, Cluster, read_cluster
from manyhands.record.calibration import Calibration
from manyhands.record.simulation import Unit
from manyhands.spec import cut_list, with_field_docs

MOST_COUNTS = 200_000
"""Numbers of nodes in one request: more are taken for a typing error."""
MOST_FOLLOWED = 200
"""Rows (numbers of nodes times strategies) up to which each is simulated by events."""
Way = Literal["auto", "events", "formula"]
"""How to predict: by events where there are few enough ranks, always by events, or by closed form."""
THIS_HOST, SUCH_HOSTS = "this host", "hosts like this one"
"""Names of the calibrated machine in records; the second where the links between hosts were calibrated."""


@dataclass(frozen=True)
class WorkerCount:
    """A number of workers, and the batch of their steps."""

    nodes: int
    workers: int
    batch_size: int
    """The global batch."""
    samples: int
    by: Unit = "nodes"
    """The unit of the request."""

    @property
    def number(self) -> int:
        """The requested number, of nodes or of workers."""
        return self.workers if self.by == "workers" else self.nodes

    @property
    def rows(self) -> int:
        """Rows of the worker that has the most."""
        return -(-self.batch_size // self.workers)

    @property
    def busy(self) -> int:
        """Workers that have any rows."""
        return min(self.workers, self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every sample is used once."""
        return -(-self.samples // self.batch_size)

    def shares(self) -> list[int]:
        """Return the rows of every worker, as a run divides a batch."""
        rows, longer = divmod(self.batch_size, self.workers)
        return [rows + (i < longer) for i in range(self.workers)]


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """The options of `manyhands simulate`."""

    task: str
    """Built-in task, or FILE.py:VARIABLE."""
    nodes: str | int | Sequence[int] | None = None
    """Numbers of nodes, such as `1,2,4,...,64`; either these or `workers`."""
    workers: str | int | Sequence[int] | None = None
    """Numbers of workers, in the same form."""
    syncs: str | Sequence[str] = "allreduce"
    """Strategies, such as `allreduce,local-sgd:period=8`."""
    cluster: str | Path | Cluster | None = None
    """A file, or the name of a predefined cluster; without it, this host with as many cores as workers."""
    calibration: Path | Calibration | None = None
    """The calibration; without it, the user's own file."""
    device: str = "cpu"
    """Where workers compute: `cpu`, or `cuda` for a GPU each."""
    engine: str = ""
    """Engine whose calibration is used; without it mpi, or torch for GPUs."""
    batch_size: int | str | None = None
    """Global batch; without it, the task's."""
    batch_per_worker: int | None = None
    """Rows of each worker, instead of a global batch."""
    steps: int = 0
    """Steps to simulate by events; 0 to choose."""
    method: str = "auto"
    """How to predict: auto, events or formula."""
    seed: int = 0
    """Seed of the random times of events."""
    train: Mapping[str, Any] | None = None
    """Options of `manyhands train`, `{}` or `{"epochs": 2}`, to train every row too, as those nodes would."""
    target_accuracy: float | None = None
    """Accuracy to which the time is reported, where rows are trained."""
    out: Path | None = None
    """Folder of all simulations; without it, nothing is stored."""
    command: str = ""
    """Command that repeats the simulation."""

    def __post_init__(self) -> None:
        check(self.steps >= 0, f"steps must be at least 1, got {self.steps}")
        check(self.seed >= 0, f"seed must be at least 0, got {self.seed}")
        both_or_none = (self.nodes is None) == (self.workers is None)
        check(not both_or_none, "say how many: --nodes 1,2,4 or --workers 1,2,4, not both")

    @property
    def by(self) -> Unit:
        """Whether the request counts in nodes or in workers."""
        return "workers" if self.nodes is None else "nodes"

    def counts(self) -> list[int]:
        """Return the numbers of nodes or workers, one per row."""
        return read_counts(self.workers or "" if self.nodes is None else self.nodes, self.by)

    def points(self, node_size: int, batch_size: int, samples: int) -> list[WorkerCount]:
        """Return workers and batch of each row; a batch per worker grows with them, up to all `samples`."""
        points = []
        for number in self.counts():
            nodes, workers = (number, number * node_size) if self.by == "nodes" else (-(-number // node_size), number)
            batch = min(samples, self.batch_per_worker * workers) if self.batch_per_worker else batch_size
            points.append(WorkerCount(nodes, workers, batch, samples, self.by))
        return points


def read_counts(text: str | int | Sequence[int], name: str = "nodes") -> list[int]:
    """Parse `1,2,4` or `1,2,4,...,1024`, where dots continue the numbers before them; sorted, without duplicates."""
    if isinstance(text, int):
        text = [text]
    counts = _parse_counts(text, name) if isinstance(text, str) else list(text)
    check(bool(counts), f"{name} must name at least one number, such as 1,2,4")
    for number in counts:
        check(1 <= number <= MOST, f"{name} must be from 1 to {MOST:,}, got {number}")
    check(len(counts) <= MOST_COUNTS, f"{name} has too many numbers; at most {MOST_COUNTS:,} are predicted at once")
    return sorted(set(counts))


def _parse_counts(text: str, name: str) -> list[int]:
    counts: list[int] = []
    parts = list(filter(None, cut_list(text)))
    for i, part in enumerate(parts):
        if re.fullmatch(r"…|\.{2,}", part):
            placed = len(counts) >= 2 and i == len(parts) - 2 and parts[-1].isdecimal()
            check(placed, f"dots in {name} stand between two numbers or more and the last one, as in 1,2,...,8")
            counts += _continued(counts, min(int(parts[-1]), MOST + 1))
        else:
            if not re.fullmatch(r"[+-]?\d+", part):
                raise UserError(f"{name} must be whole numbers, such as 1,2,4 or 1,2,4,...,1024, got '{part}'")
            counts.append(int(part))
    return counts


def _continued(before: Sequence[int], last: int) -> list[int]:
    """Return the numbers between `before` and `last`: geometric if the last three of `before` are, else arithmetic."""
    a, b = before[-2:]
    check(0 < a < b, f"dots continue an increasing sequence such as 1,2, not {a},{b}")
    if len(before) >= 3 and b % a == 0 and before[-3] * b == a * a:
        return list(takewhile(lambda number: number < last, (b * (b // a) ** k for k in count(1))))
    return list(range(2 * b - a, last, b - a)[: MOST_COUNTS + 1])


def read_syncs(text: str | Sequence[str]) -> list[str]:
    """Split `allreduce,compressed:codec=topk,ratio=0.01` into valid spec strings, without duplicates."""
    specs = _read_names(text)
    check(bool(specs), "syncs must name at least one, such as allreduce; 'manyhands syncs' lists them")
    for spec in specs:
        check(not sync.make(spec).replay, f"a simulation cannot replay a run, as '{spec}' asks for")
    return specs


def read_engines(text: str | Sequence[str]) -> list[str]:
    """Split `threads,mpi` into engines, without duplicates."""
    engines = _read_names(text)
    check(bool(engines), "engines must name at least one, such as threads,mpi")
    return engines


def _read_names(text: str | Sequence[str]) -> list[str]:
    names = cut_list(text) if isinstance(text, str) else [name.strip() for name in text]
    return list(dict.fromkeys(filter(None, names)))


def find_cluster(requested: str | Path | Cluster | None) -> tuple[Cluster | None, str]:
    """Return the requested cluster and its name; None for this host."""
    if requested is None or requested == THIS_HOST:
        return None, THIS_HOST
    if isinstance(requested, Cluster):
        return requested, "a cluster"
    return read_cluster(requested), str(requested)


def find_way(method: str, num_rows: int) -> Way:
    """Return the requested method; with very many rows, auto is the closed form."""
    if method not in get_args(Way):
        unknown("method", method, get_args(Way))
    return "formula" if method == "auto" and num_rows > MOST_FOLLOWED else cast(Way, method)


def check_batch(
    requested: int | str | None, per_worker: int | None, default: int | Literal["full"], samples: int
) -> int:
    """Return the global batch for a request without `per_worker`, which must not be given together with `requested`."""
    check(requested is None or per_worker is None, "give --batch-size or --batch-per-worker, not both")
    check(per_worker is None or per_worker >= 1, f"batch-per-worker must be at least 1, got {per_worker}")
    size = default if requested is None else requested
    if size == "full":
        return samples
    check(str(size).isdecimal() and int(size) >= 1, f"batch-size must be a whole number or 'full', got '{size}'")
    return min(int(size), samples)
