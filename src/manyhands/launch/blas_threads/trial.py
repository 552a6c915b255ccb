"""Choose how many threads a worker's matrix products use: time a few steps with each number, and take the fastest.

All cores are often the wrong choice: the products of a small step are not worth sharing out, and beside busy programs
every product waits for the thread that has lost its core. The number of threads may change the last bits of a product,
so what was chosen once on a machine is kept in the user's folder, and an equal run takes it again. What was chosen
beside busy programs is taken again for an hour, so that equal runs made together have equal bits, and then chosen anew
on a quiet machine.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.launch.blas_threads.count import process_settings, ranks_here
from manyhands.launch.user_folder import chosen_threads_path
from manyhands.machine import facts
from manyhands.machine.load import SHORTEST_S, CoreMeter, others_of
from manyhands.record import Others, write_atomically
from manyhands.record.files import alone_in
from manyhands.replica import Replica
from manyhands.training.plan import Plan
from manyhands.training.step import compute_gradients

ROUNDS, LEAST_ROUNDS = 5, 2
"""How often each number of threads has its turn; fewer where steps are long."""
STEPS = 3
"""Steps of a turn."""
ENOUGH_S, SHARE = 0.3, 0.02
"""Seconds that the trial may take, or the share of the run."""
SMALL_S = 4e-4
"""A step of one thread that is shorter than this is not worth sharing out, and needs no trial."""
KEPT_S = 3600.0
"""How long a choice made beside busy programs is taken again, however quiet the machine is by then."""
WORTH = 1.1
"""How many times as fast more threads must be: fewer leave cores to others, and give the same bits more often."""


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads that was chosen on this machine."""

    threads: int
    quiet: bool
    """Whether no other programs used much of the cores meanwhile."""
    made_s: float
    """When it was chosen, in seconds since 1970."""

    @property
    def is_final(self) -> bool:
        """Whether equal runs take it in any case."""
        return self.quiet or abs(time.time() - self.made_s) < KEPT_S


def with_chosen_threads(
    config: RunConfig,
    data: Dataset,
    replica: Replica,
    meter: CoreMeter,
    say: Callable[[str], None] = lambda sentence: None,
) -> RunConfig:
    """Return the config with the number of threads chosen, where the user left it open and there is a choice.

    meter: Tells what other programs use of the cores; the longer it has counted, the less there is to wait.
    say: Is told of a choice that busy cores may have misled.
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
    choice, others = _known(path).get(key), None
    if choice is None or not choice.is_final:
        others = _busy_programs(meter)
    if choice is None or not (choice.is_final or others):
        chosen = most = _left_over(share, ranks or 1, others)
        # A model that fails will do so on a rank as well, which is then named.
        with process_settings(config, ranks or 1, facts.cores()), _leaving_no_trace(replica), suppress(Exception):
            chosen = fastest(step, powers_of_two(most), plan.steps)
        others = _busy_programs(meter)
        choice = _remember(path, key, ThreadChoice(chosen, others is None, time.time()))
    if not choice.quiet:
        say(
            f"{others or 'other programs were busy'} when the number of BLAS threads, {choice.threads}, was chosen; "
            "in an hour it is chosen anew if the machine is quiet; --blas-threads sets it"
        )
    return config.model_copy(update={"chosen_blas_threads": min(choice.threads, share)})


def _left_over(share: int, ranks: int, others: Others | None) -> int:
    """Return the most threads to try: those that share a core with another program keep the rest waiting."""
    return min(share, max(1, int(others.of - others.cores) // ranks)) if others else share


def _busy_programs(meter: CoreMeter) -> Others | None:
    """Return what other programs use of the cores if that is much, once the meter has counted for long enough."""
    time.sleep(max(0.0, SHORTEST_S - meter.read().wall_s))
    others = others_of([meter.read(facts.cores()).to_json()])
    return others if others is not None and others.disturbed else None


def _key(config: RunConfig, share: int) -> str:
    """Name what decides how long the products of a step take: a timing must not choose anew for an equal run."""
    work = (config.task, config.data, config.image_size, config.batch_size, config.micro_batch, config.dtype)
    return json.dumps([*work, config.fuse, config.size, share, facts.version("torch")])


def _known(path: Path) -> dict[str, ThreadChoice]:
    """Return what was chosen on this machine before."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        choices = {
            str(key): ThreadChoice(int(kept["threads"]), bool(kept["quiet"]), float(kept["made_s"]))
            for key, kept in found.items()
        }
        return {key: choice for key, choice in choices.items() if choice.threads >= 1}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _remember(path: Path, key: str, choice: ThreadChoice) -> ThreadChoice:
    """Keep a choice, so that an equal run has the same bits; return what another run has kept meanwhile, if it has.

    Where nothing can be written, the next run chooses too.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            known = _known(path)
            before = known.get(key)
            if before is not None and (before.quiet or not choice.quiet):
                return before
            kept = {each: asdict(old) for each, old in {**known, key: choice}.items()}
            write_atomically(path, json.dumps(kept, indent=1) + "\n")
    return choice


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
