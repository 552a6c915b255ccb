"""Parameter server: dedicated ranks hold the weights, cut over them, and wait for all workers (Li et al. 2014)."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.servers import DONE, STATE, ServerSync


@final
@dataclass(kw_only=True, slots=True)
class ParameterServer(ServerSync):
    """Push gradients to server ranks; each sums those of all workers, steps its slice of the weights, and sends it."""

    exact: ClassVar[bool] = True
    pattern: ClassVar = "star"

    def serve(self, replica: Replica, comm: Comm) -> None:
        while (request := self._shards.take_all(comm)) != DONE:
            if request == STATE:
                self._shards.answer_state(comm, worker=0)
                continue
            replica.apply()
            for worker in range(self._shards.num_workers):
                self._shards.answer(comm, worker)
