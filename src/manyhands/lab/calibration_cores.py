"""Time what cores take when several are busy, with bare threads and no task: computing, memory, the interpreter's lock.

So `simulate` knows what more workers than were measured would do to each other.
"""

import statistics
import threading
import time
from collections.abc import Callable

import torch

from manyhands.config import RunConfig
from manyhands.launch.cores import process_settings
from manyhands.record.calibration import CoreTimes

ROUNDS, ROUND_S, LATEST_S = 3, 0.04, 30.0
"""Of each number of threads and kind of work, in turn; and how long all of them may take to begin."""
SIDE, LONG, SHORT = 192, 2**22, 64
"""Of matrices that fit into a core's own cache, of arrays that fit into none, and of one that takes no time at all."""

Work = Callable[[], object]


def time_cores(cores: int) -> CoreTimes:
    """Return what an operation of each kind takes, by the number of threads that are at it."""
    counts = thread_counts(cores)
    with process_settings(RunConfig(task="", blas_threads=1), 1, 1):
        rounds = [
            [_at_once(make, threads) for make in (_compute, _memory, _lock) for threads in counts]
            for _ in range(ROUNDS)
        ]
    found = [round(statistics.median(each), 3) for each in zip(*rounds, strict=True)]
    kinds = [found[i : i + len(counts)] for i in range(0, len(found), len(counts))]
    compute, memory, lock = (dict(zip(counts, each, strict=True)) for each in kinds)
    together = {threads: each / threads for threads, each in lock.items()}
    return CoreTimes(compute_us=compute, memory_us=memory, lock_us=together)


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


def _at_once(make: Callable[[], Work], threads: int) -> float:
    """Return the microseconds that each of so many threads takes for one operation."""
    begin, stop = threading.Barrier(threads + 1), threading.Event()
    done = [0] * threads

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
        while not stop.is_set():
            operation()
            done[i] += 1

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    try:
        for worker in workers:
            worker.start()
        begin.wait(LATEST_S)
        begun_s = time.perf_counter()
        time.sleep(ROUND_S)
        took_s = time.perf_counter() - begun_s
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    return 1e6 * took_s * threads / max(1, sum(done))
