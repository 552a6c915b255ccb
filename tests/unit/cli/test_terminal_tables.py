"""Tables for people: laws that hold for any columns, texts and widths."""

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from manyhands.cli.tables import LEAST, print_facts, print_table
from manyhands.report.tables.table import Column, Table

Columns = list[Column[object]]

WORDS = st.text("abcdefg0123456789×–.,%", min_size=1, max_size=14)
DROPS = st.integers(0, 4)


def drawn(columns: Columns, rows: list[list[str]], width: int | None, *, stderr: bool = False) -> list[str]:
    """Return what a terminal of so many columns shows, or a pipe."""
    screen = StringIO()
    terminal = {"force_terminal": True, "width": width} if width else {"width": 80}
    console = Console(file=screen, color_system=None, stderr=stderr, highlight=False, **terminal)  # type: ignore[arg-type]
    print_table(console, Table(columns, rows))
    return screen.getvalue().splitlines()


@st.composite
def tables(draw: st.DrawFn) -> tuple[Columns, list[list[str]]]:
    size = draw(st.integers(1, 7))
    drops = [0, *draw(st.lists(DROPS, min_size=size - 1, max_size=size - 1))]
    columns: Columns = [
        Column(f"{'h' * draw(st.integers(1, 9))}{i}", drop=drop, left=draw(st.booleans()))
        for i, drop in enumerate(drops)
    ]
    row = st.lists(WORDS, min_size=size, max_size=size)
    return columns, draw(st.lists(row, min_size=1, max_size=4))


@given(tables())
def test_a_pipe_gets_everything_a_line_for_each_row(table: tuple[Columns, list[list[str]]]) -> None:
    columns, rows = table
    first, *lines = drawn(columns, rows, None)
    assert first.split() == [column.heading for column in columns]
    assert [line.split() for line in lines] == rows


@given(tables(), st.integers(12, 120))
def test_a_terminal_cuts_nothing_and_names_what_it_leaves_out(
    table: tuple[Columns, list[list[str]]], width: int
) -> None:
    columns, rows = table
    lines = drawn(columns, rows, width)
    note = re.fullmatch(r"no room for: (.*); a wider terminal or a pipe \(\| cat\) has all", lines[-1])
    left_out = note[1].split(", ") if note else []
    kept = [i for i, column in enumerate(columns) if column.heading not in left_out]
    assert not [column for i, column in enumerate(columns) if i not in kept and not column.drop]
    shown = [line.split() for line in lines[: len(rows) + 1]]
    as_columns = [[column.heading for i, column in enumerate(columns) if i in kept]]
    as_columns += [[row[i] for i in kept] for row in rows]
    if shown == as_columns:
        assert all(cell_len(line) <= width for line in lines[: len(rows) + 1])
    else:  # one line for each figure
        pairs = [[column.heading, cell] for row in rows for column, cell in zip(columns, row, strict=True)]
        assert [line.split() for line in lines if line] == pairs


@given(tables(), st.integers(12, 60))
def test_a_wider_terminal_shows_no_less(table: tuple[Columns, list[list[str]]], width: int) -> None:
    columns, rows = table
    everything = sum(max(cell_len(text) for text in each) + 1 for each in zip(*rows, strict=True)) + 12 * len(columns)
    assert drawn(columns, rows, width + everything) == drawn(columns, rows, None)


def test_what_matters_least_is_left_out_first() -> None:
    columns: Columns = [Column("run"), Column("least", drop=9), Column("more", drop=1), Column("some", drop=5)]
    rows = [["mpi ×2", "1" * 10, "2" * 10, "3" * 10], ["mpi ×4", "4" * 10, "5" * 10, "6" * 10]]
    assert drawn(columns, rows, 80) == drawn(columns, rows, None)
    assert drawn(columns, rows, 30)[0].split() == ["run", "more", "some"]
    assert drawn(columns, rows, 20)[0].split() == ["run", "more"]
    assert drawn(columns, rows, 20, stderr=True)[-1] == "no room for: least, some; a wider terminal or --json has all"


def test_a_record_alone_is_written_in_lines_rather_than_in_part() -> None:
    columns: Columns = [Column("run", left=True), Column("samples/s"), Column("accuracy\nat the end", drop=3)]
    assert drawn(columns, [["mpi ×2", "56,204", "97.00 %"]], 20) == [
        "run                  mpi ×2",
        "samples/s            56,204",
        "accuracy at the end  97.00 %",
    ]


def test_many_records_of_which_nothing_may_be_left_out_are_written_in_lines() -> None:
    columns: Columns = [Column("id", left=True), Column("accuracy")]
    lines = drawn(columns, [["a" * 30, "97.00 %"], ["b" * 30, "98.00 %"]], 24)
    assert lines == [f"id        {'a' * 30}", "accuracy  97.00 %", "", f"id        {'b' * 30}", "accuracy  98.00 %"]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_sentences_are_folded_between_words_and_figures_keep_their_units(width: int) -> None:
    columns: Columns = [Column("what", left=True), Column("n"), Column("found", left=True, folds=True)]
    sentence = "it took 12.5 % of 3.21 ms and 940 kB, which is 2 min 5 s more than the 95 % that were hoped for"
    lines = drawn(columns, [["mpi", "12", sentence], ["ray", "3", "none"]], width)
    assert all(cell_len(line) <= width for line in lines)
    folded = [line[8:] for line in lines[1:-1]]
    assert len(folded) > 1
    assert " ".join(folded) == sentence
    assert not [line for line in folded if re.match(r"(%|ms|kB|min|s)( |$)", line)]
    assert drawn(columns, [["mpi", "12", sentence]], None)[1] == f"mpi  12 {sentence}"


def test_lines_of_a_text_stay_lines() -> None:
    columns: Columns = [Column("sync", left=True), Column("does", left=True)]
    assert drawn(columns, [["gossip", "one\ntwo"]], None) == ["sync   does", "gossip one", "       two"]


def test_facts_stand_beside_their_names() -> None:
    screen = StringIO()
    print_facts(
        Console(file=screen, force_terminal=True, color_system=None, width=LEAST + 8), {"a": "b", "name": "c " * 20}
    )
    assert screen.getvalue().splitlines()[:2] == ["a     b", "name  " + " ".join("c" * 13)]
