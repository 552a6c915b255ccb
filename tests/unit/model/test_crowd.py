"""How long a step takes for any rows, and for any number of workers that share the host."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_calibration import LOCK_US, ROWS, affine, calibration, core_times, row_times, varying

from manyhands.model.crowd import contention, persistence, run_spread, step_times
from manyhands.record.calibration import Calibration, RowTimes


@pytest.mark.parametrize("sharing", [1, 2])
@pytest.mark.parametrize("rows", ROWS)
def test_measured_points_are_met_exactly(rows: int, sharing: int) -> None:
    factor = 1.0 if sharing == 1 else 1.3
    times = step_times(calibration(varying, factor=1.3), "mlp", "mpi", rows, sharing)
    measured = row_times(rows, varying, factor=factor)
    assert times.compute_s == pytest.approx(np.sort(measured.compute_ms) / 1e3)
    assert times.serial_s == pytest.approx(np.sort(measured.serial_ms) / 1e3)
    whole = np.sort(np.add(measured.compute_ms, measured.serial_ms))
    assert times.whole_s == pytest.approx(whole / 1e3)


@given(st.floats(0, 500))
def test_a_constant_and_so_much_a_row_is_found_for_any_rows(rows: float) -> None:
    """Between the points, below and beyond them."""
    times = step_times(calibration(), "mlp", "mpi", rows, 1)
    assert times.compute_s == pytest.approx(np.full(40, 1e-3 * affine(rows)[0]))
    assert times.serial_s == pytest.approx(np.full(40, 0.25e-3))


@given(st.floats(1, 32), st.floats(1, 32), st.integers(1, 20))
def test_more_rows_never_take_less(a: float, b: float, sharing: int) -> None:
    fewer, more = (step_times(calibration(varying, factor=1.2), "mlp", "mpi", rows, sharing) for rows in sorted((a, b)))
    assert (np.diff(fewer.compute_s) >= 0).all()
    assert (fewer.compute_s <= more.compute_s + 1e-12).all()
    assert (fewer.whole_s <= more.whole_s + 1e-12).all()


def test_every_quantile_is_interpolated() -> None:
    times = step_times(calibration(varying), "mlp", "mpi", 5, 1)
    expected = np.asarray(varying(5)) / 1e3
    assert times.compute_s == pytest.approx(np.sort(expected))


def test_points_of_different_lengths_are_mixed() -> None:
    known = calibration(varying)
    costs = known.tasks["mlp"]
    short = costs.points[2].model_copy(update={"compute_ms": sorted(varying(8))[::8], "serial_ms": [0.25] * 51})
    known.tasks["mlp"] = costs.model_copy(update={"points": [*costs.points[:2], short, costs.points[3]]})
    times = step_times(known, "mlp", "mpi", 20, 1)
    assert len(times.compute_s) == 401
    assert times.compute_s.mean() == pytest.approx(1e-3 * np.mean(varying(20)), rel=1e-3)


def test_measured_contention_is_a_figure_without_doubt() -> None:
    assert contention(calibration(factor=1.3), "mlp", "mpi", 8, 1) == pytest.approx((1, 1, 1))
    assert contention(calibration(factor=1.3), "mlp", "mpi", 8, 2) == pytest.approx((1.3, 1.3, 1.3))


@pytest.mark.parametrize("sharing", [3, 4, 16, 10_000])
def test_beyond_what_was_measured_it_has_bounds(sharing: int) -> None:
    known = calibration(varying, factor=1.1)
    low, value, high = contention(known, "mlp", "mpi", 8, sharing)
    assert low == pytest.approx(1.1), "at best all grows with the cores"
    assert low < value < high <= sharing
    alone = step_times(known, "mlp", "mpi", 8, 1)
    shared = step_times(known, "mlp", "mpi", 8, sharing)
    assert shared.quiet_s / alone.quiet_s == pytest.approx(value)
    assert shared.compute_s.std() == pytest.approx(1.1 * alone.compute_s.std()), "what disturbs two disturbs many"


def test_the_more_share_the_wider_the_bounds() -> None:
    known = calibration(factor=1.1)
    widths = [high - low for low, _, high in (contention(known, "mlp", "mpi", 8, k) for k in (2, 3, 4, 8, 64))]
    assert widths == sorted(widths)
    assert widths[0] == 0


def test_without_contention_of_two_there_is_none_of_many() -> None:
    """A factor below 1 is noise, and must not make a thousand workers faster than one."""
    assert contention(calibration(factor=0.95), "mlp", "mpi", 8, 1000) == pytest.approx((1, 1, 1))


def test_between_two_measured_numbers_of_workers_it_is_interpolated() -> None:
    known = calibration(factor=1.2)
    four = [
        each.model_copy(update={"ranks": 4, "times": row_times(each.rows, affine, factor=1.6)})
        for each in known.contention
    ]
    known = known.model_copy(update={"contention": known.contention + four})
    assert contention(known, "mlp", "mpi", 8, 3) == pytest.approx((1.4, 1.4, 1.4))


def test_the_spread_of_runs_is_that_of_blocks_which_were_made_together() -> None:
    """Every second block takes a tenth longer, for all rows; what differs inside of a block is no matter of runs."""

    def drifting(rows: int) -> RowTimes:
        ms = [(2 + rows) * drift * (0.9 + 0.2 * (i % 4) / 3) for drift in (1.0, 1.1) * 4 for i in range(4)]
        return RowTimes(rows=rows, compute_ms=ms, serial_ms=[0.0] * len(ms), block=4)

    known = calibration(varying)
    costs = known.tasks["mlp"].model_copy(update={"points": [drifting(rows) for rows in ROWS]})
    known = known.model_copy(update={"tasks": {"mlp": costs}, "contention": []})
    assert run_spread(known, "mlp", "mpi", 1) == pytest.approx(np.std([1.0, 1.1] * 4, ddof=1) / 1.05)
    assert run_spread(calibration(), "mlp", "mpi", 1) == pytest.approx(0, abs=1e-12)


def with_lock(lock_us: dict[int, float], operations: int, piece_rows: int = 0) -> Calibration:
    """Make a calibration of threads that need the lock so often in a step, of which all of the fewest rows."""
    known = calibration()
    often = {"pass_operations": operations, "update_operations": 0, "piece_rows": piece_rows}
    costs = {"mlp": known.tasks["mlp"].model_copy(update=often)}
    return known.model_copy(update={"cores": core_times(lock_us=lock_us), "tasks": costs})


def test_threads_that_always_wait_for_the_lock_take_turns() -> None:
    """One always has it: eight take four times as long as two, and handing it on more slowly doubles that."""
    alone_us = 1e6 * step_times(calibration(), "mlp", "threads", 8, 1).quiet_s
    steady = {1: alone_us / 100, 2: alone_us / 100, 8: alone_us / 100}
    assert contention(with_lock(steady, 100), "mlp", "threads", 8, 8).value == pytest.approx(4)
    slower = {**steady, 8: alone_us / 50}
    assert contention(with_lock(slower, 100), "mlp", "threads", 8, 8).value == pytest.approx(8)


def test_threads_that_hardly_need_the_lock_hardly_wait_for_it() -> None:
    lock_us = {1: 20.0, 2: 20.0, 8: 20.0}
    seldom, often = (contention(with_lock(lock_us, n), "mlp", "threads", 32, 8).value for n in (1, 400))
    assert 1 <= seldom < 1.05 < 2 < often


def test_every_piece_of_a_batch_needs_the_lock_again() -> None:
    whole, pieces = (contention(with_lock(LOCK_US, 100, rows), "mlp", "threads", 32, 8).value for rows in (0, 8))
    assert whole < pieces


def test_workers_take_longer_as_bare_threads_do_where_more_cores_are_busy() -> None:
    """Computing takes half as long again on eight cores as on two; two workers took no longer than one."""
    known = calibration().model_copy(update={"cores": core_times({1: [10], 2: [10], 8: [15]})})
    assert contention(known, "mlp", "mpi", 8, 8) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize(("flops_per_row", "part"), [(0.0, 0.0), (7.5e8, 0.1), (1e12, 1.0)])
def test_where_cores_are_uneven_so_are_workers_as_far_as_they_do_arithmetic(flops_per_row: float, part: float) -> None:
    """Of eight cores every fourth takes twice as long; so does the part of a pass, 6 ms, that is arithmetic."""
    known = calibration()
    alone = step_times(known, "mlp", "mpi", 8, 2)
    cores = core_times({2: [10.0] * 8, 8: [8.0] * 6 + [16.0] * 2})  # of which the mean is the same
    costs = known.tasks["mlp"].model_copy(update={"flops_per_row": flops_per_row})
    known = known.model_copy(update={"cores": cores, "tasks": {"mlp": costs}})
    many = step_times(known, "mlp", "mpi", 8, 8)
    assert many.compute_s.mean() == pytest.approx(alone.compute_s.mean())
    assert many.compute_s.max() - alone.compute_s.max() == pytest.approx(0.6 * part * 6e-3, rel=0.05, abs=1e-12)
    assert (np.diff(many.compute_s) >= 0).all()
    assert many.serial_s == pytest.approx(alone.serial_s)


def test_what_follows_an_exchange_does_not_grow_with_the_workers() -> None:
    """Steps are slower than alone only because of the exchange before them: more workers do not make it worse."""
    cold = calibration(factor=1.5)
    alone = {point.rows: point for point in cold.tasks["mlp"].points}
    quiet = [each.model_copy(update={"silent": alone[each.rows]}) for each in cold.contention]
    found = contention(cold.model_copy(update={"contention": quiet}), "mlp", "mpi", 8, 16)
    assert found == pytest.approx((1.5, 1.5, 1.5))


def test_a_step_without_an_exchange_before_it_is_a_silent_one() -> None:
    cold = calibration(factor=1.5)
    alone = {point.rows: point for point in cold.tasks["mlp"].points}
    quiet = [each.model_copy(update={"silent": alone[each.rows]}) for each in cold.contention]
    made = cold.model_copy(update={"contention": quiet})
    every, fourth = (step_times(made, "mlp", "mpi", 8, 2, period=period).quiet_s for period in (1, 4))
    once = step_times(made, "mlp", "mpi", 8, 1).quiet_s
    assert (every, fourth) == pytest.approx((1.5 * once, (1 + 0.5 / 4) * once))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_persistence_is_the_share_of_the_variance_that_blocks_have_in_common(share: float) -> None:
    random = np.random.default_rng(1)

    def in_blocks(rows: float) -> list[float]:
        common, own = random.standard_normal((2000, 1)), random.standard_normal((2000, 4))
        return [float(ms) for ms in (50 + share**0.5 * common + (1 - share) ** 0.5 * own).ravel()]

    assert persistence(calibration(in_blocks), "mlp", "mpi", 1) == pytest.approx(share, abs=0.05)


def test_who_exchanges_with_another_host_finds_cold_caches_too() -> None:
    """Two of a host take half as long again after an exchange; so does one by itself that has exchanged."""
    cold = calibration(factor=1.5)
    alone = {point.rows: point for point in cold.tasks["mlp"].points}
    quiet = [each.model_copy(update={"silent": alone[each.rows]}) for each in cold.contention]
    made = cold.model_copy(update={"contention": quiet})
    once = step_times(made, "mlp", "mpi", 8, 1).quiet_s
    every, fourth = (step_times(made, "mlp", "mpi", 8, 1, period=n, talks=True).quiet_s for n in (1, 4))
    assert (every, fourth) == pytest.approx((1.5 * once, (1 + 0.5 / 4) * once))


def test_a_worker_without_rows_takes_no_time_rather_than_less() -> None:
    """A line through steps of one and two rows may meet zero before the rows do."""
    steep = calibration(lambda rows: [rows**2] * 40)
    found = step_times(steep, "mlp", "mpi", 0, 1, talks=True)
    assert found.whole_s.tolist() == [0.0] * 40
