"""Reports of validations and simulations: the numbers of the records, judged by the aims, whatever the records hold."""

import csv
import io
import json
import math
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predicted import (
    made_up_simulation,
    made_up_trainings,
    made_up_validation,
    made_up_validations,
    stored_ledger,
    stored_simulation,
    stored_validation,
)
from reading import EVIL, Reader, drawn

from manyhands.errors import UserError
from manyhands.record.simulation import SimulationDir, SimulationRecord, Validation, ValidationRecord
from manyhands.report import files as report
from manyhands.report.drawing import Figure, counts_axis, decades_axis
from manyhands.report.files import page_of
from manyhands.report.html import Page, render
from manyhands.report.plotly_drawing import as_plotly
from manyhands.report.scatter import errors, scatter
from manyhands.report.scores import score
from manyhands.report.simulation_figures import scaling_figures, split_figure
from manyhands.report.simulations import simulation_page
from manyhands.report.tables.simulations import speed_table, time_table
from manyhands.report.tables.validations import combinations_table, parts_of, parts_table
from manyhands.report.trained import levels, time_to, trained_figures
from manyhands.report.validations import headline, ledger_record, validations_page

HERE = Path("validations")


def _figures(page: Page) -> list[Figure]:
    return page.figures


def _simulated(record: SimulationRecord) -> Page:
    return simulation_page(SimulationDir(Path("simulations/it")), record)


def _validated(rows: list[Validation]) -> Page:
    return validations_page(HERE, ledger_record(rows))


TRAINED: dict[str, Any] = {"trained": made_up_trainings(target=0.97), "target_accuracy": 0.97}


def test_plotly_accepts_every_view() -> None:
    pages = [_validated(made_up_validations()), _simulated(made_up_simulation(**TRAINED))]
    for figure in (figure for page in pages for figure in _figures(page)):
        for number in range(len(figure.views)):
            shown = drawn(figure, number)
            assert "@" not in json.dumps(shown), "all colours are known"
            go.Figure(shown)  # refuses names and values that plotly does not know


@given(
    st.lists(st.tuples(st.floats(-60, 60), st.floats(0, 10), st.integers(1, 8)), min_size=1, max_size=40),
)
@settings(deadline=None, max_examples=40)
def test_a_score_is_that_of_the_rows_with_a_core_for_each_rank(cases: list[tuple[float, float, int]]) -> None:
    rows = [made_up_validation(error_pct=error, noise_pct=noise, workers=n) for error, noise, n in cases]
    telling = [row for row in rows if row.workers <= 4]
    found = score(rows)
    if not telling:
        assert found is None
        return
    assert found
    assert found.error_pct == statistics.median(abs(row.error_pct) for row in telling)
    assert found.aim_pct == max(5, statistics.median(row.noise_pct for row in telling))
    assert (found.held, found.cases) == (sum(row.held for row in telling), len(telling))
    assert found.runs == sum(len(row.measured_ms) for row in telling)
    verdict = "too few" if found.held_pct < 85 else "too many" if found.held_pct > 95 else "right"
    assert found.holding == ("too few runs" if found.runs < 20 else verdict)


def _rows(held: int, missed: int, error: float = 2.0, **more: Any) -> list[Validation]:
    about: dict[str, Any] = {"error_pct": error, "noise_pct": 0.5, **more}  # no run is off as far as the prediction
    good = [made_up_validation(share=0.5, **about) for _ in range(held)]
    return [*good, *(made_up_validation(share=0.001, **about) for _ in range(missed))]


@pytest.mark.parametrize(
    ("rows", "near", "holds"),
    [
        (
            _rows(18, 2),
            "2.0 % in the median, within the aim of 5.0 %",
            "54 of 60 runs (90 %), within the aim of 85–95",
        ),
        (_rows(20, 0, 9.0), "9.0 % in the median, beyond the aim of 5.0 %", "wider than they need be"),
        (_rows(18, 2, 9.0, noise_pct=10), "within the aim of 10.0 %", "within the aim"),
        (_rows(10, 10), "within", "30 of 60 runs (50 %), less than the 85–95 % aimed at"),
        (_rows(5, 0), "within", "held 15 of 15 runs, too few to judge that by"),
        (_rows(1, 0), "The predicted step time is off by 2.0 %, within", "held 3 of 3 runs, too few"),
    ],
)
def test_the_headline_says_how_near_and_how_often(rows: list[Validation], near: str, holds: str) -> None:
    said = headline(ledger_record(rows))
    assert near in said
    assert holds in said


def test_rows_that_share_cores_are_shown_but_not_counted() -> None:
    rows = [*_rows(3, 0, 1.0), made_up_validation(workers=8, error_pct=80.0)]
    grid = parts_table(rows, parts_of(rows).values())
    assert grid.rows == [["all", "3", "1.0 %", "±0.5 %", "≤ 5.0 %", "yes", "9 of 9", "100 %", "–"]]
    assert grid.marks == ["whole"]
    page = _validated(rows)
    [every] = next(section.tables for section in page.sections if section.id == "numbers")
    assert every.marks == ["", "", "", "shared"]
    assert {tile.label: tile.value for tile in page.tiles}["Not counted"] == "1"
    traces = [trace for trace in drawn(scatter(rows))["data"] if "error_y" in trace]
    hollow = [trace for trace in traces if "more ranks than cores" in trace["meta"]["groups"]]
    assert [trace["y"] for trace in hollow] == [[rows[-1].predicted_ms.value]]
    assert "8†" in every.rows[-1]
    crowded = headline(ledger_record([made_up_validation(workers=8)]))
    assert "all runs had more ranks than cores" in crowded


def test_every_point_is_drawn_once_where_it_belongs_and_ringed_where_it_missed() -> None:
    rows = made_up_validations()
    for number in range(2):
        traces = [t for t in drawn(scatter(rows), number)["data"] if t["mode"] == "markers"]
        points = [(x, y) for t in traces if "error_y" in t for x, y in zip(t["x"], t["y"], strict=True)]
        rings = [(x, y) for t in traces if "error_y" not in t for x, y in zip(t["x"], t["y"], strict=True)]
        assert sorted(points) == sorted((row.median_ms, row.predicted_ms.value) for row in rows)
        assert sorted(rings) == sorted((row.median_ms, row.predicted_ms.value) for row in rows if not row.holds_median)
    figure = errors(rows)
    assert [view.label for view in figure.views] == ["workers", "strategy", "task", "engine"]
    for number in range(len(figure.views)):
        shown = [y for t in drawn(figure, number)["data"] if "error_y" in t for y in t["y"]]
        assert sorted(shown) == sorted(row.error_pct for row in rows)
    holds = {row.error_pct: row.holds_median for row in rows}
    for trace in drawn(figure)["data"]:
        for error, below, above, told in (
            zip(
                *(trace.get("y", []), trace["error_y"]["arrayminus"], trace["error_y"]["array"], trace["customdata"]),
                strict=True,
            )
            if "error_y" in trace
            else ()
        ):
            assert (error - below <= 0 <= error + above) == holds[error]
            assert "of 3 runs within the interval" in told


def test_scores_by_combination_have_hosts_where_some_runs_had_several() -> None:
    rows = [*_rows(2, 0), *(row.model_copy(update={"hosts": 4}) for row in _rows(1, 1, 9.0))]
    grid = combinations_table(rows, parts_of(rows))
    assert grid.headings[:4] == ["task", "engine", "hosts", "sync"]
    assert [row[2] for row in grid.rows] == ["1 host", "4 hosts"]
    assert grid.marks == ["", "failed"], "beyond the aim"
    assert "hosts" in [view.label for view in errors(rows).views]
    assert "hosts" not in combinations_table(_rows(2, 0), parts_of(_rows(2, 0))).headings
    page = _validated(rows)
    assert "on 4 hosts" in str(next(section.passages for section in page.sections if section.id == "off"))


def test_csv_has_a_line_for_each_prediction_in_full_precision() -> None:
    rows = made_up_validations(tasks=("mlp",))
    lines = list(csv.DictReader(io.StringIO(_validated(rows).csv)))
    assert [float(line["predicted_ms_low"]) for line in lines] == [row.predicted_ms.low for row in rows]
    assert [[float(ms) for ms in line["measured_ms"].split()] for line in lines] == [row.measured_ms for row in rows]
    record = made_up_simulation()
    lines = list(csv.DictReader(io.StringIO(_simulated(record).csv)))
    assert [(line["sync"], int(line["nodes"])) for line in lines] == [(row.sync, row.nodes) for row in record.rows]
    assert [float(line["speed_up_high"]) for line in lines] == [row.speed_up.high for row in record.rows]
    assert [line["cost"] for line in lines] == [repr(row.cost.value) for row in record.rows if row.cost]


def test_one_validation_tells_what_failed_and_that_it_was_stopped(tmp_path: Path) -> None:
    rows = [*made_up_validations(tasks=("mlp",))[:3], made_up_validation().model_copy(update={"failed": ["lost\nit"]})]
    failed = {"mpi 8 allreduce": "killed\nby signal 9"}
    page = page_of(stored_validation(tmp_path / "one", rows, failed=failed, status="interrupted"))
    shown = "".join(Reader(render(page)).texts)
    for said in ("mpi 8 allreduce", "killed by signal 9", "lost it", "was stopped", "manyhands validate mlp"):
        assert said in shown
    nothing = page_of(stored_validation(tmp_path / "none", [], failed=failed))
    assert nothing.headline.startswith("No run went well")
    assert "killed by signal 9" in "".join(Reader(render(nothing)).texts)


def test_a_simulation_shows_values_and_bands() -> None:
    record = made_up_simulation()
    figures = {figure.id: figure for figure in scaling_figures(record)}
    assert set(figures) == {"speed-up", "efficiency", "time", "cost"}
    for name, field, factor in (("speed-up", "speed_up", 1), ("efficiency", "efficiency", 100), ("cost", "cost", 1)):
        for sync in dict.fromkeys(row.sync for row in record.rows):
            rows = [row for row in record.rows if row.sync == sync]
            values = [getattr(row, field) for row in rows]
            band, line = (trace for trace in drawn(figures[name])["data"] if trace["name"] == sync)
            assert line["y"] == [factor * value.value for value in values]
            assert line["x"] == [row.nodes for row in rows]
            assert band["y"] == [factor * v.high for v in values] + [factor * v.low for v in reversed(values)]
    split = split_figure(record)
    assert [view.label for view in split.views] == list(dict.fromkeys(row.sync for row in record.rows))
    for number in range(len(split.views)):
        data = drawn(split, number)["data"]
        stacks = [sum(parts) for parts in zip(*(trace["x"] for trace in data), strict=True)]
        assert stacks == pytest.approx([100] * 11, abs=0.01)
        assert [trace["name"] for trace in data] == ["compute", "update", "comm", "wait"]


def test_thousands_of_rows_are_thinned_on_the_page_but_not_in_the_csv() -> None:
    record = made_up_simulation(nodes=range(1, 2001), syncs=("allreduce",), currency="")
    page = _simulated(record)
    assert len(page.csv.splitlines()) == 2001
    numbers = next(section for section in page.sections if section.id == "numbers")
    assert len(numbers.tables[0].rows) == 120
    assert "1,880 rows are left out here; the CSV has them" in numbers.notes
    assert len(json.dumps([as_plotly(figure) for figure in _figures(page)])) < 150_000
    assert "cost" not in {figure.id for figure in _figures(page)}


def test_the_headline_of_a_simulation_names_what_is_fastest() -> None:
    said = _simulated(made_up_simulation()).headline
    assert said.startswith("cnn with local-sgd:period=8 on 1,024 nodes is predicted to be 908×")
    assert "The slowest strategy, parameter-server, reaches" in said
    behind = _simulated(made_up_simulation(nodes=(1,), syncs=("allreduce", "parameter-server"))).headline
    assert behind.endswith("With parameter-server, no number of nodes is faster than one worker.")
    slow = made_up_simulation(nodes=(1,), syncs=("parameter-server",))
    assert "No number of nodes makes cnn with parameter-server faster" in _simulated(slow).headline
    stopped = _simulated(made_up_simulation(nodes=(), status="interrupted"))
    assert "Nothing was predicted" in stopped.headline
    assert Reader(render(stopped)).count("h1") == 1


def test_all_times_of_a_training_have_its_failures_in_them() -> None:
    sound = made_up_simulation(**TRAINED)
    late = [row.model_copy(update={"time_s": row.time_s.scaled(1.5)}) for row in sound.trained]
    failing = sound.model_copy(update={"trained": late})
    for a, b in zip(sound.trained, late, strict=True):
        for level in levels(sound):
            before, after = time_to(a, level), time_to(b, level)
            assert (before is None) == (after is None)
            if before and after:
                assert asdict(after) == pytest.approx(asdict(before.scaled(1.5)))
    for figure in trained_figures(failing):
        ends = [trace["x"][-1] for trace in drawn(figure)["data"] if trace["x"]]
        assert ends == pytest.approx([row.time_s.value for row in late])


def test_a_simulation_asked_for_by_workers_speaks_of_workers() -> None:
    plain = made_up_simulation()
    rows = [row.model_copy(update={"by": "workers", "nodes": -(-row.workers // 8)}) for row in plain.rows]
    record = plain.model_copy(update={"rows": rows})
    page = _simulated(record)
    assert "on 1,024 workers is predicted" in page.headline
    assert "1 to 1,024 workers" in page.facts
    assert speed_table(record, rows).headings[1:3] == ["workers", "nodes"]
    for figure in scaling_figures(record):
        shown = drawn(figure)
        assert shown["layout"]["xaxis"]["title"]["text"] == "workers"
        assert max(shown["data"][-1]["x"]) == 1024


def test_what_was_trained_is_told_against_the_nodes_time() -> None:
    record = made_up_simulation(**TRAINED)
    for figure in trained_figures(record):
        by_time, by_epoch = (drawn(figure, number)["data"] for number in (0, 1))
        curves = [trace for trace in by_time if trace["x"]]
        assert [trace["x"] for trace in curves] == [[p.time_s for p in row.points] for row in record.trained]
        assert [trace["x"] for trace in by_epoch if trace["x"]] == [
            [p.epoch for p in row.points] for row in record.trained
        ]
    grid = time_table(record)
    for line, row in zip(grid.rows, record.trained, strict=True):
        for level in (0.95, 0.98):
            told = line[grid.headings.index(f"to {100 * level:g} %")]
            assert (told == "–") == (time_to(row, level) is None) == (max(p.accuracy for p in row.points) < level)
        assert (line[grid.headings.index("to 97 %")] == "not reached") == (row.target_s is None)
    assert levels(record) == sorted(levels(record))
    for row in record.trained:
        assert (time_to(row, 0.97) is None) == (row.target_s is None)
    reached = [row for row in record.trained if row.target_s]
    first = min(reached, key=lambda row: row.target_s.value if row.target_s else math.inf)
    assert f"97 % accuracy is first reached by {first.sync} on {first.nodes} node" in _simulated(record).headline
    never = made_up_simulation(trained=made_up_trainings(target=0.999), target_accuracy=0.999)
    assert "No training reaches 99.9 % accuracy; the best, allreduce on 1 node, ends at" in _simulated(never).headline
    asked_nothing = made_up_simulation(trained=made_up_trainings())
    assert "98 % accuracy is first reached by" in _simulated(asked_nothing).headline
    failed = made_up_simulation(failed={"gossip on 8": "diverged\nat step 3"})
    assert "diverged at step 3" in "".join(Reader(render(_simulated(failed))).texts)


def test_a_formula_is_marked() -> None:
    record = made_up_simulation()
    grid = speed_table(record, record.rows)
    nodes = [row[grid.headings.index("nodes")] for row in grid.rows]
    assert [text.endswith("*") for text in nodes] == [row.method == "closed form" for row in record.rows]
    assert "* by closed form" in _simulated(record).markdown.replace("\\", "")


def test_what_comes_from_a_record_is_escaped() -> None:
    rows = [row.model_copy(update={"task": f"{EVIL}.py:task", "sync": EVIL, "machine": EVIL}) for row in _rows(2, 1)]
    hostile = made_up_simulation(syncs=(EVIL,), task=f"{EVIL}.py:t", cluster=EVIL, currency=EVIL, machine=EVIL)
    for page in (_validated(rows), _simulated(hostile)):
        text = render(page)
        read = Reader(text)
        assert "<img" not in text
        assert read.count("script") == 5
        assert read.count("img") == 0
        figures = json.loads(read.scripts["figures"])["figures"]
        assert "<img" not in json.dumps([[[v["data"], v["layout"]] for v in f["views"]] for f in figures])


def test_the_noise_of_a_single_run_is_unknown() -> None:
    row = made_up_validation()
    alone = Validation.model_validate({**row.model_dump(), "measured_ms": [2.0]})
    assert alone.noise_pct is None
    both, one = score([row, alone]), score([alone])
    assert both is not None
    assert one is not None
    assert (both.noise_pct, one.noise_pct, one.aim_pct) == (row.noise_pct, None, 5.0)
    text = render(_validated([alone]))
    assert "±0.0" not in text
    assert "noise –" in text


def test_numbers_that_are_none_do_not_break_a_page() -> None:
    row = made_up_validation()
    bad = row.model_copy(update={"error_pct": float("nan"), "median_ms": float("inf")})
    assert json.loads(Reader(render(_validated([row, bad]))).scripts["figures"])
    record = made_up_simulation()
    endless = replace(record.rows[-1].epoch_s, value=float("inf"), high=float("inf"))
    rows = [*record.rows[:-1], record.rows[-1].model_copy(update={"epoch_s": endless})]
    assert json.loads(Reader(render(_simulated(record.model_copy(update={"rows": rows})))).scripts["figures"])


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8), st.sets(st.integers(1, 70_000), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_axes_hold_all_values_and_have_ticks(values: list[float], counts: set[int]) -> None:
    axis = decades_axis("", values)
    assert axis.span
    low, high = axis.span
    assert all(low < value < high for value in values)
    assert all(low <= tick <= high for tick in axis.ticks)
    assert 3 <= len(set(axis.tick_texts)) == len(axis.ticks) <= 14
    nodes = counts_axis("nodes", counts)
    assert set(nodes.ticks) <= counts
    assert 1 <= len(nodes.ticks) <= 7
    assert nodes.ticks[-1] == max(counts)


def test_files_are_written_beside_the_records(tmp_path: Path) -> None:
    ledger = stored_ledger(tmp_path / "validations", _rows(2, 1))
    simulation = stored_simulation(tmp_path / "it", made_up_simulation((1, 2), **TRAINED, cluster="a$b$c"))
    for source, pictures in (
        (ledger, "predicted errors"),
        (simulation, "speed-up efficiency step cost accuracy"),
    ):
        files = report.write(source)
        assert [file.name for file in files[:3]] == ["report.html", "report.md", "report.csv"]
        assert [file.name for file in files[3:]] == [f"{name}.png" for name in pictures.split()]
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[3:])
        assert {file.parent for file in files} == {tmp_path / ("validations" if source is ledger else "it")}


def test_an_empty_or_damaged_ledger_is_a_user_error(tmp_path: Path) -> None:
    ledger = stored_ledger(tmp_path, [])
    with pytest.raises(UserError, match="is empty: no validation was completed yet"):
        report.write(ledger)
    stored_ledger(tmp_path, _rows(2, 0))
    with ledger.open("a") as file:
        file.write('\n{"id": 3}\n')
    with pytest.raises(UserError, match="is damaged: line 4 is not a validation"):
        report.write(ledger)
    ledger.write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match="line 1 is not a validation"):
        report.write(ledger)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    ledger = stored_ledger(tmp_path, _rows(2, 0))
    with ledger.open("a") as file:
        file.write('{"id": "2025')
    assert len(page_of(ledger).csv.splitlines()) == 1 + 2


def test_nothing_is_claimed_of_nothing() -> None:
    page = validations_page(HERE, ValidationRecord(id="x", task="mlp", command="", rows=[], status="interrupted"))
    assert "before the validation was stopped" in page.headline
    assert _figures(page) == page.tiles == []
