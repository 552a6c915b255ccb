"""The slices of the weights, one per worker, where each worker runs the optimiser on its own."""

from typing import final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.replica.optimizer.moments import Moments, join


@final
class Slices:
    """Sums gradients into each rank's slice, and gathers the slices of the weights."""

    def __init__(self, replica: Replica, comm: Comm) -> None:
        """Restrict the replica's optimiser to this rank's slice."""
        self.update, self._params, self._grads = replica.update, replica.params, replica.grads
        self._spans = self.update.cut(comm.size)
        self._start, self._stop = self._spans[comm.rank]
        width, total = max(stop - start for start, stop in self._spans), replica.params.numel()
        self._one = comm.size > 1 and width == total
        """Whether the first rank has all weights, since the optimiser needs them together."""
        self._even = all(start == min(i * width, total) for i, (start, _) in enumerate(self._spans))
        self._rows = replica.params.new_zeros(0 if self._one else comm.size, width)
        """A buffer for gradients or weights, one row per rank, which may end in padding."""
        self.update.narrow(self._start, self._stop)
        self.update.join = lambda sums: self._joined(comm, sums)

    def sum_(self, comm: Comm) -> None:
        """Replace the gradients of this rank's slice by their sum over the ranks."""
        if self._one:
            comm.reduce_(self._grads)
            return
        if self._even:  # at once, since there may be very many ranks
            self._rows.view(-1)[: self._grads.numel()] = self._grads
        else:
            for row, (start, stop) in zip(self._rows, self._spans, strict=True):
                row[: stop - start] = self._grads[start:stop]
        self._grads[self._start : self._stop] = comm.reduce_scatter(self._rows)[: self._stop - self._start]

    def gather_(self, comm: Comm) -> None:
        """Replace the weights by those of each slice's rank."""
        if self._one:
            comm.broadcast_(self._params)
            return
        row = self._rows[comm.rank]
        row[: self._stop - self._start] = self._params[self._start : self._stop]
        rows = comm.all_gather(row)
        if self._even:
            self._params.copy_(rows.view(-1)[: self._params.numel()])
            return
        for row, (start, stop) in zip(rows, self._spans, strict=True):
            self._params[start:stop] = row[: stop - start]

    def moments(self, comm: Comm) -> Moments:
        """Return the optimiser's state of all slices."""
        elements, scalars = self.update.moments()
        end = self.update.num_weights
        widths = [min(stop, end) - min(start, end) for start, stop in self._spans]
        padded = elements.new_zeros(len(elements), max(widths))
        padded[:, : elements.shape[1]] = elements
        numbers = comm.all_gather(scalars.to(elements.device)).cpu()
        gathered = zip(comm.all_gather(padded), numbers, widths, strict=True)
        return join([Moments(rows[:, :width], of_rank) for rows, of_rank, width in gathered])

    def _joined(self, comm: Comm, sums: Tensor) -> Tensor:
        """Return the sums of all slices, in their order; where one rank has all weights, it alone counts."""
        if self._one or comm.size == 1:
            return sums
        counts = [self.update.num_sums(start, stop) for start, stop in self._spans]
        padded = sums.new_zeros(max(counts))
        padded[: len(sums)] = sums
        return torch.cat([row[:count] for row, count in zip(comm.all_gather(padded), counts, strict=True)])
