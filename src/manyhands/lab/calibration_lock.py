"""Time how long operations of threads take to get the interpreter's lock back, with bare threads and no task."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ROUNDS, ROUND_S = 5, 0.04
"""Of each number of threads, in turn."""
LENGTH = 64
"""Elements of a tensor: so few that an operation takes no time of its own."""


def time_lock(cores: int) -> dict[int, float]:
    """Return what an operation takes, over all threads together, by the number of threads that are at it."""
    counts = _counts(cores)
    with _one_blas_thread():
        rounds = [[_operation_us(threads) for threads in counts] for _ in range(ROUNDS)]
    return {
        threads: round(statistics.median(found), 3)
        for threads, found in zip(counts, zip(*rounds, strict=True), strict=True)
    }


def _counts(cores: int) -> list[int]:
    """Return 2, 3, 4, 6, 8, 12 … and the cores."""
    both = [base * 2**k for k in range(cores.bit_length()) for base in (2, 3)]
    return sorted({each for each in both if each < cores} | {cores})


def _operation_us(threads: int) -> float:
    begin, stop = threading.Barrier(threads + 1), threading.Event()
    done = [0] * threads

    def work(i: int) -> None:
        own = torch.ones(LENGTH)
        begin.wait()
        while not stop.is_set():
            own.mul_(1.0)
            done[i] += 1

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    begun_s = time.perf_counter()
    time.sleep(ROUND_S)
    stop.set()
    took_s = time.perf_counter() - begun_s
    for worker in workers:
        worker.join()
    return 1e6 * took_s / max(1, sum(done))


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
