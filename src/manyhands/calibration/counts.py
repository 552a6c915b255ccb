"""Count the floating-point operations and the torch operations of a step, which do not depend on the machine."""

from typing import Any, NamedTuple, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from manyhands.config import RunConfig
from manyhands.data import AnySplit
from manyhands.replica import Replica
from manyhands.training.plan import Plan
from manyhands.training.step import compute_gradients

ROWS = 2
"""Rows of the counted step: the fewest that every network takes."""


class Counts(NamedTuple):
    """Operations of a step."""

    flops_per_row: float
    """Floating-point operations of matrix products and convolutions in a forward and backward pass."""
    pass_operations: int
    """Torch operations to gather a piece of a batch and pass over it; each releases and takes Python's lock."""
    update_operations: int
    """Torch operations of the optimiser's step."""


def count(replica: Replica, config: RunConfig, samples: AnySplit) -> Counts:
    """Count the operations of a step on a few samples, which changes the replica's weights."""
    plan = Plan(config.model_copy(update={"batch_size": ROWS, "micro_batch": 0}), samples, 0, 1)
    batch = torch.arange(min(ROWS, len(samples)))
    for _ in range(2):  # the first step also allocates buffers, so that the second counts
        with FlopCounterMode(display=False) as flops, _OperationCounter() as in_pass:
            compute_gradients(replica, plan, batch, 0)
        with _OperationCounter() as in_update:
            replica.apply()
    return Counts(flops.get_total_flops() / len(batch), in_pass.count, in_update.count)


@final
class _OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts torch operations, but not those of autograd's backward pass, which runs without Python's lock.

    A composite operation counts once for each of its parts, although the lock is released once: a few too many.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += torch._C._current_graph_task_id() == -1
        return func(*args, **(kwargs or {}))
