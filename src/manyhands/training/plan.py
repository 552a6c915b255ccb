"""Which rows of which global batch a rank computes in each step."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.comm.exact import subtrees
from manyhands.config import RunConfig
from manyhands.data import AnySplit, SampleSplit
from manyhands.data.order import batches, cut, num_batches, permutation
from manyhands.data.samples.ahead import ReadAhead
from manyhands.replica import Batch
from manyhands.replica.base import Piece
from manyhands.replica.random import mix_key
from manyhands.training.schedule import Schedule

NEVER = 10**9
"""Epochs between two evaluations of a run that is tested at its end only."""
AT_END = {"eval_every": NEVER, "eval_steps": 0, "patience": 0, "keep_best": False}
"""Settings of a run that is tested at its end only."""

Indices = Tensor | slice


@final
@dataclass
class Stopwatch:
    """Sums up the seconds of some part of a step."""

    clock: Callable[[], float] = time.perf_counter
    seconds: float = 0.0

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@final
@dataclass(frozen=True)
class Plan:
    """The work of one rank out of `size`."""

    config: RunConfig
    split: AnySplit
    rank: int
    size: int
    own_split: bool = False
    """Whether the rank sees the same samples in every epoch: those that the first epoch gives it."""
    gathering: Stopwatch = field(default_factory=Stopwatch, compare=False)
    """Times how long the rows of the batches are gathered from the data."""
    _ahead: list[ReadAhead] = field(default_factory=list, init=False, compare=False)
    """What reads samples ahead at the moment, if anything."""

    @cached_property
    def batch_size(self) -> int:
        """Samples in a global batch."""
        whole = len(self.split)
        return whole if self.config.batch_size == "full" else min(self.config.batch_size, whole)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Global batches in an epoch."""
        return num_batches(len(self.split), self.batch_size)

    @cached_property
    def steps(self) -> int:
        """Steps in the run."""
        return self.config.steps or self.config.epochs * self.steps_per_epoch

    @property
    def epochs(self) -> int:
        """Epochs in the run, an unfinished last one included."""
        return -(-self.steps // self.steps_per_epoch)

    @cached_property
    def schedule(self) -> Schedule:
        """The learning rate of each step."""
        return Schedule(self.steps, self.config.warmup * self.steps_per_epoch, self.config.lr_decay)

    def batches(self, epoch: int) -> list[Indices]:
        """Return the global batches of an epoch; with `own_split` only this rank's rows of them are right."""
        if not self.own_split:
            return list(batches(len(self.split), self.batch_size, self.config.seed, epoch))
        order = permutation(len(self.split), self.config.seed, 0)
        whole = torch.split(order, self.batch_size)
        shares = [batch[slice(*cut(len(batch), self.size, self.rank))] for batch in whole]  # views, to be written to
        samples = torch.cat(shares)
        samples = samples[permutation(len(samples), self.config.seed, epoch, self.rank)]
        for share, rows in zip(shares, torch.split(samples, [len(s) for s in shares]), strict=True):
            share.copy_(rows)
        return list(whole)

    def steps_until_pause(self, step: int) -> range:
        """Return the steps from `step` to the end of its epoch, or to the run's end or an evaluation before it."""
        periods = [self.steps_per_epoch, *([self.config.eval_steps] if self.config.eval_steps else [])]
        return range(step, min(self.steps, *((step // period + 1) * period for period in periods)))

    def ends_epoch(self, step: int) -> bool:
        """Tell whether `step` is the last of its epoch, or of the run."""
        return (step + 1) % self.steps_per_epoch == 0 or step + 1 == self.steps

    def wants_evaluation(self, done: int) -> bool:
        """Tell whether to evaluate after `done` steps; the end of the run is another matter."""
        return 0 < done < self.steps and done % self.steps_per_evaluation == 0

    @property
    def steps_per_evaluation(self) -> int:
        """Steps between two evaluations."""
        return self.config.eval_steps or self.config.eval_every * self.steps_per_epoch

    def rows_of(self, step: int) -> int:
        """Return the size of the step's global batch; the last of an epoch may be short."""
        done = (step % self.steps_per_epoch) * self.batch_size
        return min(self.batch_size, len(self.split) - done)

    @property
    def rows(self) -> int:
        """This rank's rows of a whole global batch."""
        if not self.config.exact:
            start, stop = cut(self.batch_size, self.size, self.rank)
            return stop - start
        first, last = subtrees(self.config.lanes, self.size)[self.rank]
        cuts = [cut(self.batch_size, self.config.lanes, lane) for lane in range(first, last)]
        return sum(stop - start for start, stop in cuts)

    def samples_until(self, step: int) -> int:
        """Return the number of samples that the run has seen after `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * len(self.split) + rest * self.batch_size

    def lanes(self, indices: Indices, step: int, *, whole: bool = False) -> list[Iterator[Piece]]:
        """Return this rank's lanes of a global batch: one, or with --exact a subtree of the fixed summation tree.

        A `whole` lane is one piece, whatever `micro_batch` says.
        """
        return [self._pieces(indices, *lane, step, whole) for lane in self._lanes(indices)]

    def _lanes(self, indices: Indices) -> list[tuple[int, int]]:
        """Return the rows of a global batch, from and to, that each of this rank's lanes computes."""
        rows = _num_rows(indices)
        if not self.config.exact:
            return [cut(rows, self.size, self.rank)]
        first, last = subtrees(self.config.lanes, self.size)[self.rank]
        return [cut(rows, self.config.lanes, lane) for lane in range(first, last)]

    @contextmanager
    def reading_ahead(self, workers: Comm) -> Iterator[None]:
        """Let processes of this rank read samples ahead inside the block, if they are wanted, and end them after it."""
        with ExitStack() as stack:
            if self.config.data_workers and isinstance(self.split, SampleSplit):
                workers.barrier()  # a thread that computes meanwhile could leave locks closed in the forked processes
                self._ahead.append(stack.enter_context(closing(ReadAhead(self.split, self.config.data_workers))))
                stack.callback(self._ahead.clear)
                workers.barrier()
            yield

    def expect(self, batches: Sequence[Indices], steps: Sequence[int], *, whole: bool = False) -> None:
        """Let data that is read sample by sample be read ahead, for the steps of an epoch with these global batches."""
        if not self._ahead:
            return
        pieces = [
            here
            for step in steps
            for lane in self._lanes(batches[step % self.steps_per_epoch])
            for _, _, here in self._cuts(batches[step % self.steps_per_epoch], *lane, whole)
        ]
        self._ahead[0].expect(pieces, steps[0] // self.steps_per_epoch)

    def _cuts(self, indices: Indices, start: int, stop: int, whole: bool) -> Iterator[tuple[int, int, Indices]]:
        """Yield the rows from `start` to `stop`, from and to and their indices, at most `micro_batch` at a time.

        An empty lane is an empty piece, in which the first row of the batch stands for the shape.
        """
        width = max(1, stop - start) if whole else self.config.micro_batch or max(1, stop - start)
        for a in range(start, max(stop, start + 1), width):
            b = min(a + width, stop)
            yield a, b, _part(indices, slice(a, b) if a < b else slice(0, 1))

    def _pieces(self, indices: Indices, start: int, stop: int, step: int, whole: bool) -> Iterator[Piece]:
        """Yield the batches of a lane, each with its share of the global batch."""
        key, epoch = mix_key(self.config.seed, step), step // self.steps_per_epoch
        dtype, rows = getattr(torch, self.config.dtype), _num_rows(indices)
        source = self._ahead[0] if self._ahead else self.split
        for a, b, here in self._cuts(indices, start, stop, whole):
            begun_s = self.gathering.clock()
            x, y = source.batch(here, dtype, epoch)
            self.gathering.seconds += self.gathering.clock() - begun_s
            share = max(0, b - a) / rows
            yield Batch(x, y, first=a, key=key, told_rows=max(0, b - a), share=share), share


def _num_rows(indices: Indices) -> int:
    return indices.stop - indices.start if isinstance(indices, slice) else len(indices)


def _part(indices: Indices, rows: slice) -> Indices:
    """Return some of a batch's indices."""
    return slice(indices.start + rows.start, indices.start + rows.stop) if isinstance(indices, slice) else indices[rows]
