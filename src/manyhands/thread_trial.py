"""Choose how many threads a worker's matrix products use: time a few steps with each number, and take the fastest.

All cores are often the wrong choice: the products of a small step are not worth sharing out, and beside busy programs
every product waits for the thread that has lost its core. The number of threads may change the last bits of a product,
so what was chosen once on a machine is kept in the user's folder, and an equal run takes it again.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch

from manyhands import facts
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.launch.cores import process_settings, ranks_here
from manyhands.launch.places import chosen_threads_path
from manyhands.plan import Plan
from manyhands.record import write_atomically
from manyhands.replica import Replica
from manyhands.replica.base import sum_of_lanes

ROUNDS, LEAST_ROUNDS = 5, 2
"""How often each number of threads has its turn; fewer where steps are long."""
STEPS = 3
"""Steps of a turn."""
ENOUGH_S, SHARE = 0.3, 0.02
"""Seconds that the trial may take, or the share of the run."""
SMALL_S = 4e-4
"""A step of one thread that is shorter than this is not worth sharing out, and needs no trial."""
WORTH = 1.1
"""How many times as fast more threads must be: fewer leave cores to others, and give the same bits more often."""


def with_chosen_threads(config: RunConfig, data: Dataset, replica: Replica) -> RunConfig:
    """Return the config with the number of threads chosen, where the user left it open and there is a choice."""
    ranks = ranks_here(config)
    settled = config.exact or config.blas_threads or config.chosen_blas_threads
    share = facts.cores() // ranks if ranks else 1
    if settled or share < 2 or replica.params.device.type != "cpu":
        return config
    plan = Plan(config, data.train, 0, config.size)
    batches = plan.batches(0)

    def step(i: int) -> None:
        sum_of_lanes(replica, plan.lanes(batches[i % len(batches)], i))
        replica.apply()

    path, key = chosen_threads_path(), _key(config, share)
    chosen = _known(path).get(key, 0)
    if not 1 <= chosen <= share:
        chosen = share
        # A model that fails will do so on a rank as well, which is then named.
        with process_settings(config, ranks or 1, facts.cores()), _leaving_no_trace(replica), suppress(Exception):
            chosen = fastest(step, powers_of_two(share), plan.steps)
        _remember(path, key, chosen)
    return config.model_copy(update={"chosen_blas_threads": chosen})


def _key(config: RunConfig, share: int) -> str:
    """Name what decides how long the products of a step take: a timing must not choose anew for an equal run."""
    work = (config.task, config.data, config.image_size, config.batch_size, config.micro_batch, config.dtype)
    return json.dumps([*work, config.fuse, config.size, share, facts.version("torch")])


def _known(path: Path) -> dict[str, int]:
    """Return the numbers chosen on this machine before."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): int(number) for key, number in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _remember(path: Path, key: str, chosen: int) -> None:
    """Keep a choice, so that an equal run has the same bits; where nothing can be written, the next one chooses too."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({**_known(path), key: chosen}, indent=1) + "\n")


def powers_of_two(share: int) -> list[int]:
    """Return 1, 2, 4, … below a share of the cores, and the share."""
    return [*(2**i for i in range(share.bit_length()) if 2**i < share), share]


def fastest(
    step: Callable[[int], None],
    numbers: Sequence[int],
    steps: int,
    *,
    set_threads: Callable[[int], None] = torch.set_num_threads,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return the fewest threads with which a step is about as fast as with any; the last where a trial takes too long.

    `steps` are those of the run.
    """

    def mean_s(number: int, count: int) -> float:
        set_threads(number)
        begun_s = clock()
        for i in range(count):
            step(i)
        return (clock() - begun_s) / count

    began_s = clock()
    mean_s(numbers[0], 1)  # makes its buffers, which takes the longest
    alone_s = mean_s(numbers[0], 1)
    if alone_s < 0.1 * ENOUGH_S:  # the first was perhaps disturbed
        alone_s = min(alone_s, *(mean_s(numbers[0], 1) for _ in range(3)))
    if alone_s < SMALL_S:
        return numbers[0]
    allowed_s = max(ENOUGH_S, SHARE * steps * alone_s)
    if LEAST_ROUNDS * len(numbers) * alone_s > allowed_s:
        return numbers[-1]
    count = STEPS if LEAST_ROUNDS * len(numbers) * STEPS * alone_s < allowed_s else 1
    took_s: dict[int, list[float]] = {number: [] for number in numbers}
    for turn in range(ROUNDS):
        if turn >= LEAST_ROUNDS and clock() - began_s > allowed_s:
            break
        for number in numbers if turn % 2 == 0 else reversed(numbers):
            took_s[number].append(mean_s(number, count))
    middle_s = {number: statistics.median(each) for number, each in took_s.items()}
    return min(number for number in numbers if middle_s[number] <= WORTH * min(middle_s.values()))


@contextmanager
def _leaving_no_trace(replica: Replica) -> Iterator[None]:
    """Put back weights, statistics and the process-wide generators: a model may be the very one that is trained."""
    tensors = [*replica.module.parameters(), *replica.module.buffers()]
    before = [t.detach().clone() for t in tensors]
    plain, numpys = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(numpys)
            with torch.no_grad():
                for t, value in zip(tensors, before, strict=True):
                    t.copy_(value)
