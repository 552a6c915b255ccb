"""Which groups of ranks the suites are run in."""

from dataclasses import dataclass
from pathlib import Path

from manyhands import launch
from manyhands.config import RunConfig, make_config

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

    def config(self, task: Path | str) -> RunConfig:
        """Describe a run in this group; the suites' workers read only engine, workers and threads."""
        return make_config(
            {"task": str(task), "engine": self.engine, "workers": self.workers, "threads": self.threads}
        )


def groups() -> list[Group]:
    """List the groups of every engine, of those too that are added later."""
    found = []
    for engine in launch.names():
        if engine == "serial":
            found.append(Group(engine, 1))
        elif engine == "hybrid":
            found += [Group(engine, workers, threads) for workers, threads in HYBRID]
        else:
            found += [Group(engine, workers) for workers in SIZES]
    return found
