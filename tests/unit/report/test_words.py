"""A sweep in words: each sentence with the numbers of the record, the same for terminal and page."""

import pytest
from made_up import made_up_sweep

from manyhands.record.sweep import Fit, Interval, Remedy, Row, SweepRecord
from manyhands.report.words import (
    best_row,
    explanation,
    fit_sentence,
    fit_sentences,
    headline,
    passages,
    remedy_sentence,
)


def _interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


def _fit(law: str, best: Interval | None = None, **parameters: Interval) -> Fit:
    return Fit(
        law=law,  # type: ignore[arg-type]
        series="mpi",
        batch_size=64,
        image_size=0,
        parameters=parameters,
        best_workers=best,
        error_pct=1.0,
    )


def test_amdahl_in_words() -> None:
    said = fit_sentence(_fit("amdahl", serial=_interval(0.041, 0.032, 0.05)))
    assert said == "Amdahl: 4.1 % of the work is serial (95 %: 3.2–5.0), so no number of workers exceeds 24×"


def test_a_law_without_serial_part_sets_no_limit() -> None:
    said = fit_sentence(_fit("amdahl", serial=_interval(0.0, 0.0, 0.004)))
    assert "no serial part" in said
    assert "0.0–0.4" in said
    assert "exceeds" not in said


def test_gustafson_in_words() -> None:
    said = fit_sentence(_fit("gustafson", serial=_interval(0.03, 0.02, 0.05)), "mpi")
    assert said.startswith("Gustafson (mpi): 3.0 % of the work is serial (95 %: 2.0–5.0)")
    assert said.endswith("each further worker adds the work of 0.97 (0.95–0.98)")


def test_usl_in_words() -> None:
    parameters = {"contention": _interval(0.03, 0.02, 0.04), "coherency": _interval(0.008, 0.005, 0.01)}
    said = fit_sentence(_fit("usl", best=_interval(11, 9, 14), **parameters))
    assert said.startswith("USL: adding workers stops helping at 11 (95 %: 9–14")
    assert "contention 3.0 %" in said
    assert "stops helping at" not in fit_sentence(_fit("usl", **parameters))


def test_a_best_number_without_an_upper_bound_is_said_to_have_none() -> None:
    parameters = {"contention": _interval(0.03, 0.02, 0.04), "coherency": _interval(0.008, 0.005, 0.01)}
    assert "at 11 (95 %: 5 or more; contention" in fit_sentence(_fit("usl", best=_interval(11, 5, 1024), **parameters))
    assert "at 11 (contention" in fit_sentence(_fit("usl", best=_interval(11, 11, 11), **parameters))


def test_a_law_that_cannot_describe_the_runs_is_not_stated_as_a_fact() -> None:
    slow = _fit("amdahl", serial=_interval(1.0, 1.0, 1.0)).model_copy(update={"error_pct": 35.2})
    assert fit_sentence(slow) == "Amdahl: does not fit: error 35 %, since the workers are slower than one"
    wild = _fit("gustafson", serial=_interval(0.3, 0.2, 0.4)).model_copy(update={"error_pct": 48.0})
    assert fit_sentence(wild) == "Gustafson: does not fit: error 48 %"
    vague = _fit("amdahl", serial=_interval(0.3, 0.02, 0.8))
    assert fit_sentence(vague) == "Amdahl: does not fit: serial may be 2–80 %"
    assert fit_sentences([slow, wild], "mpi") == [
        "no law fits (mpi): Amdahl error 35 %, since the workers are slower than one, Gustafson error 48 %"
    ]
    assert "95 %" not in fit_sentence(_fit("amdahl", serial=_interval(0.0, 0.0, 0.0)))


def test_remedies_name_their_options_once() -> None:
    remedy = Remedy(cause="comm", sentence="Overlap: 8 % more.", gain_pct=8, command="--sync overlap")
    assert remedy_sentence(remedy) == "Overlap: 8 % more; try --sync overlap"
    named = remedy.model_copy(update={"sentence": "With --sync overlap, 8 % more."})
    assert remedy_sentence(named) == "With --sync overlap, 8 % more"


def test_the_largest_number_of_workers_is_explained_in_full_and_others_in_short() -> None:
    record = made_up_sweep(workers=(1, 2, 4, 8))
    findings = {finding.row: finding for finding in record.findings}
    lines = explanation(record)
    for row in record.rows[1:]:
        finding = findings[row.cell.key]
        assert finding.headline in lines
        # What is too small or not attributed may be the same of two rows.
        told = [f"  {sentence}" in lines for sentence in finding.sentences if " of a step of " in sentence]
        assert all(told) if row.cell.size == 8 else not any(told)
    full = [findings[row.cell.key] for row in record.rows if row.cell.size == 8]
    assert [line for line in lines if line.startswith("  → ")] == [
        f"  → {remedy_sentence(remedy)}" for finding in full for remedy in finding.remedies
    ]
    assert sum("Amdahl" in line for line in lines) == len({row.cell.series for row in record.rows[1:]})


def test_ranks_with_cores_of_their_own_are_explained_in_full_before_those_that_share() -> None:
    record = made_up_sweep(engines=("mpi",), cores=4)
    [passage] = passages(record)
    assert passage.headline.startswith("mpi ×4")
    [shared] = [line for line in passage.others if line.startswith("mpi ×8")]
    assert shared


def test_failed_cells_leave_the_explanation_to_those_that_went_well() -> None:
    record = made_up_sweep(engines=("mpi",), failing={"mpi 8": "killed"})
    assert passages(record)[0].headline.startswith("mpi ×4")


def test_nothing_measured_is_nothing_to_explain() -> None:
    assert explanation(made_up_sweep(failing={"": "killed"})) == []
    assert explanation(made_up_sweep(workers=(1,))) == []


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_the_headline_is_the_best_row(kind: str) -> None:
    record = made_up_sweep(kind)  # type: ignore[arg-type]
    best = max(record.rows, key=lambda row: row.speed_up.value if row.speed_up else 0)
    assert best_row(record) is best
    assert best.speed_up
    assert best.efficiency
    said = headline(record)
    assert f"{best.cell.engine} ×{best.cell.size}" in said
    assert f"{best.speed_up.value:.2f}× " in said
    assert f"{best.speed_up.low:.2f}–{best.speed_up.high:.2f}" in said
    assert f"{100 * best.efficiency.value:.0f} %" in said


def test_the_headline_of_one_run_claims_no_interval_and_names_the_batch_among_several() -> None:
    said = headline(made_up_sweep(repeats=1, batch_sizes=(64, 512), workers=(1, 2), engines=("mpi",)))
    assert "95 %" not in said
    assert ", batch 512" in said


def test_the_headline_prefers_ranks_with_cores_of_their_own() -> None:
    record = made_up_sweep(engines=("mpi",), cores=2, sharing=0.0)
    best = best_row(record)
    assert best
    assert best.cell.size == 2
    alone = made_up_sweep(engines=("mpi",), workers=(1, 4), cores=2)
    assert "share cores" in headline(alone)


def _slowed(record: SweepRecord, speed_up: Interval) -> SweepRecord:
    changed = {"speed_up": speed_up, "efficiency": Interval(value=0.5, low=0.4, high=0.6)}
    rows: list[Row] = [record.rows[0], *(row.model_copy(update=changed) for row in record.rows[1:])]
    return record.model_copy(update={"rows": rows})


def test_the_headline_claims_no_more_than_was_measured() -> None:
    record = made_up_sweep(engines=("mpi",), workers=(1, 2))
    assert "No run of mlp was faster" in headline(_slowed(record, _interval(0.8, 0.7, 0.9)))
    assert "not measurably faster" in headline(_slowed(record, _interval(1.02, 0.97, 1.07)))
    assert "nothing to compare it with" in headline(made_up_sweep(workers=(1,)))
    assert headline(made_up_sweep(failing={"": "killed"})) == "No run of mlp went well."


def test_the_headline_does_not_deny_a_faster_run_whose_ranks_shared_cores() -> None:
    record = made_up_sweep(engines=("mpi",), workers=(1, 2, 4), cores=2)
    slow, fast = ({"speed_up": _interval(value, value, value)} for value in (0.8, 1.5))
    rows = [record.rows[0]]
    rows += [row.model_copy(update=fast if row.oversubscribed else slow) for row in record.rows[1:]]
    said = headline(record.model_copy(update={"rows": rows}))
    assert said.startswith("No run of mlp with a core for each rank was faster than one worker; the nearest, mpi ×2,")


def test_a_task_is_named_without_its_folders() -> None:
    record = made_up_sweep().model_copy(update={"task": "/home/me/deep/net.py:task"})
    assert headline(record).startswith("net.py:task with")
