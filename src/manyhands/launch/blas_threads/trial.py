"""Choose how many BLAS threads a worker uses: time a few steps with each number of threads, and take the fastest.

All cores are often the wrong choice: the products of a small step are too small to share, and beside busy programs
every product waits for the thread that has lost its core. The number of threads may change the last bits of a product,
so a choice is kept in the user's folder, and an equal run on this machine takes it again. A choice made beside busy
programs is kept for an hour, so that equal runs made together have equal bits, and then made again on a quiet machine.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from pydantic import BaseModel, TypeAdapter

from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.launch.blas_threads.count import process_settings, ranks_here
from manyhands.launch.user_folder import chosen_threads_path
from manyhands.machine import facts
from manyhands.machine.load import SHORTEST_S, CoreMeter, others_of
from manyhands.record.files import alone_in, write_atomically
from manyhands.record.run import Others
from manyhands.replica import Replica
from manyhands.tasks.seeding import seeded
from manyhands.training.plan import Plan
from manyhands.training.step import compute_gradients

ROUNDS, LEAST_ROUNDS = 5, 2
"""How often each number of threads is timed; fewer where steps are long."""
STEPS = 3
"""Steps of each timing."""
ENOUGH_S, SHARE = 0.3, 0.02
"""Limit of the trial's time in seconds, or as a share of the run's, whichever is longer."""
SMALL_S = 4e-4
"""A step with one thread that is shorter than this gains nothing from more, and needs no trial."""
KEPT_S = 3600.0
"""How long a choice made beside busy programs is kept, however quiet the machine is by then."""
WORTH = 1.1
"""Least speed-up that justifies more threads: fewer leave cores to others, and give the same bits more often."""


class ThreadChoice(BaseModel):
    """A number of threads that was chosen on this machine."""

    threads: int
    quiet: bool
    """Whether no other programs used much of the cores meanwhile."""
    made_s: float
    """When it was chosen, in seconds since 1970."""

    def is_final(self) -> bool:
        """Tell whether equal runs take it, however busy the machine is."""
        return self.quiet or abs(time.time() - self.made_s) < KEPT_S


_CHOICES = TypeAdapter(dict[str, ThreadChoice])
"""The file of this machine's choices, by `_key`."""


def with_chosen_threads(
    config: RunConfig,
    data: Dataset,
    replica: Replica,
    meter: CoreMeter,
    say: Callable[[str], None] = lambda sentence: None,
) -> RunConfig:
    """Return the config with `chosen_blas_threads` set, where the user left it open and there is a choice.

    meter: Measures the cores that other programs use; the longer it has counted, the less there is to wait.
    say: Is called with a warning if busy cores may have misled the choice.
    """
    ranks = ranks_here(config)
    settled = config.exact or config.blas_threads or config.chosen_blas_threads
    share = facts.cores() // ranks if ranks else 1
    if settled or share < 2 or replica.params.device.type != "cpu":
        return config
    plan = Plan(config, data.train, 0, config.size)
    batches = plan.batches(0)

    def step(i: int) -> None:
        compute_gradients(replica, plan, batches[i % len(batches)], i)
        replica.apply()

    path, key = chosen_threads_path(), _key(config, share)
    choice, others = _read_choices(path).get(key), None
    if choice is None or not choice.is_final():
        others = _busy_programs(meter)
    if choice is None or not (choice.is_final() or others):
        # A thread that shares a core with another program keeps the rest waiting.
        threads = most = min(share, max(1, int(others.of - others.cores) // (ranks or 1))) if others else share
        # A model that fails will do so on a rank as well, which is then named.
        with process_settings(config, ranks or 1, facts.cores()), _leaving_no_trace(replica), suppress(Exception):
            threads = fastest(step, powers_of_two(most), plan.steps)
        others = _busy_programs(meter)
        choice = _remember(path, key, ThreadChoice(threads=threads, quiet=others is None, made_s=time.time()))
    if not choice.quiet:
        say(
            f"{others or 'other programs were busy'} when the number of BLAS threads, {choice.threads}, was chosen; "
            "in an hour it is chosen anew if the machine is quiet; --blas-threads sets it"
        )
    return config.model_copy(update={"chosen_blas_threads": min(choice.threads, share)})


def _busy_programs(meter: CoreMeter) -> Others | None:
    """Return the cores that other programs use if these are many, once the meter has counted for long enough."""
    time.sleep(max(0.0, SHORTEST_S - meter.read().wall_s))
    others = others_of([meter.read(facts.cores()).to_json()])
    return others if others is not None and others.disturbed else None


def _key(config: RunConfig, share: int) -> str:
    """Return all that decides how long the products of a step take: equal runs must find the same choice."""
    work = (config.task, config.data, config.image_size, config.batch_size, config.micro_batch, config.dtype)
    return json.dumps([*work, config.fuse, config.size, share, facts.version("torch")])


def _read_choices(path: Path) -> dict[str, ThreadChoice]:
    """Return the choices made on this machine before; none if the file is damaged."""
    try:
        choices = _CHOICES.validate_json(path.read_bytes())
        return {key: choice for key, choice in choices.items() if choice.threads >= 1}
    except (OSError, ValueError):
        return {}


def _remember(path: Path, key: str, choice: ThreadChoice) -> ThreadChoice:
    """Keep a choice, so that an equal run has the same bits; return that of another run, if it was faster to keep one.

    Where nothing can be written, the next run chooses too.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            choices = _read_choices(path)
            before = choices.get(key)
            if before is not None and (before.quiet or not choice.quiet):
                return before
            write_atomically(path, _CHOICES.dump_json({**choices, key: choice}, indent=1) + b"\n")
    return choice


def powers_of_two(share: int) -> list[int]:
    """Return 1, 2, 4, … below `share`, and `share` itself."""
    return [*(2**i for i in range(share.bit_length()) if 2**i < share), share]


def fastest(
    step: Callable[[int], None],
    numbers: Sequence[int],
    steps: int,
    *,
    set_threads: Callable[[int], None] = torch.set_num_threads,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return the fewest threads with which a step is about as fast as with any; the last if a trial takes too long.

    numbers: The numbers of threads to try, the smallest first.
    steps: How many steps the run has.
    """

    def mean_s(number: int, count: int) -> float:
        set_threads(number)
        begun_s = clock()
        for i in range(count):
            step(i)
        return (clock() - begun_s) / count

    began_s = clock()
    mean_s(numbers[0], 1)  # a first step makes the buffers, which takes longest
    alone_s = mean_s(numbers[0], 1)
    if alone_s < 0.1 * ENOUGH_S:  # it was perhaps disturbed
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
    median_s = {number: statistics.median(times) for number, times in took_s.items()}
    return min(number for number in numbers if median_s[number] <= WORTH * min(median_s.values()))


@contextmanager
def _leaving_no_trace(replica: Replica) -> Iterator[None]:
    """Restore weights, buffers and the process-wide random generators: the run may train this very model."""
    tensors = [*replica.module.parameters(), *replica.module.buffers()]
    before = [t.detach().clone() for t in tensors]
    try:
        with seeded(0):
            yield
    finally:
        with torch.no_grad():
            for t, value in zip(tensors, before, strict=True):
                t.copy_(value)
