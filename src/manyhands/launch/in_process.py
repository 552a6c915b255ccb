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
from manyhands.launch.guard.state import own_state
from manyhands.record.run import Pulse
from manyhands.training.job import Job
from manyhands.training.watch import Watch

FAILURE_GRACE_S = 3.0
"""How long the other threads may take to end after one has failed; a thread that is stuck is left behind."""
LEAVE_S = 1.0
"""How long a thread may take to end after its work is done."""
LOOK_S = 1.0

_NAME = "manyhands rank"

T = TypeVar("T")
Calls = SimpleQueue[Callable[[], None]]
"""What threads want the one that waits for them to call."""


@final
class LocalWatch(Watch):
    """Watches one rank of this process, and tells the step to the rank's guard, if it has one."""

    def __init__(self, stop: threading.Event, observe: Observer) -> None:
        self._stop, self.observe, self.step, self._state = stop, observe, -1, own_state()

    def at(self, step: int) -> None:
        self.step = self._state.step = step

    def stop_asked(self) -> bool:
        return self._stop.is_set()

    def pulse(self, pulse: Pulse) -> None:
        self.observe(pulse)


def run_threads(
    worker: Worker,
    job: Job,
    comms: Sequence[Comm],
    watches: Sequence[Any],
    on_failure: Callable[[ManyhandsError], None],
    look: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Run the worker once per comm; return the results, or raise the first failure that is a rank's own.

    One alone runs in this thread, several run in threads of their own: this one answers signals, calls `look` about
    every second, and does not wait for a thread that is stuck once another has failed. A failing thread calls
    `on_failure` at once, since the others may be waiting for it.
    """
    failures: list[BaseException] = []

    def run(i: int) -> dict[str, Any]:
        try:
            return worker(comms[i], job, watches[i])
        except GroupAborted:
            pass
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            explained = Stopped() if stopped else failure(error, comms[i].rank, watches[i].step)
            failures.append(error if stopped else explained)
            on_failure(explained)
        return {}

    if len(comms) == 1:
        results = [run(0)]
    else:
        calls = Calls()

        def call_here(observe: Observer, pulse: Pulse) -> None:
            calls.put(partial(observe, pulse))

        for watch in watches:
            if isinstance(watch, LocalWatch):  # an observer is called in the thread that started the run
                watch.observe = partial(call_here, watch.observe)
        try:
            results = _in_threads(run, [f"{_NAME} {comm.rank}" for comm in comms], failures, calls, look)
        except BaseException:
            on_failure(Stopped())
            raise
    if failures:
        raise failures[0]
    return results


def in_threads(work: Callable[[int], T], count: int) -> list[T]:
    """Return `work(i)` for each i below `count`, each in a thread; after a failure leave stuck threads behind."""
    failures: list[BaseException] = []

    def run(i: int) -> Any:
        try:
            return work(i)
        except BaseException as error:
            failures.append(error)

    results: list[T] = _in_threads(run, [f"{_NAME}'s {i}" for i in range(count)], failures, Calls(), lambda: None)
    if failures:
        raise failures[0]
    return results


def _in_threads(
    run: Callable[[int], T], names: Sequence[str], failures: Sequence[object], calls: Calls, look: Callable[[], None]
) -> list[T]:
    """Return `run(i)` for each name, each in a thread; make the calls that threads want meanwhile.

    `run` raises nothing, but adds to `failures`; a while after the first of them return without the stuck threads'.
    """
    results: dict[int, T] = {}

    def run_and_tell(i: int) -> None:
        results[i] = run(i)
        calls.put(lambda: None)  # wakes the thread that waits

    for i, name in enumerate(names):
        threading.Thread(target=run_and_tell, args=(i,), name=name, daemon=True).start()
    give_up = float("inf")
    while (len(results) < len(names) or not calls.empty()) and time.monotonic() < give_up:
        try:
            call = calls.get(timeout=min(LOOK_S, max(0.0, give_up - time.monotonic())))
        except Empty:
            pass
        else:
            call()
        look()  # which takes next to nothing where it has looked lately
        if failures and give_up == float("inf"):
            give_up = time.monotonic() + FAILURE_GRACE_S
    return [results[i] for i in sorted(results)]


def a_rank_is_left() -> bool:
    """Tell whether a thread of this process still works for a run that has ended; give those that are leaving time."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_NAME)]
    give_up = time.monotonic() + LEAVE_S
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
    return any(thread.is_alive() for thread in threads)
