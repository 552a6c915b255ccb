"""The protocol of a strategy. A new one is one file in this folder; its name is the module's name."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from torch import Tensor

from manyhands import registry, spec
from manyhands.codec import Codec
from manyhands.comm import Comm
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.replica import Replica
from manyhands.replica.update import Moments


@dataclass(kw_only=True, slots=True)
class Sync(ABC):
    """What the ranks exchange in each step. The fields of a strategy are its options.

    The ranks of `comm` are the workers, followed by the servers of strategies that have some.
    """

    exact: ClassVar[bool]
    """Whether n workers give the same weights as one, on the same global batches."""
    requires: ClassVar[frozenset[str]] = frozenset()
    """The features of the comm that the strategy needs."""
    apart: ClassVar[bool] = False
    """Whether the ranks may hold different weights between two steps."""
    lockstep: ClassVar[bool] = True
    """Whether every worker is at the same step as the others."""
    own_split: ClassVar[bool] = False
    """Whether a worker sees the same part of the training data in every epoch."""
    updates: ClassVar[Literal["all", "slice", "root", "servers"]] = "all"
    """Who runs the optimiser: each worker on all weights, each worker on its slice, rank 0, or the servers."""
    exchanges: ClassVar[Literal["step", "period", "epoch", "end"]] = "step"
    """When the ranks exchange: in every step, every `period` steps, after each epoch, or at the end of the run."""
    listens: ClassVar[bool] = False
    """Whether gradients are exchanged while the backward pass still computes others."""
    pattern: ClassVar[Literal["", "mean", "ring", "star"]] = ""
    """The pattern of the exchange, if it is one of these: a prediction then need not run the strategy's code.

    The workers step alone and take the "mean" of all weights, or of their own and both neighbours' on a "ring"; in a
    "star" each worker sends its gradient to the ranks that update and gets their weights: if `lockstep`, after all
    gradients have arrived.
    """

    # These have factories because a subclass without slots would not be given a plain default.
    text: str = field(init=False, repr=False, compare=False, default_factory=str)
    """The spec string that was given to `make`, such as `local-sgd:period=8`."""
    period: int = field(init=False, repr=False, default_factory=lambda: 1)
    """Steps from one exchange to the next, in a strategy that has it as an option; 1 in all others."""
    replay: str = field(init=False, repr=False, default_factory=str)
    """Folder of an earlier run whose order of updates is repeated, in a strategy that has it as an option."""
    codec: Codec | None = field(init=False, repr=False, default_factory=lambda: None)
    """The codec that compresses the messages, in a strategy that has one."""

    @classmethod
    def from_options(cls, options: Mapping[str, str], owner: str) -> Self:
        """Make the strategy from the texts of its options; `owner` is its name in error messages."""
        return spec.build(cls, options, owner)

    @classmethod
    def describe_options(cls) -> list[spec.Option]:
        """Return the options that `from_options` takes."""
        return spec.describe(cls)

    def meet_s(self) -> float:
        """Return the seconds between two meetings of the workers, which share losses, times and stop requests."""
        return 0.25

    def check_run(self, config: RunConfig, steps: int, steps_per_epoch: int) -> None:  # noqa: B027
        """Raise a UserError, before any rank is started, for a run that this strategy cannot do."""

    def num_servers(self) -> int:
        """Return the number of ranks beyond the workers, which hold weights and run `serve`."""
        return 0

    def start(self, replica: Replica, comm: Comm) -> None:
        """Give every rank the first rank's weights."""
        comm.broadcast_(replica.params)

    @abstractmethod
    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Exchange the gradients or weights of step `i` and apply the optimiser, in the order of the strategy.

        A worker's `grads` hold its share of the mean over the global batch: their sum over the workers is the whole.
        """

    def end_epoch(self, replica: Replica, comm: Comm) -> None:  # noqa: B027
        """Exchange after the last step of an epoch."""

    def serve(self, replica: Replica, comm: Comm) -> None:  # noqa: B027
        """Run as a server until the workers are done."""

    def settle(self, replica: Replica, comm: Comm) -> None:  # noqa: B027
        """Give every worker the weights that the run would have if it ended now."""

    def finish(self, replica: Replica, comm: Comm) -> None:
        """Give every worker the final weights, and end the servers."""
        self.settle(replica, comm)

    def moments(self, replica: Replica, comm: Comm) -> Moments:
        """Return, on rank 0, the whole optimiser state for a checkpoint."""
        return replica.update.moments()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold besides weights and optimiser state."""
        return {}

    def events(self) -> list[dict[str, int]]:
        """Return one entry for each update of this server."""
        return []

    def notes(self) -> dict[str, float]:
        """Return figures of the strategy for the record, such as the staleness of gradients."""
        return {}


@dataclass(kw_only=True, slots=True)
class AveragedSync(Sync, ABC):
    """A strategy whose workers step by themselves; the mean of their weights is the run's result."""

    exact: ClassVar[bool] = False
    apart: ClassVar[bool] = True

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        apply_alone(replica, comm)

    def settle(self, replica: Replica, comm: Comm) -> None:
        mean_(comm, replica.params)


@contextmanager
def settled(sync: Sync, replica: Replica, comm: Comm) -> Iterator[None]:
    """Give every worker, inside the block, the weights that the run would have if it ended now."""
    before = replica.params.clone() if sync.apart or not sync.lockstep else None
    sync.settle(replica, comm)
    yield
    if before is not None:
        replica.params.copy_(before)


def make(text: str) -> Sync:
    """Make a strategy from its spec string, such as `local-sgd:period=8`."""
    name, options = spec.parse(text)
    cls = registry.find(sys.modules[__package__], Sync, name, "sync")  # type: ignore[type-abstract]
    strategy = cls.from_options(options, f"sync '{name}'")
    strategy.text = text
    return strategy


def num_ranks(config: RunConfig) -> int:
    """Return the number of ranks of a run: the workers, and the servers of its strategy."""
    return config.size + make(config.sync).num_servers()


def check_features(sync: Sync, features: frozenset[str], engine: str) -> None:
    """Raise a UserError if the strategy needs a feature that the engine's comm does not have."""
    missing = sorted(sync.requires - features)
    check(
        not missing,
        f"this sync needs {', '.join(missing)}, which engine '{engine}' does not have; see 'manyhands syncs'",
    )


def apply_alone(replica: Replica, comm: Comm) -> None:
    """Step with this worker's gradient times the number of workers, whose mean is the gradient of the global batch."""
    replica.grads.mul_(comm.size)
    replica.apply()


def mean_(comm: Comm, t: Tensor) -> None:
    """Replace `t` on every rank by its mean over the ranks."""
    comm.all_reduce_(t)
    t /= comm.size
