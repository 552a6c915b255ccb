"""Real runs correct predictions and widen their intervals; earlier calibrations in the same state count as well."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_machine import calibration, constant

from manyhands.model.runs.correction import NO_CORRECTION, corrected, correction
from manyhands.model.runs.state import SAME, in_state, same_state, slow_down
from manyhands.record.calibration import KEPT, Calibration, ClosingRun, CoreTimes


def run(measured_ms: list[float], *, engine: str = "mpi", workers: int = 2, servers: int = 0) -> ClosingRun:
    """Make runs of a configuration that was predicted to take a millisecond."""
    name = "parameter-server" if servers else "allreduce"
    about = {"engine": engine, "task": "mlp", "sync": name, "workers": workers, "servers": servers, "batch_size": 64}
    return ClosingRun(**about, predicted_ms=1.0, measured_ms=measured_ms)


def closed(*runs: ClosingRun, slower: float = 1.0, earlier: tuple[Calibration, ...] = ()) -> Calibration:
    """Make a calibration that ended with these runs, on cores that take `slower` times as long."""
    known = calibration(constant)
    cores = known.cores.model_copy(
        update={"compute_us": {k: [slower * us for us in times] for k, times in known.cores.compute_us.items()}}
    )
    return known.model_copy(update={"closing": list(runs), "cores": cores, "earlier": list(earlier)})


def two(known: Calibration, **about: int) -> float:
    """Return the factor for two workers of MPI."""
    return correction(known, "mlp", "mpi", **{"workers": 2, **about}).factor


def test_without_real_runs_nothing_is_corrected() -> None:
    assert correction(calibration(constant), "mlp", "mpi", workers=2) == NO_CORRECTION
    assert correction(closed(run([2.0, 2.0])), "cnn", "mpi", workers=2) == NO_CORRECTION


@given(st.floats(0.3, 3.0), st.integers(2, 8))
@settings(deadline=None)
def test_half_of_what_all_runs_have_in_common_is_corrected_for_and_more_where_calibrations_agree(
    factor: float, runs: int
) -> None:
    alike, before = run([factor] * runs), closed(run([factor] * runs))
    for known, share in ((closed(alike), 1 / 2), (closed(alike, earlier=(before, before)), 3 / 4)):
        real = correction(known, "mlp", "mpi", workers=2)
        assert math.log(real.factor) == pytest.approx(share * math.log(factor), abs=1e-9)
        assert real.bound is not None
        assert real.bound >= (1 - share) * abs(math.log(factor)) - 1e-9, "the rest widens the interval"


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8))
@settings(deadline=None)
def test_a_correction_is_never_larger_than_what_was_measured_and_noise_makes_it_smaller(ratios: list[float]) -> None:
    mean = float(np.mean(np.log(ratios)))
    kept = math.log(two(closed(run(ratios))))
    assert min(0.0, mean) - 1e-9 <= kept <= max(0.0, mean) + 1e-9


def test_runs_that_differ_as_much_as_they_are_off_correct_nothing_but_widen() -> None:
    real = correction(closed(run([0.8, 1 / 0.8])), "mlp", "mpi", workers=2)
    assert real.factor == pytest.approx(1.0)
    assert real.bound
    assert real.bound > abs(math.log(0.8))


@pytest.mark.parametrize("spread", [0.05, 0.3])
@pytest.mark.parametrize("runs", [2, 3, 6])
def test_the_interval_holds_nine_runs_in_ten(runs: int, spread: float) -> None:
    random = np.random.default_rng(runs)
    held = []
    for _ in range(400):
        bias = 0.2 * random.standard_normal()
        *seen, new = np.exp(bias + spread * random.standard_normal(2 * runs + 1))
        real = correction(closed(run(seen[:runs]), run(seen[runs:], workers=1, servers=1)), "mlp", "mpi", workers=2)
        assert real.bound
        held.append(abs(math.log(new / real.factor)) <= real.bound)
    assert np.mean(held) >= 0.87
    assert np.mean(held) <= 0.97 or spread < 0.1, "what is left of a bias that stays widens it further"


def test_kinds_of_runs_are_corrected_apart_and_ranks_between_are_interpolated() -> None:
    runs = (run([3.0] * 3, engine="serial", workers=1), run([2.0] * 3), run([8.0] * 3, workers=8))
    known = closed(*runs, run([5.0] * 3, workers=1, servers=1))
    assert two(known, workers=1) ** 2 == pytest.approx(3.0)
    assert two(known) ** 2 == pytest.approx(2.0)
    assert two(known, workers=4) ** 2 == pytest.approx(4.0), "halfway in the logarithm"
    assert two(known, workers=64) ** 2 == pytest.approx(8.0), "nothing is extrapolated"
    assert two(known, workers=1, servers=1) ** 2 == pytest.approx(5.0)
    assert two(closed(*runs), workers=1, servers=1) ** 2 == pytest.approx(2.0), "collectives are the nearest"


def test_earlier_calibrations_count_in_the_same_state_alone() -> None:
    before = closed(run([2.0, 2.0]))
    slow = closed(run([9.0, 9.0]), slower=2 * SAME)
    known = closed(run([1.0, 1.0]), earlier=(before, slow))
    real = correction(known, "mlp", "mpi", workers=2)
    assert 1.0 < real.factor < 2.0
    assert real.bound
    assert real.bound > math.log(2) / 2, "the machine changes as much"
    assert correction(closed(run([1.0, 1.0]), earlier=(slow,)), "mlp", "mpi", workers=2).factor == pytest.approx(1.0)


def test_a_corrected_calibration_takes_longer_by_the_factors() -> None:
    known = calibration(constant)
    slower = corrected(known, "mlp", "mpi", 2.0, 3.0)
    assert slower.tasks["mlp"].points[0].compute_ms == [2 * ms for ms in known.tasks["mlp"].points[0].compute_ms]
    assert slower.comms["mpi"].points[-1].us == [3 * us for us in known.comms["mpi"].points[-1].us]
    assert slower.comms["threads"] == known.comms["threads"]
    assert corrected(known, "mlp", "mpi", 1.0, 1.0) is known


def cores(one: float, all_: float) -> CoreTimes:
    """Make two cores with these times of a product, alone and together."""
    return CoreTimes(compute_us={1: [one], 2: [all_]}, compute_flops=1.0, memory_us={1: 1.0}, lock_us={1: 1.0})


def test_the_state_is_told_by_one_core_or_by_all_whichever_differs_more() -> None:
    assert slow_down(cores(1, 1), cores(1, 1.5)) == 1.5
    assert slow_down(cores(1, 1), cores(0.5, 1.2)) == 0.5
    assert same_state(cores(1, 1), cores(1.2, 0.9))
    assert not same_state(cores(1, 1), cores(1, 1.5))


def test_of_kept_calibrations_the_newest_in_the_present_state_is_used() -> None:
    slow, fast = closed(run([9.0]), slower=2.0), closed(run([1.0]))
    known = slow.model_copy(update={"earlier": [fast], "made": "2025-02-01 00:00:00"})
    chosen = in_state(known, fast.cores, "mlp", ["mpi"])
    assert chosen is not None
    assert chosen.made == fast.made
    assert [other.made for other in chosen.earlier] == [known.made]
    assert in_state(known, closed(slower=9.0).cores, "mlp", ["mpi"]) is None
    assert in_state(known, known.cores, "mlp", ["torch"]) is None


def test_a_newer_calibration_keeps_what_it_replaces_and_no_more_than_some() -> None:
    known = closed(run([1.0]))
    for month in range(2, KEPT + 4):
        newer = closed(run([float(month)])).model_copy(update={"made": f"2025-{month:02}-01 00:00:00"})
        known = known.joined(newer)
    assert [made.closing[0].measured_ms for made in known.earlier][:2] == [[KEPT + 2.0], [KEPT + 1.0]]
    assert len(known.earlier) == KEPT
    assert not any(made.earlier for made in known.earlier)
    assert [made.measured_ms for made in known.closing] == [[KEPT + 3.0]]
    assert Calibration.model_validate_json(known.model_dump_json()) == known


def test_a_calibration_of_another_task_replaces_nothing() -> None:
    known = closed(run([1.0]))
    other = known.model_copy(
        update={"tasks": {"cnn": known.tasks["mlp"]}, "contention": [], "closing": [], "comms": {}}
    )
    both = known.joined(other)
    assert both.earlier == []
    assert both.closing == known.closing
    assert set(both.tasks) == {"mlp", "cnn"}


def test_circumstances_name_age_load_and_errors() -> None:
    from datetime import datetime

    text = closed(run([1.25])).circumstances(datetime(2025, 1, 1, 0, 4))
    assert (
        text
        == "made 4 min ago under a load that is not known; its own runs were 20.0 % off at most before it was corrected"
    )
