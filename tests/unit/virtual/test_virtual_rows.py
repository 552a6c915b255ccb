"""What n workers compute is shared out as each worker's own plan has it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.config import RunConfig
from manyhands.data import Split
from manyhands.training.plan import Plan
from manyhands.virtual.rows import Feed


@given(
    samples=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    workers=st.integers(1, 7),
    own_split=st.booleans(),
    first=st.integers(0, 5),
    length=st.integers(1, 9),
)
def test_shares_are_those_of_the_workers_plans(
    samples: int, batch_size: int, workers: int, own_split: bool, first: int, length: int
) -> None:
    split = Split(torch.arange(samples, dtype=torch.float64).unsqueeze(1), torch.arange(samples))
    config = RunConfig(task="x", workers=workers, batch_size=batch_size, epochs=99, seed=3, dtype="float64")
    feed = Feed(Plan(config, split, 0, workers, own_split), torch.float64)
    steps = range(first, first + length)
    share = feed.share(slice(0, workers), steps)
    x, y = feed.batch(share.rows)
    assert x.shape == (workers, length * feed.width, 1)
    assert torch.equal(x.squeeze(2).long(), y)
    for rank in range(workers):
        plan = Plan(config, split, rank, workers, own_split)
        for i, step in enumerate(steps):
            epoch, place = divmod(step, plan.steps_per_epoch)
            (pieces,) = plan.lanes(plan.batches(epoch)[place], step)
            ((batch, weight),) = pieces
            real = share.weights[rank, i] != 0
            assert torch.equal(share.rows[rank, i][real], batch.y[: batch.rows])
            assert float(share.weights[rank, i].sum()) == pytest.approx(weight)
