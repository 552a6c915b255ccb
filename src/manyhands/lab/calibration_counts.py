"""Count what a step has to do, whatever the machine: floating-point operations, and the operations Python starts."""

from typing import Any, NamedTuple, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from manyhands.config import RunConfig
from manyhands.data import Split
from manyhands.plan import Plan
from manyhands.replica import Replica
from manyhands.replica.base import sum_of_lanes

ROWS = 2
"""Which every network takes."""


class Counts(NamedTuple):
    """What a step has to do."""

    flops_per_row: float
    """Of a forward and backward pass, in products of matrices and convolutions."""
    pass_operations: int
    """Operations that Python starts to gather samples and for the pass; each gives its lock away, and wants it back."""
    update_operations: int
    """The same in the optimiser's step."""


def count(replica: Replica, config: RunConfig, samples: Split) -> Counts:
    """Make one step on a few samples, and count."""
    plan = Plan(config.model_copy(update={"batch_size": ROWS}), samples, 0, 1)
    batch, before = plan.batches(0)[0], replica.params.clone()
    with FlopCounterMode(display=False) as flops, _Started() as of_pass:
        sum_of_lanes(replica, plan.lanes(batch, 0))
    with _Started() as of_update:
        replica.apply()
    replica.params.copy_(before)
    return Counts(flops.get_total_flops() / min(ROWS, len(samples)), of_pass.count, of_update.count)


@final
class _Started(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, but not those of a backward pass that torch makes by itself, without Python's lock."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += torch._C._current_graph_task_id() == -1
        return func(*args, **(kwargs or {}))
