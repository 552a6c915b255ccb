"""The papers' tables over all machines that measured them, as one Markdown document: `docs/papers.md`."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from manyhands.record.papers import PaperFigure, ReproducedRow, ReproductionRecord, Verdict
from manyhands.record.texts import NOTHING, count, fixed
from manyhands.report.papers import ours_text, predicted_text
from manyhands.report.scores import grouped
from manyhands.report.tables.table import Column, Table, as_markdown, markdown_text

JUDGED: tuple[Verdict, ...] = ("failed", "not", "better", "reproduced")
"""Verdicts of a comparison; the others say why there was none."""
UNJUDGED: tuple[Verdict, ...] = ("baseline", "oversubscribed", "not judged")
"""Verdicts without a comparison, the first of which is shown."""
WORDS: dict[Verdict, str] = {
    "not": "not reproduced",
    "oversubscribed": "too few cores",
    "shown": NOTHING,
}
EXPLAINED: tuple[Verdict, ...] = ("failed", "not", "better", "not judged")
"""Verdicts whose reasons stand under a table."""
PREDICTIONS = {
    "agrees": "predicted: agrees",
    "above": "predicted: disagrees, above",
    "below": "predicted: disagrees, below",
    "too wide": "predicted: too wide to judge",
    "": "",
}
WIDTH = 140
"""Letters of a line of prose."""
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
UNKNOWN = "(not measured yet)"

Place = tuple[str, str, tuple[str, ...]]
"""A row of all papers: the paper's number, the table's name, the row's labels."""


@final
@dataclass(frozen=True)
class PaperText:
    """What the document says of a paper besides its tables."""

    number: str
    title: str
    by: str
    """Authors, place and year."""
    about: str
    left_out: str
    """Tables and figures that are not rebuilt, and why."""
    story: str
    """Paragraphs in which `{TABLE/ROW/COLUMN/WHOSE}` stands for a figure."""


@final
class Machines:
    """The rows of all records, by the machine that measured them."""

    def __init__(self, records: Sequence[ReproductionRecord]) -> None:
        self.records = sorted(records, key=lambda record: (record.hardware["cores"], record.started))
        self.names = list(dict.fromkeys(machine_name(record) for record in self.records))
        self._rows: dict[Place, dict[str, ReproducedRow]] = {}
        self.tables: dict[tuple[str, str], tuple[str, list[str]]] = {}
        """Title and headings by paper and table, in their order."""
        self._notes: dict[tuple[str, str], dict[str, list[str]]] = {}
        for record in self.records:
            for paper in record.papers:
                for table in paper.tables:
                    self.tables.setdefault((paper.number, table.name), (table.title, table.headings))
                    self._notes.setdefault((paper.number, table.name), {})[machine_name(record)] = table.notes
                    for row in table.rows:
                        place = paper.number, table.name, tuple(row.labels)
                        self._keep(place, machine_name(record), row)

    def _keep(self, place: Place, machine: str, row: ReproducedRow) -> None:
        """Keep a row; of two records of one machine, that which has measured more of it."""
        rows = self._rows.setdefault(place, {})
        if machine not in rows or _num_measured(row) >= _num_measured(rows[machine]):
            rows[machine] = row

    def rows(self, number: str, table: str) -> dict[tuple[str, ...], dict[str, ReproducedRow]]:
        """Return the rows of a table by their labels, each by machine."""
        return {place[2]: rows for place, rows in self._rows.items() if place[:2] == (number, table)}

    def notes(self, number: str, table: str) -> list[str]:
        """Return the notes of a table, with the machine's name where not all machines have them."""
        of_machines = self._notes[number, table]
        lines = grouped(
            ((machine, note) for machine, notes in of_machines.items() for note in notes), lambda pair: pair[1]
        )
        return [
            note if len(pairs) == len(of_machines) else f"{', '.join(machine for machine, _ in pairs)}: {note}"
            for note, pairs in lines.items()
        ]

    def figure(self, number: str, text: str) -> str:
        """Return the figure that `TABLE/ROW/COLUMN/WHOSE` names, as text; an error in the name is a `KeyError`."""
        table, labels, column, whose = text.split("/")
        for known, rows in self.rows(number, table).items():
            if " ".join(known) == labels:
                return self._of(rows, column, whose)
        raise KeyError(f"paper {number} has no row '{labels}' in '{table}'")

    def _of(self, rows: Mapping[str, ReproducedRow], column: str, whose: str) -> str:
        figures = {m: figure for m, row in rows.items() for figure in row.figures if figure.column == column}
        if not figures:
            raise KeyError(f"there is no column '{column}'")
        if whose == "paper":
            return next(iter(figures.values())).published
        if whose == "predicted":
            texts = [predicted_text(figure) for figure in figures.values() if figure.predicted]
            return texts[0] if texts else UNKNOWN
        for machine, figure in figures.items():
            if machine.split()[0] == whose and figure.ours:
                return fixed(figure.ours.value, figure.decimals)
        return UNKNOWN


def machine_name(record: ReproductionRecord) -> str:
    """Return a short name of a record's machine: its cores, and its GPU."""
    hardware = record.hardware
    gpus = [name.removeprefix("NVIDIA ") for name in hardware.get("gpus", [])]
    return " + ".join([f"{hardware['cores']} cores", *gpus[:1]])


def document(records: Sequence[ReproductionRecord], texts: Iterable[PaperText], head: str) -> str:
    """Return the whole document: `head`, the machines, and for each paper its story, picture and tables."""
    machines = Machines(records)
    lines = [head.strip(), "", "## Measured on", ""]
    for record in machines.records:
        lines.append(f"- {_circumstances(record)}")
    lines += ["", *(f"- {rule}" for rule in machines.records[0].rules), ""]
    for text in texts:
        lines += _paper(machines, text)
    return "\n".join(lines).rstrip() + "\n"


def picture_name(number: str) -> str:
    """Return the file name of a paper's picture, without the ending."""
    return f"paper-{number}"


def _circumstances(record: ReproductionRecord) -> str:
    hardware = record.hardware
    done = "" if record.status == "complete" else "; stopped before its end, so that some rows are missing"
    numbers = ", ".join(paper.number for paper in record.papers)
    return (
        f"**{machine_name(record)}** of {hardware.get('cpu')}, {record.started[:10]}, papers {numbers}: "
        f"{count(len(record.taken), 'run')} by `{record.command}`, {count(record.repeats, 'repeat')}{done}"
    )


def _paper(machines: Machines, text: PaperText) -> list[str]:
    number = text.number
    story = PLACEHOLDER.sub(lambda match: machines.figure(number, match[1]), text.story)
    paragraphs = [textwrap.fill(part, WIDTH, break_on_hyphens=False) for part in story.strip().split("\n\n")]
    lines = [f"## Paper {number}: {text.title}", "", f"{text.by}. {text.about[:1].upper()}{text.about[1:]}.", ""]
    lines += [
        "\n\n".join(paragraphs),
        "",
        f"![Paper {number}]({picture_name(number)}.png)",
        "",
        f"{_counted(machines, number)} {text.left_out}",
        "",
    ]
    for of, name in machines.tables:
        if of == number:
            lines += _table(machines, number, name)
    return lines


def _counted(machines: Machines, number: str) -> str:
    """Count the judged rows by their verdict, machine by machine."""
    texts = []
    for machine in machines.names:
        rows = [
            by_machine[machine]
            for of, table in machines.tables
            if of == number
            for by_machine in machines.rows(number, table).values()
            if machine in by_machine
        ]
        counts = Counter(WORDS.get(row.verdict, row.verdict) for row in rows if row.verdict in JUDGED)
        listed = ", ".join(f"{many} {verdict}" for verdict, many in counts.most_common())
        texts.append(f"{machine}: of {count(len(rows), 'row')}, {listed or 'none judged'}")
    return f"Rows on {'; on '.join(texts)}."


def _table(machines: Machines, number: str, name: str) -> list[str]:
    title, headings = machines.tables[number, name]
    rows = machines.rows(number, name)
    heading = f"{name}: {title}" if title else name
    lines = [f"### {heading[:1].upper()}{heading[1:]}", ""]
    if not any(row.figures for by_machine in rows.values() for row in by_machine.values()):
        return [*lines, as_markdown(_claims(rows))]
    table = _figures(machines, headings, rows)
    notes = [*_reasons(rows), *machines.notes(number, name)]
    shown = as_markdown(table) if table.rows else "None of its rows was measured.\n"
    return [*lines, shown, *(f"- {markdown_text(note)}" for note in notes), *([""] if notes else [])]


def _claims(rows: Mapping[tuple[str, ...], Mapping[str, ReproducedRow]]) -> Table:
    texts = [
        [labels[0], machine, WORDS.get(row.verdict, row.verdict), row.why]
        for labels, by_machine in rows.items()
        for machine, row in by_machine.items()
    ]
    return Table([Column(heading, left=True) for heading in ("sentence", "on", "verdict", "by")], texts)


def _figures(
    machines: Machines, headings: list[str], rows: Mapping[tuple[str, ...], Mapping[str, ReproducedRow]]
) -> Table:
    """Return one line for each figure that the paper or we have; columns without any are left out, and so are times of
    which the paper has none."""
    names = ["paper", *machines.names, "predicted", "verdict"]
    lines: list[tuple[list[str], str, list[str]]] = []
    all_rows = [row for by_machine in rows.values() for row in by_machine.values()]
    for labels, by_machine in rows.items():
        for i, first in enumerate(next(iter(by_machine.values())).figures):
            figures = {machine: row.figures[i] for machine, row in by_machine.items() if i < len(row.figures)}
            ours = [
                ours_text(figures[machine], crowded=by_machine[machine].oversubscribed)
                if machine in figures
                else NOTHING
                for machine in machines.names
            ]
            predicted = next((predicted_text(f) for f in figures.values() if f.predicted), NOTHING)
            texts = [first.published or NOTHING, *ours, predicted]
            is_bare_time = first.kind == "time" and not any(row.figures[i].published for row in all_rows)
            if any(text != NOTHING for text in texts) and not is_bare_time:
                lines.append((list(labels), first.column, [*texts, _verdict(figures)]))
    kept = [i for i in range(len(names)) if any(texts[i] != NOTHING for *_, texts in lines)]
    several = len({column for _, column, _ in lines}) > 1
    columns: list[Column[Any]] = [
        Column(heading, left=True) for heading in (*headings, *(["figure"] if several else []))
    ]
    columns += [Column(names[i], left=names[i] == "verdict") for i in kept]
    return Table(
        columns,
        [[*labels, *([column] if several else []), *(texts[i] for i in kept)] for labels, column, texts in lines],
    )


def _verdict(figures: Mapping[str, PaperFigure]) -> str:
    """Return the verdict of a figure over all machines; that of a prediction stands behind it."""
    judged = {machine: figure.verdict for machine, figure in figures.items() if figure.verdict in JUDGED}
    by_verdict = grouped(judged.items(), lambda pair: pair[1])
    if judged:
        is_same = len(by_verdict) == 1 and len(judged) == len(figures)
        texts = [
            WORDS.get(verdict, verdict) + ("" if is_same else f" ({', '.join(machine for machine, _ in pairs)})")
            for verdict, pairs in by_verdict.items()
        ]
    else:
        others = [figure.verdict for figure in figures.values() if figure.kind != "time"]
        unjudged: Verdict = next((verdict for verdict in UNJUDGED if verdict in others), "shown")
        texts = [WORDS.get(unjudged, unjudged)]
        if all(figure.ours is None for figure in figures.values()):
            texts = ["not measured"]
    predictions = {PREDICTIONS[figure.predicted.verdict] for figure in figures.values() if figure.predicted}
    return "; ".join([text for text in (*texts, *sorted(predictions)) if text and text != NOTHING] or [NOTHING])


def _reasons(rows: Mapping[tuple[str, ...], Mapping[str, ReproducedRow]]) -> list[str]:
    """Return why figures are not reproduced, better or not judged, each reason with its rows."""
    lines = [
        (machine, " ".join(labels), figure)
        for labels, by_machine in rows.items()
        for machine, row in by_machine.items()
        for figure in row.figures
        if figure.verdict in EXPLAINED and figure.why and figure.kind != "time"
    ]
    alike = grouped(lines, lambda line: (line[0], line[2].verdict, line[2].why))
    return [
        f"{machine}, {_listed(figure.column for *_, figure in some)} of {_listed(labels for _, labels, _ in some)}: "
        f"{WORDS.get(verdict, verdict)}, {why}"
        for (machine, verdict, why), some in alike.items()
    ]


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _num_measured(row: ReproducedRow) -> int:
    return sum(figure.ours is not None for figure in row.figures)
