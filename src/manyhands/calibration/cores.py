"""Time what cores take when several are busy, with bare threads and no task: computing, memory, the interpreter's lock.

So `simulate` knows what more workers than were measured would do to each other.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence

import torch

from manyhands.config import RunConfig
from manyhands.launch.blas_threads.count import process_settings
from manyhands.record.calibration import CoreTimes

ROUNDS, ROUND_S, LATEST_S = 12, 0.025, 30.0
"""Of each number of threads and kind of work, in turn; and how long all of them may take to begin."""
SIDE, LONG, SHORT = 384, 2**22, 64
"""Of matrices that keep a core busy with what its cache holds, of arrays that no cache holds, of next to nothing."""

Work = Callable[[], object]
Make = Callable[[], Work]


def time_cores(cores: int) -> CoreTimes:
    """Return what an operation of each kind takes, by the number of threads that are at it."""
    counts = thread_counts(cores)
    found: dict[Make, dict[int, list[list[float]]]] = {
        make: {k: [] for k in counts} for make in (_compute, _memory, _lock)
    }
    with process_settings(RunConfig(task="", blas_threads=1), 1, 1):
        for _ in range(ROUNDS):
            for make, by_threads in found.items():
                for threads, rounds in by_threads.items():
                    rounds.append(_at_once(make, threads))
    return CoreTimes(
        compute_us={k: sorted(round(us, 1) for each in rounds for us in each) for k, rounds in found[_compute].items()},
        compute_flops=2 * SIDE**3,
        memory_us={k: _typical(rounds) for k, rounds in found[_memory].items()},
        lock_us={k: _typical(rounds) / k for k, rounds in found[_lock].items()},
    )


def _typical(rounds: Sequence[Sequence[float]]) -> float:
    """Return what an operation takes each thread by what all of them get done together."""
    return statistics.median(statistics.harmonic_mean(each) for each in rounds)


def thread_counts(cores: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12 … and the cores."""
    both = {base * 2**k for k in range(cores.bit_length()) for base in (2, 3)}
    return sorted({1, *(each for each in both if each < cores), cores})


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
    """Return the microseconds that an operation takes each of so many threads."""
    begin, stop = threading.Barrier(threads + 1), threading.Event()
    took_us = [math.inf] * threads

    def work(i: int) -> None:
        try:
            operation = make()
            operation()
            begin.wait(LATEST_S)
        except threading.BrokenBarrierError:
            return
        except BaseException:
            begin.abort()  # or the others would wait for this one
            raise
        begun_s, done = time.perf_counter(), 0
        while not (stop.is_set() and done):
            operation()
            done += 1
        took_us[i] = 1e6 * (time.perf_counter() - begun_s) / done

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    try:
        for worker in workers:
            worker.start()
        begin.wait(LATEST_S)
        time.sleep(ROUND_S)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    if math.inf in took_us:
        raise RuntimeError("a thread failed while bare threads were timed")
    return took_us
