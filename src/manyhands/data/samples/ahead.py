"""Read samples ahead in processes, while the rank computes: torch's DataLoader, fed with the batches of this rank.

Without such processes a rank reads its samples when it needs them. A thread of its own could not read meanwhile, since
what `__getitem__` draws comes from the process-wide generators, from which the network may be drawing at that time.

The processes are forked, as those of any DataLoader are on Linux: a dataset from a user's file can be sent in no other
way. They end with their rank, whatever ends it, and leave the answer to Ctrl-C and SIGTERM to it.
"""

import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from manyhands.data.samples.draws import DRAWING
from manyhands.data.samples.split import SampleSplit
from manyhands.errors import ManyhandsError, TaskFileFailed
from manyhands.machine.parent import die_with_parent
from manyhands.replica.nested import Nested

Indices = Tensor | slice

ENDING_S = 2.0
"""How long a process may take to be gone after it has left a batch unsent."""
NOTHING = -1
"""In the place of the number of a sample: none is being read."""


class _Failed(NamedTuple):
    """A sentence about a sample that could not be read, on its way from a process."""

    sentence: str


@final
class ReadAhead:
    """Processes that read the batches that are expected, in their order, a few ahead of what is taken."""

    def __init__(self, split: SampleSplit, workers: int) -> None:
        self._split, self._coming = split, deque[tuple[Indices, int]]()
        self._reading, self._stop = (t.share_memory_() for t in (torch.full((workers,), NOTHING), torch.zeros(1)))  # type: ignore[no-untyped-call]
        self._loader: DataLoader[Any] = DataLoader(
            _Reads(split, self._reading, self._stop),  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Expected(split, self._coming),
            num_workers=workers,
            collate_fn=_unchanged,
            persistent_workers=True,
            multiprocessing_context="fork",
            worker_init_fn=partial(_begin, os.getpid()),
        )
        with DRAWING, _without_handler_of_children(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            self._iterator: Any = iter(self._loader)  # forks: the lock is free for a child, which goes on as its owner

    def expect(self, pieces: Sequence[Indices], epoch: int) -> None:
        """Begin to read some batches of an epoch; what was expected before is forgotten."""
        self._coming.clear()
        self._coming.extend((indices, epoch) for indices in pieces)
        self._iterator = iter(self._loader)  # which goes on with the same processes

    def batch(self, indices: Indices, dtype: torch.dtype, epoch: int) -> tuple[Nested, Nested]:
        """Return the batch of `indices`: the next expected one, or any other, which is read here and now."""
        if not self._coming or not _same(self._coming[0], (indices, epoch)):
            return self._split.batch(indices, dtype, epoch)
        self._coming.popleft()
        try:
            batch = next(self._iterator)
        except (RuntimeError, OSError, EOFError) as error:  # the last two, if it ended amid sending a batch
            raise ManyhandsError(self._cause() or f"a data worker failed: {error}") from None
        if isinstance(batch, _Failed):
            raise TaskFileFailed(batch.sentence)
        return self._split.placed(batch, dtype)

    def close(self) -> None:
        """End the processes, also those that are reading."""
        self._stop.fill_(1)
        self._iterator._shutdown_workers()
        for worker in self._iterator._workers:  # one that is stuck in a sample, since it does not obey SIGTERM
            if worker.is_alive():
                worker.kill()
                worker.join()

    def _cause(self) -> str:
        """Return which process ended, why, and what it read."""
        workers = self._iterator._workers
        ended = wait([worker.sentinel for worker in workers], ENDING_S)
        for place, worker in enumerate(workers):
            if worker.sentinel in ended:
                worker.join()  # its files are closed a moment before its status is known
                number, code = int(self._reading[place]), worker.exitcode or 0
                how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
                full = "; /dev/shm may be full" if -code == signal.SIGBUS else ""
                what = f" while it read sample {number} of {self._split.name}" if number != NOTHING else ""
                return f"a data worker {how}{what}{full}"
        return ""


@final
class _Expected:
    """The batches to come, as a sampler: the numbers of their samples, and the epoch."""

    def __init__(self, split: SampleSplit, coming: deque[tuple[Indices, int]]) -> None:
        self._split, self._coming = split, coming

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        for indices, epoch in list(self._coming):
            yield self._split.numbers(indices), epoch


@final
class _Reads:
    """A dataset whose items are batches, which the processes read."""

    def __init__(self, split: SampleSplit, reading: Tensor, stop: Tensor) -> None:
        self._split, self._reading, self._stop = split, reading, stop

    def __getitem__(self, task: tuple[list[int], int]) -> tuple[Nested, Nested] | _Failed:
        numbers, epoch = task
        info = torch.utils.data.get_worker_info()
        assert info is not None

        def note(number: int) -> None:
            self._reading[info.id] = number
            if self._stop.item():
                raise ManyhandsError("the run has ended")

        try:
            return self._split.read(numbers, epoch, note)
        except ManyhandsError as error:
            return _Failed(str(error))
        finally:
            self._reading[info.id] = NOTHING


def _unchanged(batch: Any) -> Any:
    return batch


def _begin(rank: int, _: int) -> None:
    """Let a process end with its rank, which alone answers signals."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != rank:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _without_handler_of_children() -> Iterator[None]:
    """Keep torch's handler of SIGCHLD away: it would raise an error anywhere in the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if in_main and before is not None:
        signal.signal(signal.SIGCHLD, before)


def _same(task: tuple[Indices, int], other: tuple[Indices, int]) -> bool:
    (a, epoch), (b, other_epoch) = task, other
    if epoch != other_epoch or isinstance(a, slice) != isinstance(b, slice):
        return False
    return a == b if isinstance(a, slice) or isinstance(b, slice) else torch.equal(a, b)
