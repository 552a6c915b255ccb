"""Asynchronous server: workers push gradients and fetch weights without waiting for each other (Dean et al. 2012)."""

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
    """Push gradients to server ranks, which apply each as it comes and answer with their weights at that time."""

    exact: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = ServerSync.requires | {"any-source"}
    lockstep: ClassVar[bool] = False
    pattern: ClassVar = "star"

    replay: str = ""
    """Folder of an earlier run: the servers apply gradients in its order, which gives its weights again."""
    _versions: dict[int, int] = field(init=False, repr=False, default_factory=dict)
    """By worker, the number of updates in the weights that it was sent last."""

    def meet_s(self) -> float:
        """Meet seldom, and in a replay never: its workers may be as many steps apart as in the first run."""
        return math.inf if self.replay else 5.0

    def check_run(self, config: RunConfig, steps: int, steps_per_epoch: int) -> None:
        if self.replay:
            check_replay(self.replay, self.servers, config, steps, steps_per_epoch)

    def serve(self, replica: Replica, comm: Comm) -> None:
        num_working = self._shards.num_workers
        order = GradientOrder(self.replay, comm.rank - num_working)
        while num_working:
            worker, request = self._shards.take(comm)
            for due in order.due(worker, self._shards) if request == PUSH else ():
                self._apply(replica, comm, due)
            if request == FETCH:
                self._shards.answer(comm, worker)
            if request == STATE and worker == 0:
                self._shards.answer_state(comm, worker)
            num_working -= request == DONE

    def settle(self, replica: Replica, comm: Comm) -> None:
        self._shards.send(comm, FETCH)
        self._shards.receive(comm)

    def _apply(self, replica: Replica, comm: Comm, worker: int) -> None:
        version = len(self._events)
        self._events.append({"worker": worker, "staleness": version - self._versions.get(worker, 0)})
        self._versions[worker] = version + 1
        replica.apply()
        self._shards.answer(comm, worker)
