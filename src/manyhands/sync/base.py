"""The protocol of a strategy. A new one is one file in this folder; its name is the module's name."""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from manyhands import registry, spec
from manyhands.comm import Comm
from manyhands.errors import check
from manyhands.replica import Replica


@dataclass(kw_only=True, slots=True)
class Sync(ABC):
    """What the ranks exchange in each step. The fields of a strategy are its options."""

    exact: ClassVar[bool]
    """Whether n workers give the answer of one, on the same global batches."""
    requires: ClassVar[frozenset[str]] = frozenset()
    """The comm features it needs."""

    def start(self, replica: Replica, comm: Comm) -> None:
        """Give every rank the first rank's weights."""
        comm.broadcast_(replica.params)

    @abstractmethod
    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Exchange after step `i`'s gradients, and let the optimiser act: the order is the strategy."""

    def serve(self, replica: Replica, comm: Comm) -> None:  # noqa: B027
        """Be a server until the workers are done; only strategies with server ranks have them."""

    def finish(self, replica: Replica, comm: Comm) -> None:  # noqa: B027
        """Leave every rank with the final weights."""


def make(text: str) -> Sync:
    """Make a strategy from its spec string, such as `allreduce`."""
    name, options = spec.parse(text)
    cls = registry.find(sys.modules[__package__], Sync, name, "sync")  # type: ignore[type-abstract]
    return spec.build(cls, options, f"sync '{name}'")


def check_features(sync: Sync, features: frozenset[str], engine: str) -> None:
    """Refuse a strategy that needs what the engine's comm cannot do."""
    missing = sorted(sync.requires - features)
    check(not missing, f"this sync needs {', '.join(missing)}, which engine '{engine}' does not have")
