"""An average of the weights over the steps, which is tested and stored instead of them (Polyak and Juditsky 1992).

Every worker averages the weights it holds after each of its steps, without communication. Where workers hold different
weights, the mean of their averages is the average of their mean: the strategy's exchange is linear.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

from torch import Tensor

from manyhands.replica import Replica
from manyhands.sync.base import mean_, settled
from manyhands.training.job import RankContext

NAME = "ema"
"""Name of the average in a checkpoint."""


@final
class Average:
    """The exponential moving average of a worker's weights and running statistics, from the first step's on."""

    def __init__(self, replica: Replica, decay: float) -> None:
        """Begin with the present weights."""
        self._replica, self._decay = replica, decay
        self._mean = replica.params.clone()

    def update(self) -> None:
        """Take in the weights after a step."""
        self._mean.lerp_(self._replica.params, 1 - self._decay)

    def put(self, rank: RankContext) -> None:
        """Give every worker the average that the run would leave if it ended now."""
        params, strategy = rank.replica.params, rank.strategy
        params.copy_(self._mean)
        if strategy.num_servers() == 0:
            strategy.settle(rank.replica, rank.comm)
        elif not strategy.lockstep:  # the servers have no average, and each worker has received other weights
            mean_(rank.workers, params)

    def of_rank(self, rank: RankContext) -> dict[str, Tensor]:
        """Return the average for a checkpoint that holds every rank's, where these differ."""
        return {NAME: self._mean} if rank.strategy.apart else {}

    def shared(self, rank: RankContext) -> dict[str, Tensor]:
        """Return the average for a checkpoint that holds one for all ranks; of asynchronous workers their mean."""
        if rank.strategy.apart:
            return {}
        mean = self._mean
        if not rank.strategy.lockstep:
            mean = mean.clone()
            mean_(rank.workers, mean)
        return {NAME: mean}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the average from a checkpoint's tensors."""
        self._mean.copy_(tensors[NAME])


@contextmanager
def result_weights(rank: RankContext, average: Average | None) -> Iterator[None]:
    """Give every worker, inside the block, the weights that the run would leave if it ended now."""
    if average is None:
        with settled(rank.strategy, rank.replica, rank.comm):
            yield
        return
    before = rank.replica.params.clone()
    average.put(rank)
    yield
    rank.replica.params.copy_(before)
