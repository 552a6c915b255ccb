"""Asynchronous server: workers push gradients and fetch weights, and nobody waits for others (Dean et al. 2012)."""

from dataclasses import dataclass, field
from typing import ClassVar, final

from manyhands.comm import ANY, Comm
from manyhands.record import read_events
from manyhands.replica import Replica
from manyhands.sync.servers import DONE, FETCH, PUSH, STATE, ServerSync


@final
@dataclass(kw_only=True, slots=True)
class AsyncServer(ServerSync):
    """Push gradients to server ranks, which apply each as it comes and answer with the weights they have then."""

    exact: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = ServerSync.requires | {"any-source"}
    lockstep: ClassVar[bool] = False

    replay: str = ""
    """Folder of an earlier run: the servers take messages in its order, which gives its weights again."""
    _events: list[dict[str, int]] = field(init=False, repr=False, default_factory=list)

    def serve(self, replica: Replica, comm: Comm) -> None:
        """Take whatever comes first, or came first in the run that is replayed; step, and answer its sender."""
        order = read_events(self.replay, comm.rank - self._shards.num_workers) if self.replay else []
        sources = iter([event["worker"] for event in order])
        version, working = 0, self._shards.num_workers
        known = [0] * working
        while working:
            worker, what = self._shards.take(comm, next(sources, ANY))
            self._events.append({"worker": worker, "what": what, "staleness": version - known[worker]})
            if what == PUSH:
                replica.apply()
                version += 1
            if what in (PUSH, FETCH):
                known[worker] = version
                self._shards.answer(comm, worker)
            if what == STATE and worker == 0:
                self._shards.answer_state(comm, worker)
            working -= what == DONE

    def settle(self, replica: Replica, comm: Comm) -> None:
        """Fetch the weights as they are now."""
        self._shards.tell(comm, FETCH)
        self._shards.receive(comm)

    def events(self) -> list[dict[str, int]]:
        """Return every message this server got, in order."""
        return self._events

    def notes(self) -> dict[str, float]:
        """Tell how many updates old the weights were, for which the gradients were computed."""
        stale = [event["staleness"] for event in self._events if event["what"] == PUSH]
        if not stale:
            return {}
        return {"updates": len(stale), "staleness_mean": sum(stale) / len(stale), "staleness_max": max(stale)}
