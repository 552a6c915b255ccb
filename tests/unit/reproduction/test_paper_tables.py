"""Papers' tables as texts, on the terminal and in Markdown: every figure is there, and wide tables are cut."""

from pathlib import Path

import pytest
import typer
from faked_papers import Take, taker

from manyhands.cli import reproduce as command
from manyhands.cli.show import results
from manyhands.record.papers import ReproducedTable, ReproductionRecord, Taken
from manyhands.report import papers as words
from manyhands.reproduction import run
from manyhands.reproduction.run import reproduce


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> ReproductionRecord:
    return reproduce("all", out=tmp_path_factory.mktemp("out"), take=taker([]))


def table_of(record: ReproductionRecord, number: str, name: str) -> ReproducedTable:
    paper = next(p for p in record.papers if p.number == number)
    return next(t for t in paper.tables if t.name == name)


def test_published_and_ours_stand_side_by_side(record: ReproductionRecord) -> None:
    (grid,) = words.tables_of(table_of(record, "002", "table 1"))
    assert grid.headings[:4] == ["processes", "time s: paper", "ours", "predicted"]
    assert grid.headings[4:7] == ["speed-up: paper", "ours", "predicted"]
    assert grid.headings[-1] == "verdict"
    two = next(row for row in grid.rows if row[0] == "2")
    assert (two[1], two[4:7]) == ("23.79", ["1.84", "1.80", "–"])
    four = next(row for row in grid.rows if row[0] == "4")
    assert four[6] == "4.00‡ (1.00–4.44)", "predicted, and marked so"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_wide_table_is_cut_into_parts_that_hold_all_of_it(record: ReproductionRecord, width: int) -> None:
    table = table_of(record, "003", "table 2")
    (whole,) = words.tables_of(table)
    parts = words.tables_of(table, width)
    assert len(parts) > 1
    assert [h for part in parts for h in part.headings[1:]] == whole.headings[1:]
    for i, row in enumerate(whole.rows):
        assert [cell for part in parts for cell in part.rows[i][1:]] == row[1:]
        assert {part.rows[i][0] for part in parts} == {row[0]}
    for part in parts:
        drawn = [max(map(len, column)) + 1 for column in zip(part.headings, *part.rows, strict=True)]
        assert sum(drawn) <= width or len(part.headings) <= 4


def test_times_and_speed_ups_of_a_crowd_are_marked(record: ReproductionRecord) -> None:
    table = table_of(record, "003", "table 2")
    (grid,) = words.tables_of(table)
    for row, shown in zip(table.rows, grid.rows, strict=True):
        marks = sum("†" in cell for cell in shown)
        assert marks == (row.oversubscribed and sum(f.kind in words.TIMES and f.ours is not None for f in row.figures))


def test_markdown_has_every_published_figure_and_the_rules(record: ReproductionRecord) -> None:
    text = words.markdown(record)
    published = {f.published for p in record.papers for t in p.tables for r in t.rows for f in r.figures} - {""}
    assert len(published) > 50
    assert [figure for figure in published if figure not in text] == []
    assert all(rule in text for rule in record.rules)
    assert all(f"## Paper {number}" in text for number in ("000", "001", "002", "003", "004"))


def test_rows_of_the_same_reason_are_told_together(record: ReproductionRecord) -> None:
    table = table_of(record, "001", "table 4")
    same = table.model_copy(update={"rows": [r.model_copy(update={"why": "as crowded"}) for r in table.rows[:2]]})
    assert words.whys(same) == ["Serial 1 core, OpenMP 2 threads: as crowded"]


def test_sentences_stand_with_what_was_measured(record: ReproductionRecord) -> None:
    table = table_of(record, "001", "what the text says")
    (grid,) = words.tables_of(table)
    assert grid.headings == ["sentence", "verdict", "by"]
    assert "of 6 versions" in grid.rows[0][2]
    assert words.whys(table) == []


def test_single_runs_are_said_to_be_noisy(record: ReproductionRecord) -> None:
    assert "busy machine" not in words.circumstances(record)
    assert "busy machine" in words.circumstances(record.model_copy(update={"repeats": 1}))


def test_verdicts_are_counted(record: ReproductionRecord) -> None:
    rows = [row for paper in record.papers for table in paper.tables for row in table.rows]
    total, _, listed = words.summary(record).partition(" rows: ")
    assert int(total) == len(rows)
    counts = [part.split(" ", 1) for part in listed.split(", ")]
    assert sum(int(number) for number, _ in counts) == len(rows), "every row is in exactly one class"
    assert {name for _, name in counts} >= {"baseline", "reproduced"}


def test_everything_is_shown_on_a_terminal(record: ReproductionRecord, capsys: pytest.CaptureFixture[str]) -> None:
    command.show(record, results)
    text = capsys.readouterr().out
    assert "690,590" in text
    assert "how the verdicts are found" in text
    assert "12.98 (printed 9.28)" in text


def run_nothing(monkeypatch: pytest.MonkeyPatch, take: Take) -> None:
    """Let the command take made-up runs."""
    monkeypatch.setattr(run.reproduce, "__kwdefaults__", {**run.reproduce.__kwdefaults__, "take": take})


def test_the_command_keeps_tables_to_paste_and_prints_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_nothing(monkeypatch, taker([]))
    command.reproduce("001", quick=True, out=tmp_path, json=True)
    out = capsys.readouterr().out
    record = ReproductionRecord.model_validate_json(out)
    assert out.count("\n") == 1
    assert (tmp_path / record.id / "reproduction.md").read_text() == words.markdown(record)


def test_the_command_fails_where_every_run_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_nothing(monkeypatch, taker([], lambda setting: "no MPI here"))
    with pytest.raises(typer.Exit) as ended:
        command.reproduce("001", quick=True, out=tmp_path)
    assert ended.value.exit_code == 1


def test_the_command_says_how_to_go_on_when_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*args: object) -> Taken:
        raise KeyboardInterrupt

    run_nothing(monkeypatch, stop)
    with pytest.raises(typer.Exit) as ended:
        command.reproduce("001", quick=True, out=tmp_path)
    assert ended.value.exit_code == 130
    assert f"manyhands reproduce 001 --quick --resume --out {tmp_path}" in capsys.readouterr().err


def test_alone_the_command_lists_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    command.reproduce("")
    text = capsys.readouterr().out
    assert all(number in text for number in ("000", "001", "002", "003", "004"))
    assert text.count("rebuilds") >= 5
