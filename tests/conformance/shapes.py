"""Which groups of ranks the suites are run in."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from manyhands import launch
from manyhands.config import RunConfig, make_config
from manyhands.launch.base import Worker
from manyhands.record.run import RunDir, open_run
from manyhands.run import ignore
from manyhands.training.job import Job

SIZES = (1, 2, 3, 5)
"""One, two, odd, and an odd number that is more than the lanes' halves share out evenly."""

HYBRID = ((1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (1, 5))
"""Processes and threads in each."""


@dataclass(frozen=True)
class Group:
    """An engine with its numbers of workers and threads."""

    engine: str
    workers: int
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.engine}-{self.workers}x{self.threads}" if self.threads > 1 else f"{self.engine}-{self.workers}"

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.workers * self.threads

    @property
    def features(self) -> frozenset[str]:
        """What its comm can do."""
        return launch.make(self.engine).features

    def config(self, **settings: object) -> RunConfig:
        """Describe a run in this group."""
        own = {"task": "mlp", "engine": self.engine, "workers": self.workers, "threads": self.threads}
        return make_config({**own, **settings})

    def launch(self, worker: Worker, out: Path, **settings: object) -> list[dict[str, Any]]:
        """Run the worker on every rank, through the real launcher, in a folder of its own."""
        config, run = self.config(**settings), RunDir(out / str(self))
        open_run(run, config)
        return launch.make(self.engine).launch(worker, Job(config, run), ignore)


def groups() -> list[Group]:
    """List the groups of every engine, of those too that are added later."""
    found = []
    for engine in launch.names():
        if engine == "ray" and find_spec("ray") is None:
            continue  # an extra
        if engine == "serial":
            found.append(Group(engine, 1))
        elif engine == "hybrid":
            found += [Group(engine, workers, threads) for workers, threads in HYBRID]
        else:
            found += [Group(engine, workers) for workers in SIZES]
    return found
