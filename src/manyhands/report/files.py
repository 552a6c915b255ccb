"""Write reports into files: the page, Markdown, CSV and pictures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from manyhands.errors import UserError, check
from manyhands.record import RunDir, SweepDir, write_atomically
from manyhands.record.advice import AdviceDir
from manyhands.record.simulation import SimulationDir, ValidationDir, read_validations
from manyhands.record.status import record_of
from manyhands.report.advice import advice_page
from manyhands.report.html import Page, render
from manyhands.report.pages import sweep_page
from manyhands.report.runs import Stored, runs_page
from manyhands.report.simulations import simulation_page
from manyhands.report.validations import Validated, all_of, one_of, validations_page

Source = SweepDir | SimulationDir | AdviceDir | ValidationDir | Path
"""What has a page of its own: a sweep, a simulation, advice, a validation, or the file of all validations."""


def folder_of(source: Source) -> Path:
    """Return the folder of what a page is about, where its report goes unless another is named."""
    return source.parent if isinstance(source, Path) else source.path


def write(source: Source, to: Path | None = None) -> list[Path]:
    """Write a report beside its record, or to another folder; return the files, the page first."""
    return _write_all(page_of(source), to or folder_of(source))


def _write_all(page: Page, folder: Path) -> list[Path]:
    texts = {"report.html": render(page), "report.md": page.markdown, "report.csv": page.csv}
    return [*write_texts(folder, texts), *_draw_pictures(page, folder)]


def _draw_pictures(page: Page, folder: Path) -> list[Path]:
    from manyhands.report.png_drawing import save_pictures  # loading matplotlib takes longer than all the rest

    with _writing_to(make_folder(folder)):
        return save_pictures(page.figures, page.title, folder)


def page_of(source: Source) -> Page:
    """Set the page of a sweep, a simulation, advice, or validations."""
    match source:
        case SweepDir():
            return sweep_page(source, source.read())
        case SimulationDir():
            return simulation_page(source, source.read())
        case AdviceDir():
            return advice_page(source, source.read())
        case _:
            return validations_page(read_validated(source))


def write_pictures(source: Source, to: Path | None = None) -> list[Path]:
    """Draw a report's pictures beside its record, or in another folder; return the files."""
    return _draw_pictures(page_of(source), to or folder_of(source))


def read_validated(source: ValidationDir | Path) -> Validated:
    """Return one validation, or all of a file, of which there must be some."""
    if isinstance(source, ValidationDir):
        return one_of(source.path, source.read())
    rows = read_validations(source)
    check(bool(rows), f"'{source}' is empty: no validation was completed yet")
    return all_of(source, rows)


def write_runs(runs: Sequence[RunDir], to: Path) -> list[Path]:
    """Write one report of some runs to a folder; return the files, the page first."""
    return _write_all(runs_page(read_runs(runs)), to)


def write_run_pictures(runs: Sequence[RunDir], to: Path) -> list[Path]:
    """Draw the pictures of some runs in a folder; return the files."""
    return _draw_pictures(runs_page(read_runs(runs)), to)


def read_runs(runs: Sequence[RunDir]) -> list[Stored]:
    """Return the runs with their records; one without is a user error."""
    return [(run, record_of(run)) for run in runs]


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write some files into a folder; return them."""
    make_folder(folder)
    with _writing_to(folder):
        for name, text in texts.items():
            printable = text.encode(errors="backslashreplace").decode()  # a path in it may be no UTF-8
            write_atomically(folder / name, printable)
    return [folder / name for name in texts]


def make_folder(folder: Path) -> Path:
    """Make the folder of a report; one that cannot be made is a user error."""
    with _writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write a report to '{folder}': {error.strerror or error}") from None
