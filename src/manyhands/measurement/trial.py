"""Try some steps of one worker in this process, to measure the time and the number of calls of a step."""

import statistics
import time
from contextlib import suppress
from typing import NamedTuple

from manyhands.config import RunConfig
from manyhands.launch.blas_threads.count import process_settings
from manyhands.machine import facts
from manyhands.measurement.calls import CallLog
from manyhands.run import Ready
from manyhands.training.plan import Plan
from manyhands.training.step import compute_gradients

ENOUGH_S = 0.4
"""Time to spend on the trial steps."""
FEWEST, MOST = 3, 200
"""Bounds of the number of timed steps."""
SLOW_S = 0.1
"""Assumed time of a step that could not be tried."""


class Trial(NamedTuple):
    """The cost of a step."""

    step_s: float
    """Mean time."""
    least_s: float
    """Shortest time: the step that other programs disturbed the least."""
    notes: int
    """Events that a `CallLog` holds of one step."""


def try_steps(config: RunConfig, ready: Ready, fewest: int = FEWEST) -> Trial:
    """Time steps of rank 0's share of a batch, without communication: at least `fewest`, more where they are short."""
    replica = ready.replica
    plan = Plan(config, ready.data.to(replica.params.device).train, 0, config.size)
    batches = plan.batches(0)

    def step(i: int) -> None:
        loss = compute_gradients(replica, plan, batches[i % len(batches)], i)
        replica.apply()
        float(loss)  # waits for a GPU

    took: list[float] = []
    log = CallLog()
    # A model that fails will do so on a rank as well, which is then named.
    with process_settings(config, config.size, facts.cores()), suppress(Exception):
        log.open()
        try:
            step(0)  # makes its buffers, which takes the longest
        finally:
            notes = log.close()
        while len(took) < fewest or (len(took) < MOST and sum(took) < ENOUGH_S):
            begun_s = time.perf_counter()
            step(1 + len(took))
            took.append(time.perf_counter() - begun_s)
    took = took or [SLOW_S]
    return Trial(statistics.mean(took), min(took), len(notes))
