"""What cores take when several are busy."""

import pytest

from manyhands.lab.calibration_cores import thread_counts, time_cores


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 3, 4, 6]), (16, [1, 2, 3, 4, 6, 8, 12, 16]), (10, [1, 2, 3, 4, 6, 8, 10])],
)
def test_numbers_of_threads(cores: int, counts: list[int]) -> None:
    assert thread_counts(cores) == counts


def test_every_kind_of_work_is_timed_with_every_number_of_threads() -> None:
    found = time_cores(2)
    for us in (found.compute_us, found.memory_us, found.lock_us):
        assert list(us) == [1, 2]
        assert all(each > 0 for each in us.values())
    assert found.lock_us[1] < found.compute_us[1] < found.memory_us[1], "nothing, 14 million operations, 50 MB"
