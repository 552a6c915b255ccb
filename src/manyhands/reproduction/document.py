"""Make the document of the papers from records: tables are compared anew, by the rules of today."""

from collections.abc import Sequence
from pathlib import Path

from manyhands.errors import check
from manyhands.record.files import write_atomically
from manyhands.record.papers import ReproductionDir, ReproductionRecord
from manyhands.report.document import Machines, PaperText, document
from manyhands.report.paper_figures import paper_figure
from manyhands.reproduction.base import HostFacts
from manyhands.reproduction.compare import compare
from manyhands.reproduction.papers import ALL, papers_of
from manyhands.reproduction.readings import Readings
from manyhands.reproduction.verdict import RULES

HEAD = """\
# The papers it grew out of

```sh minutes
manyhands reproduce 001 --quick                        # a paper's tables beside ours
manyhands reproduce all --quick                        # about 5 minutes on 2 cores
manyhands reproduce 003 --repeats 3
manyhands reproduce 003 --resume                       # go on with one that was stopped
manyhands reproduce all --budget 600                   # stop after ten minutes; --resume goes on
manyhands reproduce --document docs/papers.md --records benchmarks/papers/records
```

Each table is run with the paper's own settings; a row shows the published figure, ours and a verdict. Rows that ask
for more workers than a machine has cores are measured all the same and marked †: their accuracy is judged, their
speed-up never. Without `--quick` they are also predicted, marked ‡, from calibrations of the tasks, which take about
a minute each where there are none. A prediction has a column and words of its own; it never counts as reproduced.
With no paper named, `manyhands reproduce` lists them. `reproductions/<id>/` keeps the record and the tables, ready to
paste.

The last command has made this page from the records in `benchmarks/papers/records`; its figures come from there,
those in sentences, too. Paper 003's loss of accuracy with large batches, and how to keep it:
[strategies.md](strategies.md#large-batches). Paper 004's cross-validation: [use.md](use.md#cross-validation).
"""
"""Begin of the document."""


def read_records(folder: Path) -> list[ReproductionRecord]:
    """Return the records of all reproductions below a folder, compared with the papers as they are defined now."""
    paths = sorted(path.parent for path in folder.rglob(ReproductionDir.record_file))
    check(bool(paths), f"there is no record of a reproduction below '{folder}'")
    return [compared(ReproductionDir(path).read()) for path in paths]


def compared(record: ReproductionRecord) -> ReproductionRecord:
    """Return a record whose tables are made from its runs and predictions."""
    hardware = record.hardware
    machine = HostFacts(hardware["cores"], len(hardware["gpus"]), ray="ray" in record.versions)
    readings = Readings(record.taken, quick=record.quick)
    papers = papers_of(record.asked, machine)
    tables = [compare(paper, readings, machine.cores, record.predictions) for paper in papers]
    return record.model_copy(update={"papers": tables, "rules": list(RULES)})


def compact(record: ReproductionRecord) -> ReproductionRecord:
    """Return a record to keep for the document: its runs and predictions, without tables, host and folders."""
    runs = [run.model_copy(update={"run": ""}) for run in record.taken]
    hardware = {**record.hardware, "host": ""}
    return record.model_copy(update={"papers": [], "rules": [], "taken": runs, "hardware": hardware})


def make_document(records: Sequence[ReproductionRecord]) -> str:
    """Return the document in Markdown."""
    papers = papers_of(ALL, HostFacts(1))
    texts = [
        PaperText(paper.number, paper.title, paper.by, paper.about, paper.left_out, paper.story) for paper in papers
    ]
    return document(records, texts, HEAD)


def write_document(records: Sequence[ReproductionRecord], path: Path) -> list[Path]:
    """Write the document, and a picture of each paper beside it; return the files."""
    from manyhands.report.png_drawing import save_pictures  # imports matplotlib

    machines = Machines(records)
    write_atomically(path, make_document(records))
    figures = [paper_figure(machines, number) for number in dict.fromkeys(number for number, _ in machines.tables)]
    return [path, *(file for figure in figures for file in save_pictures([figure], figure.title, path.parent))]
