"""Tables say what the record says: rounded for people, in full precision for spreadsheets."""

import csv
import io
import math
import re
from dataclasses import dataclass

import pytest
from made_up import made_up_sweep
from rich.console import Console

from manyhands.cli.tables import print_table
from manyhands.record.labels import cell_name
from manyhands.record.run import Others
from manyhands.record.simulation import Estimate
from manyhands.record.sweep import Cell, Interval, Row, SweepRecord
from manyhands.record.texts import milliseconds
from manyhands.report.html import Page, Section, render
from manyhands.report.tables.sweeps import (
    ON_PAGE,
    ON_TERMINAL,
    fits_table,
    notes,
    numbers_table,
    scaling_table,
    scaling_tables,
)
from manyhands.report.tables.table import Column, Table, as_csv, as_markdown, estimated, numbers, tabulate
from manyhands.report.words import circumstances

UNITS = {"µs": 1e-3, "ms": 1.0, "s": 1e3, "%": 1.0, "×": 1.0, "": 1.0}


def _column(grid: Table, heading: str) -> list[str]:
    return [row[grid.headings.index(heading)] for row in grid.rows]


def _numbers(text: str) -> list[tuple[float, float]]:
    """Return the value and the bounds of a text, each with how far it may be off by rounding."""
    unit = re.search(r"[\d)] ?([µm]?s|%|×)", text)
    factor = UNITS[unit[1] if unit else ""]
    found = re.findall(r"\d[\d,]*(?:\.\d+)?", text)
    digits = [number.replace(",", "") for number in found]
    return [(float(d) * factor, 0.5000001 * factor * 10 ** -len(d.partition(".")[2])) for d in digits]


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_the_numbers_are_those_of_the_record(kind: str) -> None:
    record = made_up_sweep(kind, cores=4)  # type: ignore[arg-type]
    grid = scaling_table(record)
    for heading, field, factor in (
        ("time per batch", "step_ms", 1.0),
        ("speed-up" if kind == "strong" else "scaled speed-up", "speed_up", 1.0),
        ("efficiency", "efficiency", 100.0),
        ("Karp–Flatt", "karp_flatt", 100.0),
    ):
        if heading == "Karp–Flatt" and kind == "weak":
            assert heading not in grid.headings, "the work grows with the workers"
            continue
        for text, row in zip(_column(grid, heading), record.rows, strict=True):
            interval = getattr(row, field)
            if interval is None:
                assert text == "–"
                continue
            told = [interval.value] if interval.low == interval.high else [interval.value, interval.low, interval.high]
            for (number, off), expected in zip(_numbers(text), told, strict=True):
                assert number == pytest.approx(factor * expected, abs=off), (heading, text)
    for heading, values in (
        ("samples/s", [row.samples_per_s.value for row in record.rows if row.samples_per_s]),
        ("per epoch", [1e3 * (row.epoch_s or 0) for row in record.rows]),
        ("total", [1e3 * row.total_s for row in record.rows]),
        ("read", [1e3 * row.read_s for row in record.rows]),
        ("PI", [row.improvement_pct or 0 for row in record.rows]),
        ("train loss", [row.train_loss for row in record.rows]),
        ("test loss", [row.test_loss for row in record.rows]),
        ("accuracy", [100 * row.test_accuracy for row in record.rows]),
        ("messages/step", [row.messages_per_step for row in record.rows]),
    ):
        for text, expected in zip(_column(grid, heading), values, strict=True):
            [(number, off)] = _numbers(text)
            assert number == pytest.approx(expected, abs=off), (heading, text)


def test_a_weak_sweep_has_no_karp_flatt_even_where_an_earlier_version_stored_one() -> None:
    record = made_up_sweep("weak")
    for row in record.rows:
        row.karp_flatt = Interval(value=0.1, low=0.05, high=0.2)
    for grid in (*scaling_tables(record, ON_PAGE), numbers_table(record)):
        assert not {"Karp–Flatt", "karp_flatt"} & set(grid.headings)
    assert "Gustafson" in _column(fits_table(record), "law")
    assert "scaled speed-up" in scaling_table(record).headings


def test_a_spreadsheet_tells_what_few_repeats_cover() -> None:
    for repeats, covers in ((3, "75.0"), (5, "93.75"), (6, "96.875")):
        grid = numbers_table(made_up_sweep(repeats=repeats))
        assert set(_column(grid, "step_ms_coverage_pct")) == set(_column(grid, "speed_up_coverage_pct")) == {covers}
        assert ("" in _column(grid, "speed_up_low")) == (repeats < 5)


def test_the_split_is_all_of_a_step() -> None:
    grid = scaling_table(made_up_sweep())
    for parts in zip(*(_column(grid, part) for part in ("compute", "serial", "comm", "wait")), strict=True):
        assert sum(_numbers(text)[0][0] for text in parts) == pytest.approx(100, abs=0.21)


def test_columns_that_tell_nothing_are_left_out() -> None:
    headings = scaling_table(made_up_sweep()).headings
    assert "batch" not in headings
    assert "image" not in headings
    headings = scaling_table(
        made_up_sweep(batch_sizes=(64, 512), image_sizes=(28, 56)), ON_TERMINAL["how fast"]
    ).headings
    assert headings[:3] == ["run", "batch", "image"]
    record = made_up_sweep()
    without = [row.model_copy(update={"energy_j": None}) for row in record.rows]
    assert "energy" not in scaling_table(record.model_copy(update={"rows": without})).headings
    told = [*without[:-1], without[-1].model_copy(update={"energy_j": 12.5})]
    assert _column(scaling_table(record.model_copy(update={"rows": told})), "energy")[-2:] == ["–", "12.5 J"]


@pytest.mark.parametrize("columns", ON_TERMINAL.values(), ids=ON_TERMINAL)
def test_narrow_tables_fit_a_terminal(columns) -> None:  # type: ignore[no-untyped-def]
    grid = scaling_table(made_up_sweep("weak", workers=(1, 2, 4, 16)), columns)
    widths = [max(map(len, texts)) for texts in zip(grid.headings, *grid.rows, strict=True)]
    assert sum(widths) + len(widths) <= 80, dict(zip(grid.headings, widths, strict=True))


def _with_failures() -> SweepRecord:
    """Return a sweep in which all runs of one cell failed, one run of another, and some ranks shared cores."""
    return made_up_sweep(
        failing={"mpi 8": "killed\n| by signal 9", "threads 2 allreduce batch 64 repeat 0": "lost"}, cores=4
    )


def test_failed_and_oversubscribed_rows_are_marked_and_explained() -> None:
    record = _with_failures()
    grid = scaling_table(record)
    named = dict(zip((cell_name(row.cell) for row in record.rows), grid.rows, strict=True))
    assert named["mpi ×8"][0].startswith("mpi ×8 ✗")
    asked = {"run", "workers", "batch", "image", "data", "repeats"}
    measured = [i for i, heading in enumerate(grid.headings) if heading not in asked]
    assert len(measured) == len(grid.headings) - 3, "the cells differ in their workers alone"
    assert {named["mpi ×8"][i] for i in measured} == {"–"}, "a failed run's figures mean nothing"
    assert named["threads ×2"][0] == "threads ×2 ‡"
    assert named["threads ×2"][measured[1]] != "–", "the runs that went well count"
    assert named["threads ×8"][0] == "threads ×8 †"
    assert named["mpi ×4"][0] == "mpi ×4"
    said = "\n".join(notes(record))
    assert "✗ mpi ×8: 5 of 5 runs failed: killed | by signal 9" in said
    assert "‡ threads ×2: 1 of 5 runs failed: lost" in said
    assert "† more ranks than the 4 cores" in said
    assert notes(made_up_sweep()) == []
    assert "stopped" in notes(made_up_sweep(status="interrupted"))[0]


def test_failed_probes_are_told_though_they_have_no_row() -> None:
    failing = {"probe serial 1 allreduce batch 32": "out of memory", "batch 16 repeat 0": "lost"}
    (first, second) = notes(made_up_sweep(workers=(1, 2, 4), failing=failing))
    assert first == "✗ one worker with batch 32, to compare with: 5 of 5 runs failed: out of memory"
    assert second == "‡ one worker with batch 16, to compare with: 1 of 5 runs failed: lost"


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_notes_name_rows_apart(kind: str) -> None:
    said = notes(made_up_sweep(kind, (1, 2), ("mpi",), batch_sizes=(64, 512), failing={"mpi": "lost"}))  # type: ignore[arg-type]
    batches = (64, 512) if kind == "strong" else (128, 1024)
    assert said == [f"✗ mpi ×2, batch {batch}: 5 of 5 runs failed: lost" for batch in batches]


def test_notes_tell_what_a_budget_left_out_and_who_else_used_the_cores() -> None:
    record = made_up_sweep(workers=(1, 2), engines=("mpi",)).model_copy(update={"notes": ["--budget 1m had no time"]})
    for i, run in enumerate(record.measures):
        run.others = Others(host="here", cores=0.1 * i, of=2.0, wanted=2)
    disturbed = len(record.measures) - 2
    assert notes(record) == [
        "--budget 1m had no time",
        f"{disturbed} of 15 runs were disturbed, at worst while other programs used 1.4 of 2 cores: such times "
        "are too long, and speed-ups mean little",
    ]


@pytest.mark.parametrize("repeats", [2, 4, 5])
def test_of_too_few_runs_no_interval_is_shown(repeats: int) -> None:
    record = made_up_sweep(workers=(1, 2), engines=("mpi",), repeats=repeats)
    speed_ups = _column(scaling_table(record), "speed-up")
    assert ("–" in speed_ups[1]) is (repeats == 5), speed_ups
    numbers = numbers_table(record)
    assert [bool(text) for text in _column(numbers, "speed_up_low")] == [repeats == 5] * 2
    assert all(_column(numbers, "speed_up"))


def test_a_sweep_that_was_stopped_in_its_pilot_says_so() -> None:
    record = made_up_sweep(status="interrupted").model_copy(update={"repeats": 0, "steps": 0})
    assert notes(record) == ["the sweep was stopped in its pilot round"]
    assert "pilot round" in circumstances(record)
    assert "0 " not in circumstances(record).partition("·")[2].partition("·")[0]


def test_counts_are_never_in_scientific_notation() -> None:
    record = made_up_sweep(workers=(1, 2))
    rows = [row.model_copy(update={"messages_per_step": 1_234_567.0}) for row in record.rows]
    assert set(_column(scaling_table(record.model_copy(update={"rows": rows})), "messages/step")) == {"1,234,567"}


def test_csv_has_full_precision_and_a_line_for_each_row() -> None:
    record = _with_failures()
    text = as_csv(numbers_table(record))
    assert len(text.splitlines()) == 1 + len(record.rows)
    for line, row in zip(csv.DictReader(io.StringIO(text)), record.rows, strict=True):
        assert line["run"] == cell_name(row.cell)
        assert (line["engine"], int(line["workers"]), line["sync"]) == (
            row.cell.engine,
            row.cell.workers,
            row.cell.sync,
        )
        assert line["failed"] == " ".join(row.failed.split())
        assert line["oversubscribed"] == ("yes" if row.oversubscribed else "no")
        _equals_exactly(line, row)


def _equals_exactly(line: dict[str, str], row: Row) -> None:
    for name in ("step_ms", "samples_per_s", "speed_up", "efficiency", "karp_flatt"):
        interval = getattr(row, name)
        told = [line[name], line[f"{name}_low"], line[f"{name}_high"]]
        bounds = [interval.low, interval.high] if interval and interval.is_known else [None] * 2
        expected = [interval.value, *bounds] if interval else [None] * 3
        assert [float(t) if t else None for t in told] == expected
    for name in ("epoch_s", "improvement_pct", "energy_j"):
        value = getattr(row, name)
        assert line[name] == ("" if value is None else repr(value))
    for name in ("read_s", "eval_s", "total_s", "compute_ms", "comm_ms", "wait_ms", "train_loss", "test_accuracy"):
        assert line[name] == (repr(getattr(row, name)) if row.repeats else "")


def test_markdown_keeps_its_cells_whatever_they_hold() -> None:
    columns: list[Column[object]] = [Column("run", left=True), Column("number"), Column("reason", left=True)]
    grid = Table(columns, [["a|b", "1.5 ms (1.4–1.6)", "*bold*\n<b>"], ["c", "–", "`x` \\ [y]"]])
    head, rule, *lines = as_markdown(grid).splitlines()
    assert head == "| run | number | reason |"
    assert rule == "| --- | ---: | --- |", "numbers are set to the right"
    assert lines == [r"| a\|b | 1.5 ms (1.4–1.6) | \*bold\* \<b\> |", r"| c | – | \`x\` \\ \[y\] |"]


def test_fits_have_a_line_each() -> None:
    record = made_up_sweep()
    grid = fits_table(record)
    assert len(grid.rows) == len(record.fits) > 0
    for row, fit in zip(grid.rows, record.fits, strict=True):
        assert row[0] == fit.series
        for name in fit.parameters.keys() - {"rate"}:
            assert name in row[grid.headings.index("fitted")]
        best = row[grid.headings.index("best workers")]
        assert best.startswith(f"{fit.best_workers.value:.0f}" if fit.best_workers else "–")
    open_ended = [fit.model_copy(update={"best_workers": Interval(value=11, low=5, high=1024)}) for fit in record.fits]
    assert set(_column(fits_table(record.model_copy(update={"fits": open_ended})), "best workers")) == {
        "11 (5 or more)"
    }
    bad = [fit.model_copy(update={"error_pct": 35.0}) for fit in record.fits]
    grid = fits_table(record.model_copy(update={"fits": bad}))
    assert {*_column(grid, "at most"), *_column(grid, "best workers")} == {"–"}, "a law that does not fit tells nothing"
    assert "batch" in fits_table(made_up_sweep(batch_sizes=(64, 512))).headings
    assert fits_table(record.model_copy(update={"fits": []})).rows == []


def test_a_law_that_does_not_fit_has_its_error_and_no_parameters() -> None:
    record = made_up_sweep()
    bad = [fit.model_copy(update={"error_pct": 62.0}) for fit in record.fits]
    for row in fits_table(record.model_copy(update={"fits": bad})).rows:
        assert row[-4:] == ["–", "–", "–", "62.0 %"]
    exact = [fit.model_copy(update={"error_pct": 1e-9}) for fit in record.fits]
    assert {row[-1] for row in fits_table(record.model_copy(update={"fits": exact})).rows} == {"–"}, "of one run each"


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash_for_people_and_empty_for_spreadsheets(nothing: float) -> None:
    record = made_up_sweep(workers=(1, 2))
    spoilt = Interval(value=nothing, low=nothing, high=nothing)
    wide = Interval(value=1.5, low=1.0, high=nothing)
    figures = {"speed_up": spoilt, "step_ms": spoilt, "samples_per_s": spoilt, "efficiency": wide, "karp_flatt": spoilt}
    others = dict.fromkeys(("read_s", "total_s", "test_loss", "train_loss", "test_accuracy", "energy_j"), nothing)
    parts = dict.fromkeys(("compute_ms", "serial_ms", "comm_ms", "wait_ms"), 0.0)
    more = {"epoch_s": nothing, "improvement_pct": nothing, "bytes_per_step": nothing, "messages_per_step": nothing}
    rows = [row.model_copy(update={**figures, **others, **parts, **more}) for row in record.rows]
    spoilt_record = record.model_copy(update={"rows": rows})
    texts = as_markdown(scaling_table(spoilt_record)) + as_csv(numbers_table(spoilt_record))
    assert not re.search(r"\b(nan|inf)\b", texts, re.IGNORECASE)
    assert _column(scaling_table(spoilt_record), "speed-up") == ["–"] * len(rows)
    assert _column(scaling_table(spoilt_record), "compute") == ["–"] * len(rows), "a share of nothing"
    assert _column(scaling_table(spoilt_record), "efficiency") == ["150 %"] * len(rows), "without what is no interval"


def test_time_that_was_not_saved_is_no_improvement() -> None:
    record = made_up_sweep(workers=(1, 2), engines=("mpi",))
    rows = [row.model_copy(update={"improvement_pct": -201.8}) for row in record.rows]
    assert set(_column(scaling_table(record.model_copy(update={"rows": rows})), "PI")) == {"–"}


def test_karp_flatt_of_an_earlier_version_is_shown_where_it_is_a_share() -> None:
    record = made_up_sweep(workers=(1, 2), engines=("mpi",))
    wrong = Interval(value=5.036, low=4.0, high=6.0)
    rows = [record.rows[0], record.rows[1].model_copy(update={"karp_flatt": wrong})]
    assert "Karp–Flatt" not in scaling_table(record.model_copy(update={"rows": rows})).headings


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "-1 of 2 failed"])
def test_a_spreadsheet_takes_no_text_for_a_formula(text: str) -> None:
    (line,) = csv.reader(
        io.StringIO(as_csv(Table([Column("text"), Column("number")], [[text, "-1.5e-3"]])).partition("\n")[2])
    )
    assert line == [f"'{text}", "-1.5e-3"]


def test_names_tell_cells_apart() -> None:
    cells = [
        Cell(engine="serial", workers=1, batch_size=64),
        Cell(engine="mpi", workers=1, batch_size=64),
        Cell(engine="mpi", workers=2, batch_size=64),
        Cell(engine="mpi", workers=2, sync="local-sgd:period=8", batch_size=64),
        Cell(engine="hybrid", workers=2, threads=2, batch_size=64),
    ]
    names = [cell_name(cell) for cell in cells]
    assert names == ["serial", "mpi ×1", "mpi ×2", "mpi ×2 local-sgd:period=8", "hybrid 2×2"]


@dataclass
class _Point:
    workers: int
    step_ms: Estimate | None
    failed: bool = False


def test_one_column_is_all_that_terminal_page_markdown_and_csv_need() -> None:
    columns: list[Column[_Point]] = [
        Column("workers", lambda point: f"×{point.workers}", "How many.", left=True, csv="workers"),
        estimated("step_ms", "step", milliseconds, "Time of one step.", drop=1),
        Column(csv="failed"),
        Column("never", lambda point: "?", shown=lambda points: any(point.failed for point in points)),
    ]
    points = [_Point(1, Estimate(2.0, 1.5, 2.5)), _Point(2, None)]
    table = tabulate(columns, points, "Steps", lambda point: "shared" if point.workers > 1 else "")
    assert table.headings == ["workers", "step"]
    screen = io.StringIO()
    print_table(Console(file=screen), table)
    assert screen.getvalue().splitlines() == [
        "Steps",
        "workers                step",
        "×1      2.00 ms (1.50–2.50)",
        "×2                        –",
    ]
    assert as_markdown(table).splitlines()[1:] == ["| --- | ---: |", "| ×1 | 2.00 ms (1.50–2.50) |", "| ×2 | – |"]
    assert as_csv(numbers(columns, points)).splitlines() == [
        "workers,step_ms,step_ms_low,step_ms_high,failed",
        "1,2.0,1.5,2.5,no",
        "2,,,,no",
    ]
    section = Section("a", "A", tables=[table, Table(table.columns, [])])
    texts = dict.fromkeys(("name", "kicker", "title", "headline", "facts", "footer"), "")
    page = render(Page(**texts, tiles=[], sections=[section], numbers=table, blocks=[]))
    assert page.count("<table>") == 1, "a table without rows is left out"
    assert '<abbr title="Time of one step.">step</abbr>' in page
    assert '<td><span class="figure">2.00 ms</span> <span class="interval">(1.50–2.50)</span></td>' in page
    assert '<tr class="shared"><th scope="row">×2</th><td>–</td></tr>' in page
