"""Run ranks inside this process: one alone, or several as threads."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, final

from manyhands.comm import Comm
from manyhands.comm.threads import GroupAborted
from manyhands.launch.base import Observer, Worker, failure
from manyhands.record import Pulse
from manyhands.training import Job


@final
class LocalWatch:
    """Looks after one rank of this process."""

    def __init__(self, stop: threading.Event, observe: Observer) -> None:
        self._stop, self._observe = stop, observe
        self.step = -1

    def at(self, step: int) -> None:
        """Remember the step, for a failure's report."""
        self.step = step

    def stop_asked(self) -> bool:
        """Tell whether Ctrl-C was pressed."""
        return self._stop.is_set()

    def pulse(self, pulse: Pulse) -> None:
        """Pass it on to whoever draws it."""
        self._observe(pulse)


def run_threads(
    worker: Worker,
    job: Job,
    comms: Sequence[Comm],
    watches: Sequence[Any],
    abort: Callable[[], None],
) -> list[dict[str, Any]]:
    """Run the worker once per comm, the first in this thread; raise the first real failure after all have ended."""
    results: list[dict[str, Any]] = [{} for _ in comms]
    failures: list[tuple[BaseException, int]] = []

    def run(i: int) -> None:
        try:
            results[i] = worker(comms[i], job, watches[i])
        except BaseException as error:
            if not isinstance(error, GroupAborted):
                failures.append((error, i))
            abort()

    others = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(1, len(comms))]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    if failures:
        error, i = failures[0]
        if isinstance(error, KeyboardInterrupt):
            raise error
        raise failure(error, comms[i].rank, watches[i].step) from error
    return results
