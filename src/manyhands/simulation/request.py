"""What a simulation was asked for: how many nodes, which strategies, which batch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manyhands import sync
from manyhands.errors import UserError, check, unknown
from manyhands.model.cluster import MOST, Cluster, read_cluster
from manyhands.record.calibration import Calibration
from manyhands.record.simulation import Unit
from manyhands.spec import cut_list, with_field_docs

MOST_COUNTS = 200_000
"""Numbers of nodes in one request: more is a slip of the pen."""
MOST_FOLLOWED = 200
"""Rows, numbers of nodes times strategies, up to which events are followed for each."""
Way = Literal["auto", "events", "formula"]
WAYS: tuple[Way, ...] = ("auto", "events", "formula")
"""How to predict: by events where these can be followed, only so, or by closed form."""
THIS_HOST, SUCH_HOSTS = "this host", "hosts like this one"
"""How records call the calibrated machine itself; the second where the links between hosts were calibrated."""


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """What a simulation is asked for: the options of `manyhands simulate`."""

    task: str
    """Built-in task, or FILE.py:VARIABLE."""
    nodes: str | int | Sequence[int] | None = None
    """How many nodes, such as `1,2,4,...,64`; either these or `workers`."""
    workers: str | int | Sequence[int] | None = None
    """How many workers, in the same form."""
    syncs: str | Sequence[str] = "allreduce"
    """Strategies, such as `allreduce,local-sgd:period=8`."""
    cluster: str | Path | Cluster | None = None
    """Where: a file, or the name of a ready network; without it, this host with as many cores as workers."""
    calibration: Path | Calibration | None = None
    """What was measured; without it, the user's own file."""
    engine: str = "mpi"
    """Engine whose calibration counts."""
    batch_size: int | str | None = None
    """Global batch; without it, the task's."""
    batch_per_worker: int | None = None
    """Rows of each worker, instead of a global batch."""
    steps: int = 0
    """Steps to follow by events; 0 to choose."""
    method: str = "auto"
    """How to predict: auto, events or formula."""
    seed: int = 0
    """Decides the random times of events."""
    train: Mapping[str, Any] | None = None
    """Options of `manyhands train`, `{}` or `{"epochs": 2}`, to train every row too, as those nodes would."""
    target_accuracy: float | None = None
    """Accuracy whose time is told, where rows are trained."""
    out: Path | None = None
    """Folder of all simulations; without it, nothing is kept."""
    command: str = ""
    """What to type to simulate it again."""

    def __post_init__(self) -> None:
        check(self.steps >= 0, f"steps must be at least 1, got {self.steps}")
        check(self.seed >= 0, f"seed must be at least 0, got {self.seed}")
        both_or_none = (self.nodes is None) == (self.workers is None)
        check(not both_or_none, "say how many: --nodes 1,2,4 or --workers 1,2,4, not both")

    @property
    def by(self) -> Unit:
        """What its rows are asked for by."""
        return "workers" if self.nodes is None else "nodes"

    def counts(self) -> list[int]:
        """Return how many nodes or workers there shall be in each row."""
        return read_counts(self.workers or "" if self.nodes is None else self.nodes, self.by)


@dataclass(frozen=True)
class WorkerCount:
    """So many workers, and what each of their steps is about."""

    nodes: int
    workers: int
    batch_size: int
    """The global batch."""
    samples: int
    by: Unit = "nodes"
    """Which of the two was asked for."""

    @property
    def number(self) -> int:
        """How many were asked for."""
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
        """Steps in which every sample is seen once."""
        return -(-self.samples // self.batch_size)

    def shares(self) -> list[int]:
        """Return every worker's rows, as a run cuts a batch."""
        each, longer = divmod(self.batch_size, self.workers)
        return [each + (i < longer) for i in range(self.workers)]


def read_counts(text: str | int | Sequence[int], name: str = "nodes") -> list[int]:
    """Read `1,2,4` or `1,2,4,...,1024`, where dots go on as the numbers before them do; each once, in order."""
    if isinstance(text, int):
        text = [text]
    found = _read_list(text, name) if isinstance(text, str) else list(text)
    check(bool(found), f"{name} must name at least one number, such as 1,2,4")
    for count in found:
        check(1 <= count <= MOST, f"{name} must be from 1 to {MOST:,}, got {count}")
    check(
        len(found) <= MOST_COUNTS,
        f"{name} has too many numbers; at most {MOST_COUNTS:,} are predicted at once",
    )
    return sorted(set(found))


def _read_list(text: str, name: str) -> list[int]:
    found: list[int] = []
    parts = list(filter(None, cut_list(text)))
    for i, part in enumerate(parts):
        if re.fullmatch(r"…|\.{2,}", part):
            well = len(found) >= 2 and i == len(parts) - 2 and parts[-1].isdecimal()
            check(well, f"dots in {name} stand between two numbers or more and the last one, as in 1,2,...,8")
            found += _going_on(found, min(int(parts[-1]), MOST + 1))
        else:
            if not re.fullmatch(r"[+-]?\d+", part):
                raise UserError(f"{name} must be whole numbers, such as 1,2,4 or 1,2,4,...,1024, got '{part}'")
            found.append(int(part))
    return found


def _going_on(before: Sequence[int], last: int) -> list[int]:
    """Return what comes between: by the same factor, where the last three have one, else by the same step."""
    a, b = before[-2:]
    check(0 < a < b, f"dots go on from numbers that grow, such as 1,2, not from {a},{b}")
    by_factor = len(before) >= 3 and b % a == 0 and before[-3] * b == a * a
    found: list[int] = []
    now = b
    while (now := now * (b // a) if by_factor else now + (b - a)) < last and len(found) <= MOST_COUNTS:
        found.append(now)
    return found


def read_syncs(text: str | Sequence[str]) -> list[str]:
    """Cut `allreduce,compressed:codec=topk,ratio=0.01` into its strategies, each once, and check them."""
    specs = _read_names(text)
    check(bool(specs), "syncs must name at least one, such as allreduce; 'manyhands syncs' lists them")
    for spec in specs:
        check(not sync.make(spec).replay, f"a simulation cannot replay a run, as '{spec}' asks for")
    return specs


def read_engines(text: str | Sequence[str]) -> list[str]:
    """Cut `threads,mpi` into its engines, each once."""
    engines = _read_names(text)
    check(bool(engines), "engines must name at least one, such as threads,mpi")
    return engines


def _read_names(text: str | Sequence[str]) -> list[str]:
    names = cut_list(text) if isinstance(text, str) else [name.strip() for name in text]
    return list(dict.fromkeys(filter(None, names)))


def find_cluster(given: str | Path | Cluster | None) -> tuple[Cluster | None, str]:
    """Return the cluster that is meant, and what to call it; none for this host."""
    if given is None or given == THIS_HOST:
        return None, THIS_HOST
    if isinstance(given, Cluster):
        return given, "a cluster"
    return read_cluster(given), str(given)


def find_way(given: str, num_rows: int) -> Way:
    """Return the way of predicting that is meant; of very many rows none is worth a run of events."""
    found = [way for way in WAYS if way == given]
    if not found:
        unknown("method", given, WAYS)
    return "formula" if given == "auto" and num_rows > MOST_FOLLOWED else found[0]


def check_batch(given: int | str | None, per_worker: int | None, own: int | Literal["full"], samples: int) -> int:
    """Return the global batch that is meant; a batch per worker is another one's business."""
    check(given is None or per_worker is None, "give --batch-size or --batch-per-worker, not both")
    check(per_worker is None or per_worker >= 1, f"batch-per-worker must be at least 1, got {per_worker}")
    wanted = own if given is None else given
    if wanted == "full":
        return samples
    check(str(wanted).isdecimal() and int(wanted) >= 1, f"batch-size must be a whole number or 'full', got '{wanted}'")
    return min(int(wanted), samples)


def make_points(
    counts: Sequence[int],
    by: Unit = "nodes",
    *,
    node_size: int,
    samples: int,
    batch_size: int,
    batch_per_worker: int | None,
) -> list[WorkerCount]:
    """Return what is to be predicted for so many nodes or workers; a batch per worker grows with them."""
    found = []
    for count in counts:
        nodes, workers = (count, count * node_size) if by == "nodes" else (-(-count // node_size), count)
        batch = min(samples, batch_per_worker * workers) if batch_per_worker else batch_size
        found.append(WorkerCount(nodes, workers, batch, samples, by))
    return found
