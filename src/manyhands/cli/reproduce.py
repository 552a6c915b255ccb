"""`manyhands reproduce`: rebuild a paper's tables beside its published figures."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from manyhands.cli.bars import BarText, ProgressBars, eta
from manyhands.cli.show import people, print_json, results
from manyhands.cli.tables import print_table
from manyhands.record import write_atomically
from manyhands.record.papers import ReproducedPaper, ReproducedTable, ReproductionDir, ReproductionRecord

if TYPE_CHECKING:
    from manyhands.reproduction.run import Observer, ReproductionPulse

OUT = Path("reproductions")


def reproduce(
    paper: Annotated[str, typer.Argument(help="000, 001, 002, 003, 004, or all; none lists them.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer steps, less data, one repeat: about 5 minutes for all on 2 cores.")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(help="Runs of each setting, in turn. [3, or 1 with --quick]", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest one that was stopped.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder of all reproductions.")] = OUT,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Rebuild the tables of PAPER with its own settings: published figures, ours, and a verdict per row.

    Rows that ask for more workers than this machine has cores are measured all the same and marked oversubscribed:
    their accuracy is judged, their speed-up never.

    Example: manyhands reproduce 001 --quick
    """
    from manyhands.reproduction.run import reproduce as rebuild  # torch is slow to import

    if not paper:
        _list()
        return
    with _progress() as observe, redirect_stdout(sys.stderr):
        record = rebuild(paper, quick=quick, repeats=repeats, out=out, resume=resume, observe=observe)
    folder = ReproductionDir(out / record.id)
    _keep(record, folder)
    show(record, people if json else results)
    if record.status == "interrupted":
        elsewhere = f" --out {out}" if out != OUT else ""
        quickly = " --quick" if quick else ""
        _say(f"stopped; go on with: manyhands reproduce {paper}{quickly} --resume{elsewhere}")
    _say(f"kept in {folder.path} (tables to paste: {folder.markdown.name})")
    if json:
        print_json(record.model_dump_json())
    if record.status == "interrupted":
        raise typer.Exit(130)
    if record.taken and all(one.failed for one in record.taken):
        raise typer.Exit(1)


def show(record: ReproductionRecord, console: Console) -> None:
    """Print every table, what led to its verdicts, and how these were found."""
    from manyhands.report import papers

    if not record.taken:
        return
    for paper in record.papers:
        _show_paper(paper, console)
    _print(console, "how the verdicts are found", style="bold")
    for rule in record.rules:
        _print(console, f"· {rule}")
    _print(console, "")
    _print(console, papers.circumstances(record))
    _print(console, papers.summary(record))


def _show_paper(paper: ReproducedPaper, console: Console) -> None:
    _print(console, f"paper {paper.number}: {paper.title}", style="bold")
    _print(console, "")
    for table in paper.tables:
        _show_table(table, console)


def _show_table(table: ReproducedTable, console: Console) -> None:
    from manyhands.report import papers

    _print(console, papers.headline(table), style="italic")
    for part in papers.tables_of(table, console.width if console.is_terminal else 0):
        print_table(console, part)
    for line in (*papers.whys(table), *table.notes):
        _print(console, f"· {line}")
    _print(console, "")


def _list() -> None:
    """List the papers, what each is about, and what is rebuilt of it."""
    from manyhands.reproduction.papers import PAPERS, papers_of
    from manyhands.reproduction.run import QUICK_REPEATS, REPEATS, about_s, this_machine

    machine = this_machine()
    for number in PAPERS:
        for paper in papers_of(number, machine):
            whole_s = about_s([paper], quick=False, repeats=REPEATS)
            quick_s = about_s([paper], quick=True, repeats=QUICK_REPEATS)
            _print(results, f"{paper.number}  {paper.title}", style="bold")
            _print(results, f"     {paper.about}")
            _print(results, f"     rebuilds {paper.rebuilds}")
            _print(results, f"     about {whole_s / 60:.0f} min on 2 cores, {quick_s / 60:.1f} min with --quick")
    _print(results, "manyhands reproduce 001 rebuilds one, manyhands reproduce all --quick all of them in short")


def _keep(record: ReproductionRecord, folder: ReproductionDir) -> None:
    from manyhands.report import papers

    write_atomically(folder.markdown, papers.markdown(record))


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(line, style=style or None, markup=False, soft_wrap=True)


def _say(sentence: str) -> None:
    _print(people, sentence)


@contextmanager
def _progress() -> "Iterator[Observer]":
    """Draw one bar over all runs on a terminal; elsewhere print a line after every run."""
    from manyhands.reproduction.run import Observer

    if not people.is_terminal:
        yield Observer(_print_line, _say)
        return
    bars = ProgressBars(people)
    with bars.progress:
        bar = bars.add("reproduce")

        def draw(pulse: "ReproductionPulse") -> None:
            parts = [BarText(f"run {pulse.done}/{pulse.total}"), BarText(_text(pulse), 1, cuts=True)]
            bars.show(bar, pulse.done, pulse.total, parts, left_s=pulse.left_s)

        yield Observer(draw, _say)


def _print_line(pulse: "ReproductionPulse") -> None:
    if pulse.taken is not None:
        _say(f"{pulse.done}/{pulse.total} · {_text(pulse)} · {eta(pulse.left_s)}")


def _text(pulse: "ReproductionPulse") -> str:
    """Say which run goes on, and what became of it."""
    name = pulse.setting.name
    if pulse.taken is None:
        return f"{name} …"
    return f"{name} failed: {pulse.taken.failed}" if pulse.taken.failed else f"{name} took {pulse.taken.took_s:.0f} s"
