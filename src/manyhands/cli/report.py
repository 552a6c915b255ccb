"""`manyhands report`: draw the report of what was stored: sweeps, runs, simulations, validations, advice."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from manyhands.cli.options import default_is
from manyhands.cli.show import people, results
from manyhands.errors import UserError, check, unknown
from manyhands.record import RunDir, SweepDir
from manyhands.record.advice import AdviceDir
from manyhands.record.simulation import LEDGER, SimulationDir, ValidationDir

if TYPE_CHECKING:
    from manyhands.report.files import Source

SWEEPS, RUNS, REPORTS = Path("scales"), Path("runs"), Path("reports")
SIMULATIONS, VALIDATIONS, ADVICE = Path("simulations"), Path("validations"), Path("advice")
Stored = SweepDir | RunDir | SimulationDir | ValidationDir | AdviceDir
FORMATS = ("html", "markdown", "csv", "png")
RECORDS = ("sweep.json", "record.json", "run.toml", "simulation.json", "validation.json", "advice.json")
"""Files that stand for the folder that they are in."""


class Found(NamedTuple):
    """What a report is asked of."""

    sources: "list[Source]"
    """Each has a page of its own."""
    runs: list[RunDir]


TO_HELP = "Folder for the files." + default_is(f"that of the record; for several runs, one under {REPORTS}")
OUT_HELP = "Folder of all that was stored." + default_is(f"{SWEEPS}, {RUNS}, {SIMULATIONS}, {VALIDATIONS} and {ADVICE}")
WHAT_HELP = (
    "Sweeps, runs, simulations, validations or advice: ids, unique parts of ids, folders, or 'last' for the newest "
    f"run; '{VALIDATIONS}' for all validations." + default_is("the newest sweep")
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
    found = _find(what or [], out)
    with people.status("drawing …"):
        folders = _folders(found, to)
        files = [file for source in found.sources for file in _source(source, format, next(folders))]
        files += _runs(found.runs, format, next(folders)) if found.runs else []
    for file in files:
        results.print(str(file), markup=False)
    if files and format == "html":
        people.print("open report.html in a browser; it needs no network", markup=False)


def _folders(found: Found, to: Path | None) -> Iterator[Path | None]:
    """Yield where each page goes: to folders of their own where there are several, whatever they are called."""
    from manyhands.report.files import folder_of

    names = [folder_of(source).resolve().name for source in found.sources]
    names += [_name_of_runs(found.runs)] if found.runs else []
    for i, name in enumerate(names):
        before = names[:i].count(name)
        own = f"{name}-{before + 1}" if before else name
        yield to / own if to and len(names) > 1 else to


def _name_of_runs(runs: Sequence[RunDir]) -> str:
    first = runs[0].path.resolve().name
    return first if len(runs) == 1 else f"{first}-and-{len(runs) - 1}-more"


def _source(source: "Source", format: str, folder: Path | None) -> list[Path]:
    """Write the report of what has a page of its own, or print it; return the files."""
    from manyhands.report import files  # drawing libraries are slow to import

    if format == "html":
        return files.write(source, folder)
    if format == "png":
        return files.write_pictures(source, folder)
    page = files.page_of(source)
    return _text(page.markdown if format == "markdown" else page.csv, format, folder)


def _runs(runs: Sequence[RunDir], format: str, to: Path | None) -> list[Path]:
    """Write a report of some runs, or print it; return the files."""
    from manyhands.report import files

    folder = to or (runs[0].path if len(runs) == 1 else REPORTS / _name_of_runs(runs))
    if format == "html":
        return files.write(runs, folder)
    if format == "png":
        return files.write_pictures(runs, folder)
    page = files.page_of(runs)
    return _text(page.markdown if format == "markdown" else page.csv, format, to)


def _text(text: str, format: str, to: Path | None) -> list[Path]:
    from manyhands.report.files import write_texts

    if to:
        return write_texts(to, {"report.md" if format == "markdown" else "report.csv": text})
    sys.stdout.write(text)
    return []


def _find(names: Sequence[str], out: Path | None) -> Found:
    """Return what has these names; the newest sweep for none."""
    sweeps = [sweep for sweep in SweepDir.all_in(out or SWEEPS) if sweep.record.is_file()]
    if not names:
        check(bool(sweeps), f"there are no sweeps under '{out or SWEEPS}' yet; try: manyhands scale strong mlp")
        return Found([sweeps[-1]], [])
    runs = RunDir.all_in(out or RUNS)
    known: list[Stored] = [*sweeps, *runs, *SimulationDir.all_in(out or SIMULATIONS)]
    known += [*ValidationDir.all_in(out or VALIDATIONS), *AdviceDir.all_in(out or ADVICE)]
    found = Found([], [])
    for name in names:
        here = _path(Path(name)) if out is None or name not in HINTS else _all_of(name, out)
        one = here or _named(name, known, runs)
        if isinstance(one, RunDir):
            found.runs.append(one)
        else:
            found.sources.append(one)
    return found


def _all_of(name: str, out: Path) -> "Source | None":
    """Return the newest simulation or advice of another folder than the usual, or all its validations."""
    if name == "validations":
        return out / LEDGER if (out / LEDGER).is_file() else None
    found: list[Source] = [*(SimulationDir.all_in(out) if name == "simulations" else AdviceDir.all_in(out))]
    return found[-1] if found else None


def _path(path: Path) -> "Source | RunDir | None":
    """Return what a folder, or the record in it, is of; None where this is no path."""
    if path.suffix == ".jsonl" and path.is_file():
        return path
    folder = path.parent if path.name in RECORDS else path
    for kind in (SweepDir, SimulationDir, ValidationDir, AdviceDir, RunDir):
        if kind(folder).record.is_file():
            return kind(folder)
    if RunDir(folder).toml.is_file():
        return RunDir(folder)
    if (folder / LEDGER).is_file():
        return folder / LEDGER
    if simulations := SimulationDir.all_in(path):
        people.print(f"the newest of {len(simulations)} simulations in '{path}'", markup=False, soft_wrap=True)
        return simulations[-1]
    if advice := AdviceDir.all_in(path):
        people.print(f"the newest of {len(advice)} pieces of advice in '{path}'", markup=False, soft_wrap=True)
        return advice[-1]
    if ValidationDir.all_in(path):
        raise UserError(f"'{path}' has no {LEDGER}: no validation was completed yet; name one that was stopped")
    if path.exists():
        names = "sweep.json, record.json, simulation.json, validation.json or advice.json"
        raise UserError(f"there is nothing to report in '{path}': it has no {names}, and no {LEDGER}")
    return None


HINTS = {
    "validations": "manyhands validate mlp --workers 1,2",
    "simulations": "manyhands simulate mlp --nodes 1,2,4",
    "advice": "manyhands advise mlp --target-accuracy 0.9",
}
"""What makes the folders that people name before there are any."""


def _named(name: str, known: list[Stored], runs: list[RunDir]) -> Stored:
    """Return what has this id or unique part of one."""
    if name == "last" and runs:
        return runs[-1]
    exact = [each for each in known if name == each.path.name]
    found = exact or [each for each in known if name in each.path.name]
    check(len(found) <= 1, f"'{name}' fits {len(found)} of what is stored here; give more of the id")
    hint, be = HINTS.get(name.rstrip("/")), "are" if name.rstrip("/").endswith("s") else "is"
    check(bool(found) or not hint, f"there {be} no {name.rstrip('/')} here yet; try: {hint}")
    check(bool(known), f"there is no '{name}', and nothing else to report here; try: manyhands scale strong mlp")
    if not found:
        unknown("sweep, run, simulation, validation or advice", name, _newest(known))
    return found[0]


def _newest(known: list[Stored]) -> list[str]:
    """Return the last names of each kind."""
    kinds = (SweepDir, RunDir, SimulationDir, ValidationDir, AdviceDir)
    return [each.path.name for kind in kinds for each in [k for k in known if isinstance(k, kind)][-3:]]
