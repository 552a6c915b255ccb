"""Write reports into files: the page, Markdown, CSV and pictures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from manyhands.errors import UserError
from manyhands.record import RunDir, SweepDir, write_atomically
from manyhands.report.html import render
from manyhands.report.pages import sweep_page
from manyhands.report.runs import Stored, runs_page

# Loading matplotlib takes longer than all the rest, so that pictures are imported where they are drawn.


def write(sweep: SweepDir, to: Path | None = None) -> list[Path]:
    """Write a sweep's report beside its record, or to another folder; return the files, the page first."""
    page = sweep_page(sweep, sweep.read())
    texts = {"report.html": render(page), "report.md": page.markdown, "report.csv": page.csv}
    folder = to or sweep.path
    return [*write_texts(folder, texts), *write_pictures(sweep, folder)]


def write_pictures(sweep: SweepDir, to: Path | None = None) -> list[Path]:
    """Draw a sweep's pictures beside its record, or in another folder; return the files."""
    from manyhands.report.pictures import sweep_pictures

    folder = make_folder(to or sweep.path)
    with _writing_to(folder):
        return sweep_pictures(sweep, sweep.read(), folder)


def write_runs(runs: Sequence[RunDir], to: Path) -> list[Path]:
    """Write one report of some runs to a folder; return the files, the page first."""
    page = runs_page(read_runs(runs))
    texts = {"report.html": render(page), "report.md": page.markdown, "report.csv": page.csv}
    return [*write_texts(to, texts), *write_run_pictures(runs, to)]


def write_run_pictures(runs: Sequence[RunDir], to: Path) -> list[Path]:
    """Draw the pictures of some runs in a folder; return the files."""
    from manyhands.report.pictures import run_pictures

    stored = read_runs(runs)
    with _writing_to(make_folder(to)):
        return run_pictures(stored, to)


def read_runs(runs: Sequence[RunDir]) -> list[Stored]:
    """Return the runs with their records; one without is a user error."""
    found = []
    for run in runs:
        record = run.read()
        if record is None:
            raise UserError(f"run '{run.path.name}' has no record that can be read: it did not end by itself")
        found.append((run, record))
    return found


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write some files into a folder; return them."""
    make_folder(folder)
    with _writing_to(folder):
        for name, text in texts.items():
            write_atomically(folder / name, text)
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
