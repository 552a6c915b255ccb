"""Count what a step has to do, whatever the machine: floating-point operations, and operations of torch."""

from typing import Any, NamedTuple, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from manyhands.config import RunConfig
from manyhands.data import Split
from manyhands.replica import Replica
from manyhands.training.plan import Plan
from manyhands.training.step import compute_gradients

ROWS = 2
"""Which every network takes."""


class Counts(NamedTuple):
    """What a step has to do."""

    flops_per_row: float
    """Of a forward and backward pass, in products of matrices and convolutions."""
    pass_operations: int
    """To gather a piece of a batch and pass over it; for each, Python gives its lock away and wants it back."""
    update_operations: int
    """The same for the optimiser's step."""


def count(replica: Replica, config: RunConfig, samples: Split) -> Counts:
    """Make a step on a few samples, and count in a second one; the replica is of no use afterwards."""
    plan = Plan(config.model_copy(update={"batch_size": ROWS, "micro_batch": 0}), samples, 0, 1)
    batch = torch.arange(min(ROWS, len(samples)))
    for _ in range(2):  # the first one makes room for more than a step needs
        with FlopCounterMode(display=False) as flops, _Started() as of_pass:
            compute_gradients(replica, plan, batch, 0)
        with _Started() as of_update:
            replica.apply()
    return Counts(flops.get_total_flops() / len(batch), of_pass.count, of_update.count)


@final
class _Started(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, but not those of a backward pass that torch makes by itself, without Python's lock.

    One that consists of others counts as often as these, although the lock is given away once: a few too many.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += torch._C._current_graph_task_id() == -1
        return func(*args, **(kwargs or {}))
