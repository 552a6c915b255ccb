"""Nobody leaves a barrier before all have come; a broken one lets everybody go with an error."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from manyhands.comm import barrier as module
from manyhands.comm.barrier import Barrier, GroupAborted


@pytest.fixture(params=["of the C library", "of Python"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Barrier]:
    """Make barriers with either kind of semaphore."""
    if request.param == "of Python":
        monkeypatch.setattr(module, "_semaphores", lambda n: [threading.Semaphore(0) for _ in range(n)])
    return Barrier


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_nobody_leaves_before_all_have_come(make: Callable[[int], Barrier], size: int) -> None:
    barrier, rounds = make(size), 50
    come = [0] * size

    def work(rank: int) -> list[list[int]]:
        seen = []
        for number in range(1, rounds + 1):
            come[rank] = number
            barrier.wait(rank)
            seen.append(list(come))
        return seen

    with ThreadPoolExecutor(size) as pool:
        for seen in pool.map(work, range(size)):
            for number, numbers in enumerate(seen, 1):
                assert min(numbers) >= number, "one had not come"
                assert max(numbers) <= number + 1, "one was let through twice"


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("early", [True, False], ids=["broken-first", "wait-first"])
def test_a_broken_barrier_lets_go_whoever_waits(make: Callable[[int], Barrier], missing: int, early: bool) -> None:
    barrier = make(3)
    let_go: list[int] = []

    def work(rank: int) -> None:
        with pytest.raises(GroupAborted):
            barrier.wait(rank)
        let_go.append(rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3) if rank != missing]
    if early:
        barrier.abort()
    for t in threads:
        t.start()
    if not early:
        barrier.abort()
    for t in threads:
        t.join()
    assert sorted(let_go) == [rank for rank in range(3) if rank != missing]


def test_it_stays_broken(make: Callable[[int], Barrier]) -> None:
    barrier = make(2)
    barrier.abort()
    for _ in range(2):
        with pytest.raises(GroupAborted):
            barrier.wait(1)
