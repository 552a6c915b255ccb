"""PowerSGD: each weight matrix as a product of two thin ones, found by one power iteration (Vogels et al. 2019).

The iteration starts from the last step's result. In the paper all workers iterate together on the mean gradient; here
each worker compresses its own gradient, so that its code can be decoded alone.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, final

import torch
from torch import Tensor

from manyhands.codec.base import Codec, as_bytes, from_bytes
from manyhands.errors import check

_FIRST_CALL = threading.Lock()


class _Matrix(NamedTuple):
    """A weight viewed as a matrix, and the rank of its two factors."""

    start: int
    rows: int
    columns: int
    rank: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    def of(self, t: Tensor) -> Tensor:
        return t[self.start : self.stop].view(self.rows, self.columns)

    def num_values(self) -> int:
        return (self.rows + self.columns) * self.rank


@final
@dataclass(kw_only=True, slots=True)
class PowerSGD(Codec):
    """Send the gradient of each weight matrix as a product of low rank; vectors are sent unchanged."""

    rank: int = 2
    """Rank of the matrices that are sent."""

    _matrices: list[_Matrix] = field(init=False, repr=False, default_factory=list)
    _warm: list[Tensor] = field(init=False, repr=False, compare=False, default_factory=list)
    """For each matrix the right factor of the last step, from which the next power iteration starts.

    Factors are stored as rows: products with these thin matrices are several times faster than with columns.
    """

    def __post_init__(self) -> None:
        check(self.rank >= 1, f"rank of codec 'powersgd' must be at least 1, got {self.rank}")

    def num_bytes(self) -> int:
        saved = sum(m.rows * m.columns - m.num_values() for m in self._matrices)
        return self._dtype.itemsize * (self._numel - saved)

    def state(self) -> dict[str, Tensor]:
        return {f"warm.{i}": warm for i, warm in enumerate(self._warm)}

    def _prepare(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        # Every rank draws the same numbers; any that are not orthogonal to the gradient would do.
        generator = torch.Generator().manual_seed(0)
        self._matrices, start = [], 0
        for shape in shapes:
            rows, columns = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))
            matrix = _Matrix(start, rows, columns, min(self.rank, rows, columns))
            if matrix.num_values() < rows * columns:
                self._matrices.append(matrix)
            start = matrix.stop
        warm = [torch.randn(m.rank, m.columns, generator=generator) for m in self._matrices]
        self._warm = [w.to(device, self._dtype) for w in warm]
        with _FIRST_CALL:  # on a GPU it loads a library, which must not be done by two threads at once (pytorch #90613)
            torch.linalg.qr(torch.eye(1, device=device))

    def _encode(self, t: Tensor) -> Tensor:
        parts = []
        for matrix, warm in zip(self._matrices, self._warm, strict=True):
            gradient = matrix.of(t)
            left = torch.linalg.qr((warm.to(t) @ gradient.T).T).Q.T
            right = left @ gradient
            parts += [left.reshape(-1), right.reshape(-1)]
            # Only the directions matter: normalised factors keep the next product in range. A zero has no direction.
            length = right.abs().amax(dim=1, keepdim=True)
            warm.copy_(torch.where(length > 0, right / length, warm.to(t)))
        return as_bytes(torch.cat([*parts, *(t[a:b] for a, b in self._loose())]))

    def _decode(self, code: Tensor) -> Tensor:
        values = from_bytes(code, self._dtype)
        t = values.new_empty(self._numel)
        at = 0
        for m in self._matrices:
            left, right = values[at : at + m.num_values()].split_with_sizes([m.rows * m.rank, m.columns * m.rank])
            torch.mm(left.view(m.rank, -1).T, right.view(m.rank, -1), out=m.of(t))
            at += m.num_values()
        for a, b in self._loose():
            t[a:b] = values[at : at + b - a]
            at += b - a
        return t

    def _loose(self) -> list[tuple[int, int]]:
        """Return the spans between the matrices and behind them, which are sent unchanged."""
        starts = [0, *(m.stop for m in self._matrices)]
        stops = [*(m.start for m in self._matrices), self._numel]
        return list(zip(starts, stops, strict=True))
