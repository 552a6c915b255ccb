"""`manyhands report`: draw the report of what was stored: sweeps, runs, simulations, validations, advice."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manyhands.cli.options import default_is
from manyhands.cli.show import people, results, say
from manyhands.errors import UserError, check, unknown
from manyhands.record.advice import AdviceDir
from manyhands.record.run import RunDir
from manyhands.record.simulation import LEDGER, SimulationDir, ValidationDir
from manyhands.record.sweep import SweepDir

if TYPE_CHECKING:
    from manyhands.report.files import Source

Stored = SweepDir | RunDir | SimulationDir | ValidationDir | AdviceDir
USUAL: dict[type[Stored], Path] = {
    SweepDir: Path("scales"),
    RunDir: Path("runs"),
    SimulationDir: Path("simulations"),
    ValidationDir: Path("validations"),
    AdviceDir: Path("advice"),
}
"""The usual folder of each kind of record."""
REPORTS = Path("reports")
FORMATS = ("html", "markdown", "csv", "png")
HINTS = {
    "validations": "manyhands validate mlp --workers 1,2",
    "simulations": "manyhands simulate mlp --nodes 1,2,4",
    "advice": "manyhands advise mlp --target-accuracy 0.9",
}
"""Commands that make the folders that people name before there are any."""

TO_HELP = "Folder for the files." + default_is(f"that of the record; for several runs, one under {REPORTS}")
OUT_HELP = "Folder of all that was stored." + default_is("scales, runs, simulations, validations and advice")
WHAT_HELP = (
    "Sweeps, runs, simulations, validations or advice: ids, unique parts of ids, folders, or 'last' for the newest "
    "run; 'validations' for all validations." + default_is("the newest sweep")
)
FORMAT_HELP = (
    "html writes all files, png the pictures; markdown and csv go to stdout, for pasting, unless there is --to."
)


def report(
    what: Annotated[list[str] | None, typer.Argument(help=WHAT_HELP, show_default=False)] = None,
    format: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "html",
    to: Annotated[Path | None, typer.Option("--to", help=TO_HELP, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help=OUT_HELP, show_default=False)] = None,
) -> None:
    """Draw reports from what was stored: one HTML page that needs no network, Markdown, CSV, pictures.

    Each sweep, simulation, validation and piece of advice has a page of its own; runs come together on one.

    Example: manyhands report --format markdown >> README.md

    Example: manyhands report validations
    """
    if format not in FORMATS:
        unknown("format", format, FORMATS)
    pages = _find(what or [], out)
    files: list[Path] = []
    with people.status("drawing …"):
        names = [_name(page) for page in pages]
        for i, (page, name) in enumerate(zip(pages, names, strict=True)):
            earlier = names[:i].count(name)
            unique = f"{name}-{earlier + 1}" if earlier else name
            files += _write(page, format, to / unique if to and len(pages) > 1 else to)
    say(*map(str, files), to=results)
    if files and format == "html":
        say("open report.html in a browser; it needs no network")


def _name(source: "Source") -> str:
    """Return the name of a page's folder, where several pages are written into one."""
    from manyhands.report.files import folder_of

    more = len(source) - 1 if isinstance(source, list) else 0
    return folder_of(source).resolve().name + (f"-and-{more}-more" if more else "")


def _write(source: "Source", format: str, to: Path | None) -> list[Path]:
    """Write a report and return its files, or print it where it is text and `to` is None."""
    from manyhands.report import files  # drawing libraries are slow to import

    if format in ("html", "png"):
        several = isinstance(source, list) and len(source) > 1
        folder = REPORTS / _name(source) if to is None and several else to
        return (files.write if format == "html" else files.write_pictures)(source, folder)
    page = files.page_of(source)
    text, name = (page.markdown, "report.md") if format == "markdown" else (page.csv, "report.csv")
    if to:
        return files.write_texts(to, {name: text})
    sys.stdout.write(text)
    return []


def _find(names: Sequence[str], out: Path | None) -> "list[Source]":
    """Return the sources of the pages: the records named, all runs as one source; without names the newest sweep."""
    known: list[Stored] = [folder for kind, usual in USUAL.items() for folder in kind.all_in(out or usual)]
    known = [folder for folder in known if not isinstance(folder, SweepDir) or folder.record.is_file()]
    if not names:
        sweeps = [folder for folder in known if isinstance(folder, SweepDir)]
        place = out or USUAL[SweepDir]
        check(bool(sweeps), f"there are no sweeps under '{place}' yet; try: manyhands scale strong mlp")
        return [sweeps[-1]]
    runs: list[RunDir] = []
    pages: list[Source] = []
    for name in names:
        source = _newest(name, out) if out is not None and name in HINTS else _at(Path(name))
        source = source or _named(name, known)
        if isinstance(source, RunDir):
            runs.append(source)
        else:
            pages.append(source)
    return [*pages, runs] if runs else pages


def _newest(name: str, folder: Path) -> "Source | None":
    """Return the newest of the simulations or of the advice in a folder, or the file of all its validations."""
    if name == "validations":
        return folder / LEDGER if (folder / LEDGER).is_file() else None
    kind, plural = (SimulationDir, "simulations") if name == "simulations" else (AdviceDir, "pieces of advice")
    stored: list[Source] = [*kind.all_in(folder)]
    if not stored:
        return None
    say(f"the newest of {len(stored)} {plural} in '{folder}'")
    return stored[-1]


def _at(path: Path) -> "Source | RunDir | None":
    """Return the record of a folder, or of a file in it; None where there is no such path."""
    if path.suffix == ".jsonl" and path.is_file():
        return path
    folder = path.parent if path.name in {"run.toml", *(kind.record_file for kind in USUAL)} else path
    for kind in USUAL:
        if kind(folder).record.is_file():
            return kind(folder)
    if RunDir(folder).toml.is_file():
        return RunDir(folder)
    for name in HINTS:
        if source := _newest(name, path):
            return source
    if ValidationDir.all_in(path):
        raise UserError(f"'{path}' has no {LEDGER}: no validation was completed yet; name one that was stopped")
    if path.exists():
        names = "sweep.json, record.json, simulation.json, validation.json or advice.json"
        raise UserError(f"there is nothing to report in '{path}': it has no {names}, and no {LEDGER}")
    return None


def _named(name: str, known: Sequence[Stored]) -> Stored:
    """Return the stored record with this id or unique part of an id; `last` is the newest run."""
    runs = [folder for folder in known if isinstance(folder, RunDir)]
    if name == "last" and runs:
        return runs[-1]
    exact = [folder for folder in known if name == folder.path.name]
    fitting = exact or [folder for folder in known if name in folder.path.name]
    check(len(fitting) <= 1, f"'{name}' fits {len(fitting)} of what is stored here; give more of the id")
    if not fitting:
        folder = name.rstrip("/")
        be = "are" if folder.endswith("s") else "is"
        check(folder not in HINTS, f"there {be} no {folder} here yet; try: {HINTS.get(folder)}")
        check(bool(known), f"there is no '{name}', and nothing else to report here; try: manyhands scale strong mlp")
        newest = [stored.path.name for kind in USUAL for stored in [k for k in known if isinstance(k, kind)][-3:]]
        unknown("sweep, run, simulation, validation or advice", name, newest)
    return fitting[0]
