"""Run ranks inside this process: one alone, or several as threads."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, final

from manyhands.comm import Comm
from manyhands.comm.threads import GroupAborted
from manyhands.errors import ManyhandsError
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
    on_failure: Callable[[ManyhandsError], None],
) -> list[dict[str, Any]]:
    """Run the worker once per comm, the first in this thread; raise the first real failure after all have ended.

    A failing thread calls `on_failure` at once, since the others may be waiting for it.
    """
    results: list[dict[str, Any]] = [{} for _ in comms]
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = worker(comms[i], job, watches[i])
        except GroupAborted:
            pass
        except BaseException as error:
            explained = failure(error, comms[i].rank, watches[i].step)
            failures.append(error if isinstance(error, KeyboardInterrupt) else explained)
            on_failure(explained)

    others = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(1, len(comms))]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
    return results
