"""Time bare threads on 1 core, 2 cores and more: how much they slow each other down in computing, memory and locking.

From this `simulate` predicts how more workers than were measured would slow each other down.
"""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import torch

from manyhands.config import RunConfig
from manyhands.launch.blas_threads.count import process_settings
from manyhands.record.calibration import CoreTimes

ROUNDS, ROUND_S, LATEST_S = 12, 0.025, 30.0
"""Rounds of each number of threads and kind of work, their length, and how long the threads may take to begin."""
SIDE, LONG, SHORT = 384, 2**22, 64
"""Sizes of matrices that fit into a core's cache, of arrays that fit into no cache, and of tiny arrays."""

Work = Callable[[], object]
Make = Callable[[], Work]


def time_cores(cores: int, counts: Sequence[int] = ()) -> CoreTimes:
    """Return the microseconds of an operation of each kind, by the number of threads that do it at once.

    Without `counts`, those are `thread_counts(cores)`.
    """
    counts = counts or thread_counts(cores)
    rounds: dict[Make, dict[int, list[list[float]]]] = {
        make: {k: [] for k in counts} for make in (_compute, _memory, _lock)
    }
    with process_settings(RunConfig(task="", blas_threads=1), 1, 1):
        for _ in range(ROUNDS):
            for make, by_threads in rounds.items():
                for threads, times in by_threads.items():
                    times.append(_at_once(make, threads))
    return CoreTimes(
        compute_us={k: sorted(round(us, 1) for us in chain(*times)) for k, times in rounds[_compute].items()},
        compute_flops=2 * SIDE**3,
        memory_us={k: _typical(times) for k, times in rounds[_memory].items()},
        lock_us={k: _typical(times) / k for k, times in rounds[_lock].items()},
    )


def _typical(rounds: Sequence[Sequence[float]]) -> float:
    """Return the median over the rounds; in each, the time per operation at the threads' mean rate."""
    return statistics.median(map(statistics.harmonic_mean, rounds))


def thread_counts(cores: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12 … and `cores`."""
    counts = {base * 2**k for k in range(cores.bit_length()) for base in (2, 3)}
    return sorted({1, *(count for count in counts if count < cores), cores})


def _compute() -> Work:
    a, b, out = (torch.ones(SIDE, SIDE) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _memory() -> Work:
    a, b = torch.ones(LONG), torch.ones(LONG)
    return lambda: a.add_(b)


def _lock() -> Work:
    a = torch.ones(SHORT)
    return lambda: a.mul_(1.0)


def _at_once(make: Make, threads: int) -> list[float]:
    """Return the microseconds per operation of each of `threads` threads that work at the same time."""
    begin, stop = threading.Barrier(threads + 1), threading.Event()

    def work() -> float:
        try:
            operation = make()
            operation()
        except BaseException:
            begin.abort()  # or the others would wait for this one
            raise
        begin.wait(LATEST_S)
        begun_s, done = time.perf_counter(), 0
        while not (stop.is_set() and done):
            operation()
            done += 1
        return 1e6 * (time.perf_counter() - begun_s) / done

    with ThreadPoolExecutor(threads) as pool:
        workers = [pool.submit(work) for _ in range(threads)]
        try:
            begin.wait(LATEST_S)
            time.sleep(ROUND_S)
        except threading.BrokenBarrierError:
            stop.set()
            errors = [error for worker in workers if (error := worker.exception())]
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]) from None
        finally:
            stop.set()
        return [worker.result() for worker in workers]
