"""Run ranks inside this process: one alone, or several as threads."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, final

from manyhands.comm import Comm
from manyhands.comm.barrier import GroupAborted
from manyhands.errors import ManyhandsError, Stopped
from manyhands.launch.base import Observer, Worker, failure
from manyhands.launch.guard.state import RankState
from manyhands.record import Pulse
from manyhands.training.job import Job

FAILURE_GRACE_S = 3.0
"""How long the other threads may take to end after one has failed; one that is stuck is left behind."""
LEAVE_S = 1.0
"""How long a thread may take to end after its work is done."""
LOOK_S = 1.0

_NAME = "manyhands rank"

T = TypeVar("T")


@final
class LocalWatch:
    """Looks after one rank of this process."""

    def __init__(self, stop: threading.Event, observe: Observer, state: RankState | None = None) -> None:
        self._stop, self.observe, self._state = stop, observe, state
        self.step = -1

    def at(self, step: int) -> None:
        """Remember the step, for a failure's report, and for this rank's guard."""
        self.step = step
        if self._state is not None:
            self._state.step = step

    def stop_asked(self) -> bool:
        """Tell whether Ctrl-C was pressed."""
        return self._stop.is_set()

    def pulse(self, pulse: Pulse) -> None:
        """Pass it on to whoever draws it."""
        self.observe(pulse)


def run_threads(
    worker: Worker,
    job: Job,
    comms: Sequence[Comm],
    watches: Sequence[Any],
    on_failure: Callable[[ManyhandsError], None],
    look: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Run the worker once per comm; raise the first real failure.

    One alone runs in this thread, several run in threads of their own: this one answers signals, calls `look` about
    every second, and does not wait for a thread that is stuck once another has failed. A failing thread calls
    `on_failure` at once, since the others may be waiting for it.
    """
    ranks = _RankThreads(worker, job, comms, watches, on_failure)
    if len(comms) == 1:
        ranks.run(0)
    else:
        ranks.run_all(look)
    if ranks.failures:
        raise ranks.failures[0]
    return ranks.results


@final
class _RankThreads:
    """The ranks of one run in this process."""

    def __init__(
        self,
        worker: Worker,
        job: Job,
        comms: Sequence[Comm],
        watches: Sequence[Any],
        on_failure: Callable[[ManyhandsError], None],
    ) -> None:
        self._worker, self._job, self._comms, self._watches = worker, job, comms, watches
        self._on_failure = on_failure
        self.results: list[dict[str, Any]] = [{} for _ in comms]
        self.failures: list[BaseException] = []
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """What threads want done in the one that waits for them; None when one has ended."""

    def run(self, i: int) -> None:
        """Be the rank of the i-th comm."""
        try:
            self.results[i] = self._worker(self._comms[i], self._job, self._watches[i])
        except GroupAborted:
            pass
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            explained = Stopped() if stopped else failure(error, self._comms[i].rank, self._watches[i].step)
            self.failures.append(error if stopped else explained)
            self._on_failure(explained)

    def run_all(self, look: Callable[[], None]) -> None:
        """Run each in a thread, and wait for all, or for a while after a failure."""
        for watch in self._watches:
            if isinstance(watch, LocalWatch):  # who observes is called where the run was started
                watch.observe = partial(self._call_here, watch.observe)
        for i, comm in enumerate(self._comms):
            threading.Thread(target=self._run_and_tell, args=(i,), name=f"{_NAME} {comm.rank}", daemon=True).start()
        try:
            self._wait(look)
        except BaseException:
            self._on_failure(Stopped())
            raise

    def _run_and_tell(self, i: int) -> None:
        self.run(i)
        self._calls.put(None)

    def _call_here(self, observe: Observer, pulse: Pulse) -> None:
        self._calls.put(partial(observe, pulse))

    def _wait(self, look: Callable[[], None]) -> None:
        working, give_up = len(self._comms), float("inf")
        while working and time.monotonic() < give_up:
            try:
                call = self._calls.get(timeout=min(LOOK_S, max(0.0, give_up - time.monotonic())))
            except Empty:
                pass
            else:
                if call is None:
                    working -= 1
                else:
                    call()
            look()  # which takes next to nothing where it has looked lately
            if self.failures and give_up == float("inf"):
                give_up = time.monotonic() + FAILURE_GRACE_S


def in_threads(work: Callable[[int], T], count: int) -> list[T]:
    """Return what the work gives for 0, 1, …, each in a thread; after a failure leave stuck threads behind."""
    found: dict[int, T] = {}
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(i: int) -> None:
        try:
            found[i] = work(i)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    threads = [threading.Thread(target=run, args=(i,), name=f"{_NAME}'s {i}", daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for _ in threads:
        if (error := ended.get()) is not None:
            give_up = time.monotonic() + FAILURE_GRACE_S
            for thread in threads:
                thread.join(max(0.0, give_up - time.monotonic()))
            raise error
    return [found[i] for i in range(count)]


def a_rank_is_left() -> bool:
    """Whether a thread of this process still works for a run that has ended; those that are just leaving may do so."""
    left = [thread for thread in threading.enumerate() if thread.name.startswith(_NAME)]
    give_up = time.monotonic() + LEAVE_S
    for thread in left:
        thread.join(max(0.0, give_up - time.monotonic()))
    return any(thread.is_alive() for thread in left)
