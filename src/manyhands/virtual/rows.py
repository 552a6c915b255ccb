"""The rows that each of n workers computes in each step, for all workers at once."""

import threading
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple, final

import torch
from torch import Tensor

from manyhands.data import Split
from manyhands.data.order import cut
from manyhands.training.plan import Plan


class Share(NamedTuple):
    """The rows of several workers in several steps, padded at the end to equal width."""

    rows: Tensor
    """(workers, steps, width) indices into the training data."""
    weights: Tensor
    """(workers, steps, width) weight of each row in the mean over its global batch; 0 for padding."""


@final
class Feed:
    """The shares of all workers, and their samples; safe to use from several threads."""

    def __init__(self, plan: Plan, dtype: torch.dtype) -> None:
        """Divide batches as `plan` does, which may be that of any worker."""
        self.plan, self._dtype = plan, dtype
        self.width = -(-plan.batch_size // plan.size)
        """Rows per worker and step, padding included."""
        self._lock, self._epochs = threading.Lock(), dict[int, Share]()

    def share(self, workers: slice, steps: range) -> Share:
        """Return the share of `workers` in `steps`, which may span several epochs."""
        parts, size = [], self.plan.steps_per_epoch
        for epoch in range(steps.start // size, (steps.stop - 1) // size + 1):
            here = slice(max(0, steps.start - epoch * size), min(size, steps.stop - epoch * size))
            rows, weights = self._epoch(epoch)
            parts.append(Share(rows[workers, here], weights[workers, here]))
        return parts[0] if len(parts) == 1 else Share(*(torch.cat(same, 1) for same in zip(*parts, strict=True)))

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return (workers, steps x width, ...) inputs and their labels, given (workers, steps, width) indices."""
        x, y = self.plan.split.batch(rows.reshape(-1), self._dtype)
        return x.view(len(rows), -1, *x.shape[1:]), y.view(len(rows), -1)

    def _epoch(self, number: int) -> Share:
        with self._lock:
            if number not in self._epochs:
                self._epochs = {n: share for n, share in self._epochs.items() if n >= number - 1}
                self._epochs[number] = self._cut(number)
            return self._epochs[number]

    def _cut(self, epoch: int) -> Share:
        assert isinstance(self.plan.split, Split)
        plan, sizes = self.plan, [len(batch) for batch in _batches(self.plan, epoch)]
        places, weights = [], []
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
            place, real = _places(size, plan.size, self.width)
            places.append(start + place)
            weights.append(real.to(self._dtype) / size)
        place = torch.stack(places, 1)
        if plan.own_split:
            orders = [torch.cat(_batches(replace(plan, rank=rank), epoch)) for rank in range(plan.size)]
            rows = torch.stack([order[place[rank]] for rank, order in enumerate(orders)])
        else:
            rows = torch.cat(_batches(plan, epoch))[place]
        return Share(rows, torch.stack(weights, 1).to(self.plan.split.y.device))


def _batches(plan: Plan, epoch: int) -> list[Tensor]:
    return [torch.arange(b.start, b.stop) if isinstance(b, slice) else b for b in plan.batches(epoch)]


def _places(size: int, workers: int, width: int) -> tuple[Tensor, Tensor]:
    """Return (workers, width) positions of the workers' rows in a batch, and which of them are not padding."""
    spans = torch.tensor([cut(size, workers, rank) for rank in range(workers)])
    start, stop = spans[:, :1], spans[:, 1:]
    place = start + torch.arange(width)
    # A short share is padded with its last row, which is computed anyway.
    return torch.minimum(place, stop - 1).clamp(min=0), place < stop
