"""What cores take when several are busy."""

import threading

import pytest

from manyhands.calibration import cores as calibration_cores
from manyhands.calibration.cores import ROUNDS, SIDE, thread_counts, time_cores


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 3, 4, 6]), (16, [1, 2, 3, 4, 6, 8, 12, 16]), (10, [1, 2, 3, 4, 6, 8, 10])],
)
def test_numbers_of_threads(cores: int, counts: list[int]) -> None:
    assert thread_counts(cores) == counts


def test_every_kind_of_work_is_timed_with_every_number_of_threads() -> None:
    found = time_cores(2)
    for us in (found.memory_us, found.lock_us):
        assert list(us) == [1, 2]
        assert all(each > 0 for each in us.values())
    assert [(threads, len(us)) for threads, us in found.compute_us.items()] == [(1, ROUNDS), (2, 2 * ROUNDS)]
    assert all(us == sorted(us) and us[0] > 0 for us in found.compute_us.values())
    assert found.compute_flops == 2 * SIDE**3, "a product and a sum for each of as many numbers"


def test_a_thread_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> None:
        raise MemoryError

    monkeypatch.setattr(calibration_cores, "_compute", no_memory)
    before = threading.active_count()
    with pytest.raises(MemoryError):
        time_cores(2)
    assert threading.active_count() == before


def test_a_thread_that_fails_later_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> object:
        calls = [None]
        return lambda: calls.pop()

    monkeypatch.setattr(calibration_cores, "_compute", breaks)
    with pytest.raises(IndexError, match="pop from empty list"):
        time_cores(2)
