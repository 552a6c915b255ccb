"""Papers' tables: each published figure, ours beside it, and the verdict; on a terminal and in Markdown."""

from collections import Counter

from manyhands.record.papers import (
    FigureKind,
    PaperFigure,
    ReproducedPaper,
    ReproducedRow,
    ReproducedTable,
    ReproductionRecord,
    Verdict,
)
from manyhands.record.texts import NOTHING, count, duration, fixed
from manyhands.report.scores import grouped
from manyhands.report.tables.table import Column, Table, as_markdown

WORDS: dict[Verdict, str] = {"not": "not reproduced", "shown": NOTHING}
"""Verdicts that are written otherwise in a table."""
COUNTED: dict[Verdict, str] = {"not": "not reproduced", "shown": "without a verdict"}
"""Verdicts that are written otherwise in the summary."""
TIMES: tuple[FigureKind, ...] = ("time", "speed-up", "improvement")
CROWDED = "†"
"""Mark of times and speed-ups of more workers than cores."""
PREDICTED = "‡"
"""Mark of figures that were predicted, not measured."""
GAP = 1
"""Blanks between two columns."""


def headline(table: ReproducedTable) -> str:
    """Return a table's name and title: `table 1: strong scaling`."""
    return f"{table.name}: {table.title}" if table.title else table.name


def tables_of(table: ReproducedTable, width: int = 0) -> list[Table]:
    """Return the table; where it is wider than `width` characters, in parts that all begin with the labels.

    Rows without a figure, neither of the paper nor of ours, are left to `whys`.
    """
    rows = [row for row in table.rows if _is_sentences(table) or any(f.published or f.ours for f in row.figures)]
    if not rows:
        return []
    labels = _words(table.headings, [row.labels for row in rows], folds=True)
    verdicts = _words(["verdict"], [[WORDS.get(row.verdict, row.verdict)] for row in rows])
    if _is_sentences(table):
        return [_joined([labels, verdicts, _words(["by"], [[row.why] for row in rows], folds=True)])]
    figures = [_figures(rows, i) for i in range(len(rows[0].figures))]
    parts = [[labels]]
    for group in [*figures, verdicts]:
        if width and len(parts[-1]) > 1 and sum(map(_width, [*parts[-1], group])) > width:
            parts.append([labels])
        parts[-1].append(group)
    return [_joined(part) for part in parts]


def _width(table: Table) -> int:
    return sum(max(map(len, texts)) + GAP for texts in zip(table.headings, *table.rows, strict=True))


def whys(table: ReproducedTable) -> list[str]:
    """Return the reasons for the verdicts, each with the rows that have it."""
    rows = [] if _is_sentences(table) else [row for row in table.rows if row.why]
    heading = f"{table.headings[0]} " if len(table.headings) == 1 else ""
    return [
        f"{heading}{', '.join(' '.join(row.labels) for row in alike)}: {why}"
        for why, alike in grouped(rows, lambda row: row.why).items()
    ]


def _is_sentences(table: ReproducedTable) -> bool:
    """Tell whether the rows are sentences of the paper, which have a reason but no figures."""
    return not any(row.figures for row in table.rows)


def summary(record: ReproductionRecord) -> str:
    """Count all rows by their verdict."""
    rows = [row for paper in record.papers for table in paper.tables for row in table.rows]
    counts = Counter(COUNTED.get(row.verdict, row.verdict) for row in rows)
    listed = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
    return f"{len(rows)} rows: {listed or 'nothing to judge'}"


def circumstances(record: ReproductionRecord) -> str:
    """Return one line on the machine, the repeats and the time taken."""
    hardware, quick = record.hardware, ", --quick" if record.quick else ""
    how = f"{count(record.repeats, 'repeat')}{quick}, {len(record.taken)} runs in {duration(record.wall_s)}"
    noise = "; one run each cannot tell a slow program from a busy machine" if record.repeats == 1 else ""
    return f"{hardware.get('cores')} cores of {hardware.get('cpu')}; {how}{noise}"


def markdown(record: ReproductionRecord) -> str:
    """Return all papers' tables and verdicts in Markdown."""
    lines = [f"Made by `{record.command}` on {circumstances(record)}.", "", f"{summary(record)}.", ""]
    for paper in record.papers:
        lines += _paper(paper)
    lines += ["## How the verdicts are found", *(f"- {rule}" for rule in record.rules)]
    return "\n".join(lines) + "\n"


def _paper(paper: ReproducedPaper) -> list[str]:
    lines = [f"## Paper {paper.number}: {paper.title}", ""]
    for table in paper.tables:
        name = headline(table)
        lines += [f"**{name[:1].upper()}{name[1:]}**", "", *map(as_markdown, tables_of(table))]
        lines += [f"- {line}" for line in (*whys(table), *table.notes)] + [""]
    return [*lines, paper.left_out, ""] if paper.left_out else lines


def _figures(rows: list[ReproducedRow], i: int) -> Table:
    """Return the columns of the rows' i-th figure: the paper's, where it has one, ours, and what was predicted."""
    figures = [row.figures[i] for row in rows]
    columns = {"ours": [ours_text(row.figures[i], crowded=row.oversubscribed) for row in rows]}
    if any(figure.published for figure in figures):
        columns = {"paper": [figure.published or NOTHING for figure in figures], **columns}
    if any(figure.predicted for figure in figures):
        columns["predicted"] = [predicted_text(figure) for figure in figures]
    first, *others = columns
    headings = [f"{figures[0].column}: {first}", *others]
    return Table(
        [Column(heading) for heading in headings], [list(texts) for texts in zip(*columns.values(), strict=True)]
    )


def _words(headings: list[str], cells: list[list[str]], *, folds: bool = False) -> Table:
    return Table([Column(heading, left=True, folds=folds) for heading in headings], cells)


def predicted_text(figure: PaperFigure) -> str:
    """Return a predicted figure as text, with its mark and its interval."""
    if figure.predicted is None:
        return NOTHING
    ends = (figure.predicted.value, figure.predicted.low, figure.predicted.high)
    value, low, high = (fixed(end, figure.decimals) for end in ends)
    return f"{value}{PREDICTED}" + (f" ({low}–{high})" if low != high else "")


def ours_text(figure: PaperFigure, *, crowded: bool) -> str:
    """Return our figure as text: a time with the ratio of the paper's time to it, a speed-up with its interval."""
    if figure.ours is None:
        return NOTHING
    value, low, high = (fixed(x, figure.decimals) for x in (figure.ours.value, figure.ours.low, figure.ours.high))
    mark = CROWDED if crowded and figure.kind in TIMES else ""
    if figure.faster is not None:
        return f"{value} ({figure.faster:.3g}×)"
    spread = f" ({low}–{high})" if figure.kind in TIMES[1:] and low != high else ""
    return f"{value}{mark}{spread}"


def _joined(groups: list[Table]) -> Table:
    """Put tables of the same rows side by side."""
    columns = [column for group in groups for column in group.columns]
    rows = [[cell for cells in row for cell in cells] for row in zip(*(group.rows for group in groups), strict=True)]
    return Table(columns, rows)
