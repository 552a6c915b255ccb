"""Laws of scaling: what was put into made-up sweeps comes back, and the intervals hold it as often as they promise."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import made_up_cells, made_up_measures

from manyhands.record.sweep import Cell, Fit, Interval, Kind, Measure
from manyhands.scaling.analysis.fits import (
    AMDAHL,
    GUSTAFSON,
    LAWS,
    MOST_WORKERS,
    USL,
    Floats,
    Points,
    ScalingLaw,
    best_workers,
    fits,
    intervals,
    peaks,
    solve,
)
from manyhands.scaling.analysis.measured import Measured

WORKERS = (1, 2, 4, 8)
RATE = 5000.0


def _sweep(
    kind: Kind,
    law: ScalingLaw,
    truth: Sequence[float],
    *,
    workers: Sequence[int] = WORKERS,
    noise: float = 0.0,
    spell: float = 0.0,
    repeats: int = 5,
    seed: int = 0,
) -> tuple[list[Cell], list[Measure]]:
    """Make up runs that follow a law, with noise of each run and slow spells of each repeat."""
    random = np.random.default_rng(seed)
    cells = [cell for cell in made_up_cells(kind, workers, ("mpi",)) if cell.role != "probe"]
    measures = []
    for repeat in range(repeats):
        slow = spell * random.standard_normal()
        for cell in cells:
            faster = float(law.speed_up(np.array(float(cell.size)), *truth))
            rate = RATE * faster * math.exp(slow + noise * random.standard_normal())
            step_ms = int(cell.batch_size) / rate * 1e3
            measures.append(Measure(cell=cell.key, repeat=repeat, batch_size=int(cell.batch_size), step_ms=step_ms))
    return cells, measures


def _fit(kind: Kind, law: ScalingLaw, cells: list[Cell], measures: list[Measure], cores: int = 8) -> Fit:
    (fit,) = [fit for fit in fits(Measured(kind, cells, measures, cores)) if fit.law == law.name]
    return fit


KNOWN = [
    ("strong", AMDAHL, (0.0,)),
    ("strong", AMDAHL, (0.08,)),
    ("strong", AMDAHL, (1.0,)),
    ("weak", GUSTAFSON, (0.0,)),
    ("weak", GUSTAFSON, (0.25,)),
    ("strong", USL, (0.06, 0.004)),
    ("strong", USL, (0.0, 0.02)),
    ("weak", USL, (0.1, 0.0)),
]


@pytest.mark.parametrize(("kind", "law", "truth"), KNOWN)
def test_known_parameters_come_back(kind: Kind, law: ScalingLaw, truth: tuple[float, ...]) -> None:
    fit = _fit(kind, law, *_sweep(kind, law, truth, spell=0.3))
    found = [fit.parameters[name] for name in law.parameters]
    assert [p.value for p in found] == pytest.approx(truth, abs=1e-5)
    assert all(p.low <= p.value <= p.high for p in fit.parameters.values())
    assert fit.error_pct < 1e-2
    assert (fit.series, fit.batch_size, fit.image_size) == ("mpi", 64, 0)


def test_the_rate_of_one_worker_comes_back() -> None:
    fit = _fit("strong", USL, *_sweep("strong", USL, (0.06, 0.004)))
    assert fit.parameters["rate"].value == pytest.approx(RATE, rel=1e-4)


@pytest.mark.parametrize(
    ("law", "truth", "workers"),
    [
        (AMDAHL, (0.05,), WORKERS),
        (AMDAHL, (0.2,), (1, 2)),
        (GUSTAFSON, (0.1,), WORKERS),
        (USL, (0.1, 0.01), WORKERS),
        (AMDAHL, (0.003,), WORKERS),  # these two end at a bound every other time
        (USL, (0.1, 0.0002), WORKERS),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_promise(
    law: ScalingLaw, truth: tuple[float, ...], workers: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    n, repeat = np.tile(np.array(workers, dtype=float), 5), np.repeat(np.arange(5), len(workers))
    held = []
    for _ in range(200):
        log_rate = np.log(RATE * law.speed_up(n, *truth)) + 0.05 * random.standard_normal(5)[repeat]
        points = Points(n, log_rate + 0.03 * random.standard_normal(len(n)), repeat)
        found = intervals(law, solve(law, points))
        held.append([p.low <= value <= p.high for p, value in zip(found, truth, strict=True)])
    for share in np.mean(held, axis=0):
        assert 0.9 <= share <= 0.99


def _noise(shape: str, random: np.random.Generator, workers: Floats) -> Floats:
    """Return relative times of runs."""
    if shape == "skewed":
        return 1 + 0.1 * random.exponential(size=workers.shape)
    if shape == "two-humped":
        return np.where(random.random(workers.shape) < 0.7, 1.0, 1.3) * random.lognormal(0, 0.01, workers.shape)
    return 1 + 0.01 * workers * random.standard_normal(workers.shape)


@pytest.mark.parametrize("repeats", [3, 7, 13])
@pytest.mark.parametrize("shape", ["skewed", "two-humped", "noisier with more workers"])
@pytest.mark.parametrize(("law", "truth"), [(AMDAHL, (0.05,)), (USL, (0.1, 0.01))])
def test_so_do_they_for_other_noise_and_other_repeats(
    law: ScalingLaw, truth: tuple[float, ...], shape: str, repeats: int
) -> None:
    random, best = np.random.default_rng(0), peaks(np.array(truth)[:, None]) if law is USL else None
    n, repeat = np.tile(np.array(WORKERS, dtype=float), repeats), np.repeat(np.arange(repeats), len(WORKERS))
    held, held_best = [], []
    for _ in range(150):
        slow = 0.05 * random.standard_normal(repeats)[repeat]
        points = Points(n, np.log(RATE * law.speed_up(n, *truth)) + slow - np.log(_noise(shape, random, n)), repeat)
        solution = solve(law, points)
        found = intervals(law, solution)
        held.append([p.low <= value <= p.high for p, value in zip(found, truth, strict=True)])
        if (
            best is not None
            and (workers := best_workers(solution)) is not None
            and all(p.high - p.low < 0.5 for p in found)
        ):
            held_best.append(workers.low <= best[0] <= workers.high)
            assert workers.coverage_pct == 90
    assert (np.mean(held, axis=0) >= 0.9).all()
    assert not held_best or np.mean(held_best) >= 0.87


def test_a_law_that_is_left_behind_ends_at_its_bound_and_says_how_far_it_is_off() -> None:
    slower = _sweep("strong", USL, (2.0, 0.0), noise=0.01)
    fit = _fit("strong", AMDAHL, *slower)
    assert fit.parameters["serial"] == Interval(value=1.0, low=1.0, high=1.0)
    assert fit.error_pct > 10
    superlinear = _sweep("strong", USL, (-0.05, 0.0), noise=0.01)
    fit = _fit("strong", AMDAHL, *superlinear)
    assert fit.parameters["serial"] == Interval(value=0.0, low=0.0, high=0.0)
    assert _fit("strong", USL, *superlinear).best_workers is None


def test_the_best_number_of_workers_and_its_interval() -> None:
    truth = (0.05, 0.02)
    best = max(range(1, 100), key=lambda n: float(USL.speed_up(np.array(float(n)), *truth)))
    exact = _fit("strong", USL, *_sweep("strong", USL, truth)).best_workers
    assert exact
    assert exact.value == best == 7
    noisy = [_fit("strong", USL, *_sweep("strong", USL, truth, noise=0.03, seed=s)).best_workers for s in range(40)]
    assert np.mean([b is not None and b.low <= best <= b.high for b in noisy]) >= 0.9


@given(st.floats(0, 2), st.floats(0, 1))
def test_one_more_than_the_best_number_of_workers_does_not_help(contention: float, coherency: float) -> None:
    (best,) = peaks(np.array([[contention], [coherency]]))
    before, at, after = (
        float(USL.speed_up(np.array(n), contention, coherency)) for n in (best - 1 or 1, best, best + 1)
    )
    assert before <= at * (1 + 1e-12)
    assert after <= at * (1 + 1e-12) or best == MOST_WORKERS


def test_a_strong_sweep_is_held_against_amdahl_and_a_weak_one_against_gustafson() -> None:
    for kind, laws in (("strong", ["amdahl", "usl"]), ("weak", ["gustafson", "usl"])):
        found = fits(Measured(kind, *_sweep(kind, USL, (0.1, 0.01), noise=0.01), 8))  # type: ignore[arg-type]
        assert [fit.law for fit in found] == laws


def test_too_few_different_numbers_of_workers_are_no_fit() -> None:
    two = Measured("strong", *_sweep("strong", AMDAHL, (0.1,), workers=(1, 2)), 8)
    assert [fit.law for fit in fits(two)] == ["amdahl"]
    assert fits(Measured("strong", *_sweep("strong", AMDAHL, (0.1,), workers=(1,)), 8)) == []


def test_rows_that_share_cores_are_left_out() -> None:
    cells, measures = _sweep("strong", AMDAHL, (0.1,))
    slowed = [m.model_copy(update={"step_ms": m.step_ms * 9}) if "mpi 8" in m.cell else m for m in measures]
    assert _fit("strong", AMDAHL, cells, slowed, cores=4).parameters["serial"].value == pytest.approx(0.1, abs=1e-6)
    assert fits(Measured("strong", cells, measures, 1)) == []


def test_every_series_batch_and_image_size_has_its_own_fit() -> None:
    at = {"batch_sizes": (32, 64), "image_sizes": (28, 56)}
    cells = made_up_cells("strong", WORKERS, ("mpi", "threads"), ("allreduce", "local-sgd"), **at)
    found = [f for f in fits(Measured("strong", cells, made_up_measures(cells), 8)) if f.law == "usl"]
    series = ("mpi", "threads", "mpi local-sgd", "threads local-sgd")
    wanted = {(name, batch, image) for name in series for batch in (32, 64) for image in (28, 56)}
    assert {(f.series, f.batch_size, f.image_size) for f in found} == wanted
    assert len(found) == len(wanted)


def test_without_a_baseline_there_is_no_fit() -> None:
    cells, measures = _sweep("strong", AMDAHL, (0.1,))
    assert fits(Measured("strong", cells, [m for m in measures if "baseline" not in m.cell], 8)) == []


def test_failed_runs_are_left_out() -> None:
    cells, measures = _sweep("strong", AMDAHL, (0.1,))
    broken = [
        m.model_copy(update={"failed": "killed", "step_ms": 0.0}) if i % 3 == 0 else m for i, m in enumerate(measures)
    ]
    assert _fit("strong", AMDAHL, cells, broken).parameters["serial"].value == pytest.approx(0.1, abs=1e-6)


def test_a_single_repeat_is_fitted_too() -> None:
    fit = _fit("strong", AMDAHL, *_sweep("strong", AMDAHL, (0.1,), workers=(1, 2), repeats=1))
    serial = fit.parameters["serial"]
    assert [serial.value, serial.low, serial.high] == pytest.approx([0.1] * 3)
    assert not serial.is_known, "one repeat tells nothing of the noise"
    assert not fit.describes


@settings(max_examples=40)
@given(st.lists(st.floats(1e-3, 1e3), min_size=8, max_size=8), st.sampled_from(["strong", "weak"]))
def test_whatever_was_measured_a_fit_is_finite_and_within_its_bounds(times_ms: list[float], kind: Kind) -> None:
    cells, measures = _sweep(kind, AMDAHL, (0.1,), repeats=2)
    measured = [m.model_copy(update={"step_ms": ms}) for m, ms in zip(measures, times_ms, strict=True)]
    found = fits(Measured(kind, cells, measured, 8))
    assert len(found) == len(LAWS[kind])
    for fit in found:
        assert Fit.model_validate_json(fit.model_dump_json()) == fit
        for name, parameter in fit.parameters.items():
            assert 0 <= parameter.low <= parameter.value <= parameter.high
            if name == "serial":
                assert parameter.high <= 1
