"""`manyhands report`: draw the report of sweeps and runs again from what they stored."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from manyhands.cli.options import default_is
from manyhands.cli.show import people, results
from manyhands.errors import UserError, check, unknown
from manyhands.record import RunDir, SweepDir, list_runs, list_sweeps

SWEEPS, RUNS, REPORTS = Path("scales"), Path("runs"), Path("reports")
FORMATS = ("html", "markdown", "csv", "png")


class Found(NamedTuple):
    """What a report is asked of."""

    sweeps: list[SweepDir]
    runs: list[RunDir]


TO_HELP = "Folder for the files." + default_is(f"the sweep's or run's own; for several runs, one under {REPORTS}")
OUT_HELP = "Folder of all sweeps or runs." + default_is(f"{SWEEPS} and {RUNS}")
WHAT_HELP = "Sweeps or runs: ids, unique parts of ids, folders, or 'last' for the newest run." + default_is(
    "the newest sweep"
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
    """Draw reports from stored sweeps and runs: one HTML page that needs no network, Markdown, CSV, pictures.

    Each sweep has a page of its own; runs come together on one.

    Example: manyhands report --format markdown >> README.md
    """
    if format not in FORMATS:
        unknown("format", format, FORMATS)
    found = _find(what or [], out or SWEEPS, out or RUNS)
    with people.status("drawing …"):
        folders = _folders(found, to)
        files = [file for sweep in found.sweeps for file in _sweep(sweep, format, next(folders))]
        files += _runs(found.runs, format, next(folders)) if found.runs else []
    for file in files:
        results.print(str(file), markup=False)
    if files and format == "html":
        people.print("open report.html in a browser; it needs no network", markup=False)


def _folders(found: Found, to: Path | None) -> Iterator[Path | None]:
    """Yield where each page goes: to folders of their own where there are several, whatever they are called."""
    names = [sweep.path.resolve().name for sweep in found.sweeps]
    names += [_name_of_runs(found.runs)] if found.runs else []
    for i, name in enumerate(names):
        before = names[:i].count(name)
        own = f"{name}-{before + 1}" if before else name
        yield to / own if to and len(names) > 1 else to


def _name_of_runs(runs: Sequence[RunDir]) -> str:
    first = runs[0].path.resolve().name
    return first if len(runs) == 1 else f"{first}-and-{len(runs) - 1}-more"


def _sweep(sweep: SweepDir, format: str, folder: Path | None) -> list[Path]:
    """Write a sweep's report, or print it; return the files."""
    from manyhands.report import files, pages, tables  # drawing libraries are slow to import

    if format == "html":
        return files.write(sweep, folder)
    if format == "png":
        return files.write_pictures(sweep, folder)
    record = sweep.read()
    text = pages.sweep_markdown(record) if format == "markdown" else tables.as_csv(tables.numbers_table(record))
    return _text(text, format, folder)


def _runs(runs: Sequence[RunDir], format: str, to: Path | None) -> list[Path]:
    """Write a report of some runs, or print it; return the files."""
    from manyhands.report import files, tables
    from manyhands.report import runs as page

    folder = to or (runs[0].path if len(runs) == 1 else REPORTS / _name_of_runs(runs))
    if format == "html":
        return files.write_runs(runs, folder)
    if format == "png":
        return files.write_run_pictures(runs, folder)
    records = [record for _, record in files.read_runs(runs)]
    text = page.runs_markdown(records) if format == "markdown" else tables.as_csv(page.runs_numbers(records))
    return _text(text, format, to)


def _text(text: str, format: str, to: Path | None) -> list[Path]:
    from manyhands.report.files import write_texts

    if to:
        return write_texts(to, {"report.md" if format == "markdown" else "report.csv": text})
    sys.stdout.write(text)
    return []


def _find(names: Sequence[str], sweeps_in: Path, runs_in: Path) -> Found:
    """Return the sweeps and runs of these names; the newest sweep for none."""
    sweeps, runs = [sweep for sweep in list_sweeps(sweeps_in) if sweep.record.is_file()], list_runs(runs_in)
    if not names:
        check(bool(sweeps), f"there are no sweeps under '{sweeps_in}' yet; try: manyhands scale strong mlp")
        return Found(sweeps[-1:], [])
    found = Found([], [])
    for name in names:
        one = _folder(Path(name)) or _named(name, sweeps, runs)
        if isinstance(one, SweepDir):
            found.sweeps.append(one)
        else:
            found.runs.append(one)
    return found


def _folder(path: Path) -> SweepDir | RunDir | None:
    """Return what a folder, or the record in it, is of; None where this is no path."""
    folder = path.parent if path.name in ("sweep.json", "record.json", "run.toml") else path
    if SweepDir(folder).record.is_file():
        return SweepDir(folder)
    if RunDir(folder).record.is_file() or RunDir(folder).toml.is_file():
        return RunDir(folder)
    if path.exists():
        raise UserError(f"'{path}' is neither a sweep's folder nor a run's: it has no sweep.json and no record.json")
    return None


def _named(name: str, sweeps: list[SweepDir], runs: list[RunDir]) -> SweepDir | RunDir:
    """Return the sweep or run with this id or unique part of one."""
    if name == "last" and runs:
        return runs[-1]
    known: list[SweepDir | RunDir] = [*sweeps, *runs]
    exact = [k for k in known if name == k.path.name]
    found = exact or [k for k in known if name in k.path.name]
    check(len(found) <= 1, f"'{name}' fits {len(found)} sweeps and runs; give more of the id")
    check(bool(known), f"there is no '{name}', and no other sweep or run here; try: manyhands scale strong mlp")
    if not found:
        unknown("sweep or run", name, [s.path.name for s in sweeps[-3:]] + [r.path.name for r in runs[-3:]])
    return found[0]
