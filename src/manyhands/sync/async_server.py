"""Asynchronous server: workers push gradients and fetch weights, and nobody waits for others (Dean et al. 2012)."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.config import RunConfig
from manyhands.replica import Replica
from manyhands.sync.servers import DONE, FETCH, PUSH, STATE, GradientOrder, ServerSync, check_replay


@final
@dataclass(kw_only=True, slots=True)
class AsyncServer(ServerSync):
    """Push gradients to server ranks, which apply each as it comes and answer with the weights they have then."""

    exact: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = ServerSync.requires | {"any-source"}
    lockstep: ClassVar[bool] = False
    pattern: ClassVar = "star"

    replay: str = ""
    """Folder of an earlier run: the servers apply gradients in its order, which gives its weights again."""
    _seen: dict[int, int] = field(init=False, repr=False, default_factory=dict)

    def meet_s(self) -> float:
        """Meet seldom, and in a replay never: its workers may be as far apart as in the first run."""
        return math.inf if self.replay else 5.0

    def check_run(self, config: RunConfig, steps: int, steps_per_epoch: int) -> None:
        """Refuse a replay of another run's order."""
        if self.replay:
            check_replay(self.replay, self.servers, config, steps, steps_per_epoch)

    def serve(self, replica: Replica, comm: Comm) -> None:
        """Apply what comes first; in a replay keep what comes before its turn."""
        server, working = comm.rank - self._shards.num_workers, self._shards.num_workers
        turns = GradientOrder(self.replay, server)
        while working:
            worker, what = self._shards.take(comm)
            for due in turns.due(worker, self._shards) if what == PUSH else ():
                self._apply(replica, comm, due)
            if what == FETCH:
                self._shards.answer(comm, worker)
            if what == STATE and worker == 0:
                self._shards.answer_state(comm, worker)
            working -= what == DONE

    def settle(self, replica: Replica, comm: Comm) -> None:
        """Fetch the weights as they are now."""
        self._shards.tell(comm, FETCH)
        self._shards.receive(comm)

    def _apply(self, replica: Replica, comm: Comm, worker: int) -> None:
        version = len(self._events)
        self._events.append({"worker": worker, "staleness": version - self._seen.get(worker, 0)})
        self._seen[worker] = version + 1
        replica.apply()
        self._shards.answer(comm, worker)
