"""Write reports into files: the page, Markdown, CSV and pictures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from manyhands.errors import UserError, check
from manyhands.record.advice import AdviceDir
from manyhands.record.files import write_atomically
from manyhands.record.run import RunDir
from manyhands.record.simulation import SimulationDir, ValidationDir, read_validations
from manyhands.record.status import record_of
from manyhands.record.sweep import SweepDir
from manyhands.report.advice import advice_page
from manyhands.report.html import Page, render
from manyhands.report.runs import runs_page
from manyhands.report.simulations import simulation_page
from manyhands.report.sweeps import sweep_page
from manyhands.report.validations import ledger_record, validations_page

Source = SweepDir | SimulationDir | AdviceDir | ValidationDir | Path | Sequence[RunDir]
"""The content of one page: a sweep, a simulation, advice, a validation, the file of all validations, or some runs."""


def folder_of(source: Source) -> Path:
    """Return the folder of the record, where its report goes unless another folder is named."""
    if isinstance(source, Path):
        return source.parent
    return source[0].path if isinstance(source, Sequence) else source.path


def page_of(source: Source) -> Page:
    """Return the page of a source; a missing or damaged record is a user error."""
    match source:
        case SweepDir():
            return sweep_page(source, source.read())
        case SimulationDir():
            return simulation_page(source, source.read())
        case AdviceDir():
            return advice_page(source, source.read())
        case ValidationDir():
            return validations_page(source.path, source.read())
        case Path():
            rows = read_validations(source)
            check(bool(rows), f"'{source}' is empty: no validation was completed yet")
            return validations_page(source, ledger_record(rows))
        case _:
            return runs_page([(run, record_of(run)) for run in source])


def write(source: Source, to: Path | None = None) -> list[Path]:
    """Write a report beside its record, or to another folder; return the files, the page first."""
    page, folder = page_of(source), to or folder_of(source)
    texts = {"report.html": render(page), "report.md": page.markdown, "report.csv": page.csv}
    return [*write_texts(folder, texts), *_draw_pictures(page, folder)]


def write_pictures(source: Source, to: Path | None = None) -> list[Path]:
    """Draw a report's PNGs beside its record, or in another folder; return the files."""
    return _draw_pictures(page_of(source), to or folder_of(source))


def _draw_pictures(page: Page, folder: Path) -> list[Path]:
    from manyhands.report.png_drawing import save_pictures  # loading matplotlib takes longer than all the rest

    with _writing_to(folder):
        return save_pictures(page.figures, page.title, folder)


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts to files of a folder, by their names; return the files."""
    with _writing_to(folder):
        for name, text in texts.items():
            printable = text.encode(errors="backslashreplace").decode()  # a path in it may be no UTF-8
            write_atomically(folder / name, printable)
    return [folder / name for name in texts]


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Make the folder; raise a user error where that, or writing to it, fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"cannot write a report to '{folder}': {error.strerror or error}") from None
