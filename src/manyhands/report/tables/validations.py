"""The tables of validations: every prediction against its runs, and scores of groups of predictions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from manyhands.record.simulation import Validation
from manyhands.record.texts import NOTHING, count, fixed, milliseconds, percent, plain, plus_minus, signed_percent
from manyhands.report.scores import ERROR_PCT, FEWEST, HELD_PCT, Holding, Name, PredictionScore, grouped, score
from manyhands.report.tables.table import Column, Table, attribute, estimated, fields, numbers, tabulate
from manyhands.report.words import task_name

ROWS: tuple[Column[Validation], ...] = (
    Column("workers", lambda row: f"{row.workers}{'†' if row.oversubscribed else ''}"),
    attribute("batch_size", "batch", plain, drop=5),
    estimated("predicted_ms", "predicted", milliseconds),
    attribute("median_ms", "measured", milliseconds),
    attribute("error_pct", "error", signed_percent, drop=1),
    attribute("noise_pct", "noise", plus_minus, drop=3),
    Column("runs held", lambda row: f"{row.held} of {len(row.measured_ms)}", drop=2),
)
"""Columns of a prediction, after those of `parts_of`."""
NUMBERS: tuple[Column[Validation], ...] = (
    *fields("id", "task", "engine", "hosts", "workers", "servers", "sync", "batch_size"),
    *fields("predicted", "measured", "method"),
    Column(csv="predicted_ms", bounds=True),
    *fields("median_ms", "error_pct", "noise_pct", "held", "oversubscribed", "steps"),
    Column(csv="runs", number=lambda row: len(row.measured_ms)),
    Column(csv="failed", number=lambda row: len(row.failed)),
    Column(csv="measured_ms", number=lambda row: " ".join(map(repr, row.measured_ms))),
    *fields("machine", "calibrated"),
)
"""Columns of the spreadsheet."""


def parts_of(rows: Sequence[Validation]) -> dict[str, Name]:
    """Return the parts of a configuration's name; with the number of hosts where some runs had several."""
    several = any(row.hosts > 1 for row in rows)
    return {
        "task": lambda row: task_name(row.task),
        "engine": lambda row: row.engine,
        **({"hosts": lambda row: count(row.hosts, "host")} if several else {}),
        "sync": lambda row: row.sync,
    }


def rows_table(rows: Sequence[Validation]) -> Table:
    """Return the table of all predictions."""
    parts = [Column(name, text, drop=6 if name == "task" else 0, left=True) for name, text in parts_of(rows).items()]
    caption = "Step times, predicted (90 % interval) and measured (median of the runs)"

    def mark(row: Validation) -> str:
        return "shared" if row.oversubscribed else "" if row.holds_median else "failed"

    return tabulate([*parts, *ROWS], rows, caption, mark)


def numbers_table(rows: Sequence[Validation]) -> Table:
    """Return the spreadsheet of all predictions: numbers in full precision, with the units in the headings."""
    return numbers(NUMBERS, rows)


class ScoredGroup(NamedTuple):
    """The names that a group of predictions has in common, and its score; None where none is counted."""

    names: tuple[str, ...]
    score: PredictionScore | None


HOLDING: dict[Holding, str] = {"right": "yes", "too few": "below", "too many": "above", "too few runs": NOTHING}


def _judged(
    heading: str, text: Callable[[PredictionScore], str], about: str, *, left: bool = False
) -> Column[ScoredGroup]:
    """Return a column of a group's score; a dash where it has none."""
    return Column(heading, lambda group: text(group.score) if group.score else NOTHING, about, left=left)


JUDGED: tuple[Column[ScoredGroup], ...] = (
    Column(
        "cases",
        lambda group: str(group.score.cases if group.score else 0),
        "Configurations that were predicted and run; those with more ranks than cores are not counted",
    ),
    _judged(
        "median error",
        lambda score: percent(score.error_pct),
        "Of the predicted step time against the median of the runs; half of the cases are nearer",
    ),
    _judged(
        "noise",
        lambda score: plus_minus(score.noise_pct),
        "Half the distance between the quartiles of a case's runs, over their median; the median of the cases",
    ),
    _judged(
        "aim",
        lambda score: f"≤ {fixed(score.aim_pct, 1)} %",
        f"{ERROR_PCT:g} %, or the noise where that is more",
    ),
    _judged(
        "error in aim",
        lambda score: "yes" if score.is_near else "no",
        "Whether the median error is within the aim",
        left=True,
    ),
    _judged(
        "held",
        lambda score: f"{score.held} of {score.runs}",
        "How many runs lie within the prediction's 90 % interval",
    ),
    _judged("share", lambda score: percent(score.held_pct, 0), "The same as a percentage"),
    _judged(
        "share in aim",
        lambda score: HOLDING[score.holding],
        f"Whether it is {HELD_PCT[0]:g} to {HELD_PCT[1]:g} %; not said of fewer than {FEWEST} runs",
        left=True,
    ),
)
"""Columns of a score."""


def parts_table(rows: Sequence[Validation], parts: Iterable[Name]) -> Table:
    """Return the scores of all rows, and of the rows of each task, engine and so on."""
    groups = [ScoredGroup(("all",), score(rows))]
    for part in parts:
        named = grouped(rows, part)
        groups += [ScoredGroup((name,), score(alike)) for name, alike in named.items() if len(named) > 1]
    table = tabulate(
        [*_names(["predictions"]), *JUDGED],
        groups,
        "On the whole, and by task, engine, strategy and workers",
        _group_mark,
    )
    table.marks[0] = f"whole {table.marks[0]}".strip()
    return table


def combinations_table(rows: Sequence[Validation], parts: Mapping[str, Name]) -> Table:
    """Return the scores of each combination of a task, an engine and so on."""
    named = grouped(rows, lambda row: tuple(name(row) for name in parts.values()))
    groups = [ScoredGroup(names, score(alike)) for names, alike in named.items()]
    has_verdict = any(group.score and group.score.holding != "too few runs" for group in groups)
    judged = JUDGED if has_verdict else JUDGED[:-1]  # mostly there are too few runs
    return tabulate([*_names(parts), *judged], groups, "Each combination", _group_mark)


def _names(headings: Iterable[str]) -> list[Column[ScoredGroup]]:
    return [
        attribute("", heading, str, number=lambda group, i=i: group.names[i], left=True)
        for i, heading in enumerate(headings)
    ]


def _group_mark(group: ScoredGroup) -> str:
    if group.score is None:
        return "shared"
    return "" if group.score.is_near and group.score.holding != "too few" else "failed"
