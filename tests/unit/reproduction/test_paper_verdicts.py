"""Papers held against made-up runs: who is judged, who never is, and why."""

import pytest
from faked_papers import taken

from manyhands.record.papers import PaperFigure, ReproducedPaper, ReproducedRow, Taken
from manyhands.reproduction.base import HostFacts, Paper, Setting
from manyhands.reproduction.compare import compare
from manyhands.reproduction.papers import ALL, PAPERS, papers_of
from manyhands.reproduction.readings import LEFT_OUT, NOT_YET, Readings
from manyhands.reproduction.run import plan

SPEEDS = ("speed-up", "improvement")


def measured(paper: Paper, cores: int, *, quick: bool = False, repeats: int = 1, **how: float) -> ReproducedPaper:
    """Hold a paper against runs of workers that are so efficient."""
    runs = [taken(setting, r, **how) for setting in plan([paper], quick=quick) for r in range(repeats)]
    return compare(paper, Readings(runs, quick=quick), cores)


def rows_of(result: ReproducedPaper, table: str) -> dict[str, ReproducedRow]:
    return {" ".join(r.labels): r for t in result.tables if t.name == table for r in t.rows}


def column(row: ReproducedRow, name: str) -> PaperFigure:
    return next(f for f in row.figures if f.column == name)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("number", PAPERS)
def test_a_crowded_row_is_never_reproduced_or_better_in_speed(number: str, cores: int, quick: bool) -> None:
    for efficiency in (0.2, 5.0):
        result = measured(PAPERS[number](HostFacts(cores)), cores, quick=quick, efficiency=efficiency)
        rows = [row for table in result.tables for row in table.rows if row.oversubscribed]
        assert cores >= 4 or rows
        for row in rows:
            assert row.workers > cores
            for f in row.figures:
                if f.kind in SPEEDS and f.ours:
                    assert f.verdict == "oversubscribed", (row.labels, f)
                assert f.faster is None


def test_a_crowded_row_is_still_judged_by_its_accuracy() -> None:
    row = rows_of(measured(PAPERS["003"](HostFacts(2)), 2, accuracy=0.9720), "table 2")["1 × 8"]
    assert row.verdict == column(row, "speed-up").verdict == "oversubscribed"
    assert column(row, "accuracy %").verdict == "reproduced"
    assert "8 workers on 2 cores say nothing about speed-up" in row.why
    assert "accuracy % reproduced" in row.why
    worse = rows_of(measured(PAPERS["003"](HostFacts(2)), 2, accuracy=0.9), "table 2")["1 × 8"]
    assert worse.verdict == column(worse, "accuracy %").verdict == "not"
    assert column(worse, "speed-up").verdict == "oversubscribed"


def test_enough_cores_are_judged_by_their_speed() -> None:
    rows = rows_of(measured(PAPERS["001"](HostFacts(8)), 8, efficiency=0.75), "table 4")
    assert {name: row.verdict for name, row in rows.items()} == {
        "Serial 1 core": "baseline",
        "OpenMP 2 threads": "shown",
        "MPI 2 processes": "shown",
        "OpenMP 4 threads": "reproduced",  # 3.0 of 2.5–3.5
        "OpenMP 8 threads": "better",  # 6.0 of 3.5–5.0
        "MPI 4 processes": "reproduced",  # 3.0 of 2.0–3.0
        "MPI 8 processes": "better",
        "Hybrid 2×2 (4 total)": "reproduced",
        "Hybrid 2×4 (8 total)": "better",
    }


def test_a_slow_row_says_where_its_time_went() -> None:
    rows = rows_of(measured(PAPERS["002"](HostFacts(8)), 8, efficiency=0.3), "table 1")
    assert rows["8"].verdict == "not"
    assert "2.40 against 3.97" in rows["8"].why
    assert "% of a step went to communication" in rows["8"].why


def test_a_speed_up_beyond_the_cores_is_not_reproduced_for_lack_of_them() -> None:
    rows = rows_of(measured(PAPERS["000"](HostFacts(2)), 2, efficiency=1.0), "figure 5")
    assert rows["784 MPI + OpenMP"].verdict == "not"
    assert "which 2 workers on 2 cores cannot reach" in rows["784 MPI + OpenMP"].why


def test_times_are_shown_with_their_ratio_and_never_judged() -> None:
    figure = column(rows_of(measured(PAPERS["002"](HostFacts(8)), 8), "table 1")["1"], "time s")
    assert figure.verdict == "shown"
    assert figure.ours
    assert figure.faster == pytest.approx(43.67 / figure.ours.value)


def test_repeats_give_an_interval_of_speed_ups_pair_by_pair() -> None:
    paper = PAPERS["001"](HostFacts(8))
    slow_spell = [
        one.model_copy(update={"values": {**one.values, "epoch_s": one.values["epoch_s"] * (1 + one.repeat)}})
        for one in (taken(s, r, efficiency=0.75) for s in plan([paper], quick=False) for r in range(3))
    ]
    row = rows_of(compare(paper, Readings(slow_spell, quick=False), 8), "table 4")["OpenMP 4 threads"]
    ours = column(row, "speed-up").ours
    assert ours
    assert (ours.low, ours.value, ours.high) == pytest.approx((3.0, 3.0, 3.0))


def test_quick_never_judges_what_it_cut() -> None:
    for paper in papers_of(ALL, HostFacts(16, 1)):
        result = measured(paper, 16, quick=True)
        for table, made in zip(paper.tables, result.tables, strict=False):
            for row, found in zip(table.rows, made.rows, strict=True):
                for col, f in zip(table.columns, found.figures, strict=True):
                    setting = row.whole if col.whole else row.timed
                    if setting is None:
                        assert f.verdict == "shown"
                    elif setting.shortened() is None:
                        assert (f.verdict, f.why) == ("not judged", LEFT_OUT)
                    elif f.verdict != "baseline" and (setting.smaller or (setting.shorter and f.kind not in SPEEDS)):
                        assert f.verdict == "not judged"
                        assert "--quick" in f.why


def test_quick_leaves_the_accuracy_of_a_whole_training_unjudged() -> None:
    row = rows_of(measured(PAPERS["003"](HostFacts(2)), 2, quick=True, efficiency=0.865), "table 2")["1 × 2"]
    assert row.verdict == "reproduced"
    assert column(row, "accuracy %").ours is None
    assert f"accuracy % not judged: {LEFT_OUT}" in row.why


def test_accuracies_on_other_tweets_are_shown_but_not_judged() -> None:
    row = rows_of(measured(PAPERS["004"](HostFacts(8)), 8), "table 2")["1"]
    assert column(row, "accuracy %").verdict == "not judged"
    assert "generated" in column(row, "accuracy %").why


def failing(paper: Paper, fails: str) -> ReproducedPaper:
    runs = [
        Taken(setting=s.key, repeat=0, failed="rank 1 died") if fails in s.key else taken(s)
        for s in plan([paper], quick=False)
    ]
    return compare(paper, Readings(runs, quick=False), 8)


def test_a_run_that_failed_is_a_marked_row_and_the_others_are_judged() -> None:
    rows = rows_of(failing(PAPERS["002"](HostFacts(8)), "workers=4"), "table 1")
    assert rows["4"].verdict == "failed"
    assert "rank 1 died" in rows["4"].why
    assert rows["2"].verdict in ("reproduced", "better")


def test_without_its_baseline_a_row_has_times_but_no_speed_up() -> None:
    paper = PAPERS["001"](HostFacts(8))
    serial = paper.tables[1].rows[0].timed
    assert serial
    runs = [taken(s) for s in plan([paper], quick=False) if s.key != serial.key]
    row = rows_of(compare(paper, Readings(runs, quick=False), 8), "table 4")["MPI 4 processes"]
    assert column(row, "epoch s").ours
    assert (column(row, "speed-up").ours, column(row, "speed-up").why) == (None, NOT_YET)


def claims_of(number: str, cores: int, **how: float) -> dict[str, ReproducedRow]:
    return rows_of(measured(PAPERS[number](HostFacts(cores)), cores, **how), "what the text says")


def test_what_all_versions_share_bears_out_that_they_are_the_same() -> None:
    row = next(row for name, row in claims_of("001", 2).items() if "all parallel versions" in name)
    assert row.verdict == "reproduced"


def test_weak_scaling_is_near_constant_time_or_not() -> None:
    claims = claims_of("001", 2)
    row = next(row for name, row in claims.items() if "near-constant" in name)
    assert row.verdict == "reproduced"  # the made-up runs take half a step on two workers, whatever their batch


def test_ompcluster_is_held_against_mpi_at_every_image_size() -> None:
    rows = [row for name, row in claims_of("000", 2).items() if "OmpCluster scales worse" in name]
    assert [row.verdict for row in rows] == ["better"] * 3  # the made-up runs scale alike
    assert all("speed-up 1.80 by Ray, 1.80 by MPI" in row.why for row in rows)
    assert not PAPERS["000"](HostFacts(2, ray=False)).claims


def test_a_version_that_learns_something_else_does_not() -> None:
    paper = PAPERS["001"](HostFacts(2))
    odd = next(s for s in plan([paper], quick=False) if "engine=hybrid" in s.key)
    runs = [taken(s, accuracy=0.9 if s.key == odd.key else 0.98) for s in plan([paper], quick=False)]
    rows = rows_of(compare(paper, Readings(runs, quick=False), 2), "what the text says")
    row = next(row for name, row in rows.items() if "all parallel versions" in name)
    assert row.verdict == "not"
    assert "8.00 points" in row.why


def test_a_harm_that_ours_does_not_suffer_is_better() -> None:
    (row,) = claims_of("003", 8).values()
    assert row.verdict == "better"


def test_a_claim_about_time_is_not_borne_out_by_a_crowd() -> None:
    speed = next(name for name in claims_of("004", 2) if "of the time" in name)
    assert claims_of("004", 2)[speed].verdict == "oversubscribed"
    assert claims_of("004", 8)[speed].verdict == "reproduced"
    assert claims_of("004", 8, efficiency=0.2)[speed].verdict == "not"


def test_claims_of_what_quick_left_out_are_not_judged() -> None:
    result = measured(PAPERS["004"](HostFacts(8)), 8, quick=True)
    assert {row.verdict for row in rows_of(result, "what the text says").values()} == {"not judged"}


def test_settings_are_told_apart_by_all_that_decides_them() -> None:
    one = Setting(task="mlp", options={"workers": 2, "steps": 5}, work_s=1)
    same = Setting(task="mlp", options={"steps": 5, "workers": 2}, work_s=2)
    other = Setting(task="mlp", options={"workers": 2, "steps": 6}, work_s=1)
    assert one.key == same.key != other.key
