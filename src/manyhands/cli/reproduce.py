"""`manyhands reproduce`: rebuild a paper's tables beside its published figures."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from manyhands.cli.bars import eta
from manyhands.cli.options import Json
from manyhands.cli.show import bars_on_terminal, finish, people, results, say
from manyhands.cli.tables import print_table
from manyhands.record.files import write_atomically
from manyhands.record.papers import ReproductionDir, ReproductionRecord

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
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds after which it stops; runs that would take longer are left for --resume."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of all reproductions.")] = OUT,
    document: Annotated[
        Path | None,
        typer.Option(help="Run nothing: write a page of the papers, from the records below --records, to this file."),
    ] = None,
    records: Annotated[Path, typer.Option(help="Folder of the records for --document.")] = OUT,
    json: Json = False,
) -> None:
    """Rebuild the tables of PAPER with its own settings: published figures, ours, and a verdict per row.

    Rows that ask for more workers than this machine has cores are measured all the same and marked oversubscribed:
    their accuracy is judged, their speed-up never. Without --quick their times are also predicted, from calibrations
    that take a minute for each task; predictions stand in a column of their own.

    Example: manyhands reproduce 001 --quick
    """
    from manyhands.report import papers
    from manyhands.reproduction.run import reproduce as rebuild  # imports torch

    if document:
        _write_document(document, records)
        return
    if not paper:
        _list()
        return
    with _progress() as observe:
        record = rebuild(
            paper,
            quick=quick,
            repeats=repeats,
            out=out,
            resume=resume,
            budget_s=math.inf if budget is None else budget,
            observe=observe,
        )
    folder = ReproductionDir(out / record.id)
    write_atomically(folder.markdown, papers.markdown(record))
    show(record, people if json else results)
    if record.status == "interrupted":
        elsewhere = f" --out {out}" if out != OUT else ""
        quickly = " --quick" if quick else ""
        say(f"stopped; go on with: manyhands reproduce {paper}{quickly} --resume{elsewhere}")
    say(f"kept in {folder.path} (tables to paste: {folder.markdown.name})")
    finish(record, as_json=json)
    if record.taken and all(run.failed for run in record.taken):
        raise typer.Exit(1)


def show(record: ReproductionRecord, console: Console) -> None:
    """Print every table with the reasons for its verdicts, and the rules that verdicts follow."""
    from manyhands.report import papers

    if not record.taken:
        return
    for paper in record.papers:
        say(f"paper {paper.number}: {paper.title}\n", to=console, style="bold")
        for table in paper.tables:
            say(papers.headline(table), to=console, style="italic")
            for part in papers.tables_of(table, console.width if console.is_terminal else 0):
                print_table(console, part)
            say(*(f"· {line}" for line in (*papers.whys(table), *table.notes)), "", to=console)
        say(paper.left_out, "", to=console)
    say("how the verdicts are found", to=console, style="bold")
    say(*(f"· {rule}" for rule in record.rules), "", to=console)
    say(papers.circumstances(record), papers.summary(record), to=console)


def _write_document(path: Path, records: Path) -> None:
    """Write the page of the papers, and its pictures beside it."""
    from manyhands.reproduction.document import read_records, write_document

    for file in write_document(read_records(records), path):
        say(f"written: {file}")


def _list() -> None:
    """Print the papers, what each is about, and what is rebuilt of it."""
    from manyhands.reproduction.papers import PAPERS, papers_of
    from manyhands.reproduction.run import QUICK_REPEATS, REPEATS, about_s, this_machine

    machine = this_machine()
    for number in PAPERS:
        for paper in papers_of(number, machine):
            whole_s = about_s([paper], quick=False, repeats=REPEATS)
            quick_s = about_s([paper], quick=True, repeats=QUICK_REPEATS)
            time = f"about {whole_s / 60:.0f} min on 2 cores, {quick_s / 60:.1f} min with --quick"
            say(f"{paper.number}  {paper.title}", to=results, style="bold")
            say(f"     {paper.about}", f"     rebuilds {paper.rebuilds}", f"     {time}", to=results)
    say("manyhands reproduce 001 rebuilds one, manyhands reproduce all --quick all of them in short", to=results)


@contextmanager
def _progress() -> "Iterator[Observer]":
    """Draw one bar over all runs on a terminal; elsewhere print a line after every run."""
    from manyhands.reproduction.run import Observer

    with bars_on_terminal() as bars:
        bar = bars.add("reproduce") if bars else None

        def show_pulse(pulse: "ReproductionPulse") -> None:
            if bars and bar is not None:
                bars.show_run(bar, pulse.done, pulse.total, _latest(pulse), pulse.left_s)
            elif pulse.taken is not None:
                say(f"{pulse.done}/{pulse.total} · {_latest(pulse)} · {eta(pulse.left_s)}")

        yield Observer(show_pulse, say)


def _latest(pulse: "ReproductionPulse") -> str:
    """Say which setting runs, or how its run ended."""
    if pulse.taken is None:
        return f"{pulse.name} …"
    how = f"failed: {pulse.taken.failed}" if pulse.taken.failed else f"took {pulse.taken.took_s:.0f} s"
    return f"{pulse.name} {how}"
