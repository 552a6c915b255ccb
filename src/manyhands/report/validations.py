"""The page of validations: predictions against measurements, and their scores."""

from collections.abc import Sequence
from pathlib import Path

from manyhands.record.simulation import Validation, ValidationRecord
from manyhands.record.texts import count, day, milliseconds, percent, plus_minus, signed_percent, with_bounds
from manyhands.report.html import Page, Section, Tile, again, facts, shell_block
from manyhands.report.scatter import errors, row_name, scatter
from manyhands.report.scores import HELD_PCT, PredictionScore, counted, grouped, score
from manyhands.report.tables.table import one_line, words_table
from manyhands.report.tables.validations import (
    JUDGED,
    combinations_table,
    numbers_table,
    parts_of,
    parts_table,
    rows_table,
)
from manyhands.report.words import Passage, dotted, task_name

MOST_LINES = 8
"""Most configurations that a passage names."""
UNBIASED_PCT = 1.0
"""Median error with its sign that counts as none."""
AIM = f"{HELD_PCT[0]:.0f}–{HELD_PCT[1]:.0f} %"


def ledger_record(rows: list[Validation]) -> ValidationRecord:
    """Return all validations of a file as one record."""
    return ValidationRecord(id="validations", task="", command="", rows=rows)


def validations_page(path: Path, record: ValidationRecord) -> Page:
    """Return the page of predictions against measurements, stored in `path`."""
    rows, parts = record.rows, parts_of(record.rows)
    by_part = [*parts.values(), lambda row: count(row.workers, "worker")]
    scores = [parts_table(rows, by_part), combinations_table(rows, parts)] if rows else []
    tasks = ", ".join(grouped(rows, lambda row: task_name(row.task)))
    failed = [[key, one_line(reason)] for key, reason in record.failed.items()]
    failed += [[row_name(row), one_line(reason)] for row in rows for reason in dict.fromkeys(row.failed)]
    failures = words_table(["configuration", "reason"], failed, "Runs that failed")
    repeat = again("The validation:", record.command, path)
    return Page(
        name=record.id,
        kicker="manyhands validation report",
        title=f"{tasks}: predicted against measured" if rows else "predicted against measured",
        headline=headline(record),
        facts=_circumstances(rows) if rows else "",
        tiles=_tiles(rows),
        sections=[
            Section("glance", "At a glance", pair=[scatter(rows), errors(rows)] if rows else []),
            Section(
                "scores",
                "How good the predictions are",
                tables=scores,
                notes=_notes(record),
                meanings=[(column.heading, column.about) for column in JUDGED],
            ),
            Section("off", "What was off", short=True, passages=_passages(rows)),
            Section("numbers", "Every prediction", data=True, tables=[rows_table(rows)]),
            Section("failed", "What failed", short=True, tables=[failures]),
            Section("machine", "The machine", short=True, facts=_machines(rows) if rows else []),
            repeat,
        ],
        numbers=numbers_table(rows),
        blocks=[*scores, rows_table(rows), _notes(record), shell_block("Run it again:", repeat.commands[0][1])],
        titled=False,
        footer="Errors are of the median of the runs; intervals of predictions should hold 90 % of the runs.",
    )


def headline(record: ValidationRecord) -> str:
    """Return two sentences: on the median error, and on how often the intervals held."""
    judged = score(record.rows)
    if judged:
        side = "within" if judged.is_near else "beyond"
        error = percent(judged.error_pct)
        off = f"The predicted step time is off by {error}"
        if judged.cases > 1:
            off = f"Predicted step times are off by {error} in the median"
        return f"{off}, {side} the aim of {percent(judged.aim_pct)}. {_holding(judged)}"
    if record.rows:
        return "Nothing can be said of these predictions: all runs had more ranks than cores."
    stopped = " before the validation was stopped" if record.status == "interrupted" else ""
    return f"No run went well{stopped}, so there is nothing to compare predictions with."


def _holding(judged: PredictionScore) -> str:
    verdicts = {
        "too few": f"less than the {AIM} aimed at.",
        "too many": f"more than the {AIM} aimed at: they are wider than they need be.",
        "right": f"within the aim of {AIM}.",
    }
    held = f"The 90 % intervals held {judged.held} of {count(judged.runs, 'run')}"
    if judged.holding == "too few runs":
        return f"{held}, too few to judge that by."
    return f"{held} ({percent(judged.held_pct, 0)}), {verdicts[judged.holding]}"


def _circumstances(rows: Sequence[Validation]) -> str:
    """Return one line on what was compared, where and when."""
    runs = sum(len(row.measured_ms) for row in rows)
    counts = sorted({row.workers for row in rows})
    workers = ", ".join(map(str, counts)) if len(counts) < 6 else f"{counts[0]}–{counts[-1]}"
    moments = sorted(row.measured for row in rows)
    first, last = (day(moment).partition(",")[0] for moment in (moments[0], moments[-1]))
    return dotted(
        f"{count(len(rows), 'configuration')}, {count(runs, 'run')}",
        ", ".join(grouped(rows, lambda row: row.engine)),
        f"{workers} workers",
        rows[0].machine,
        day(moments[-1]) if moments[0][:10] == moments[-1][:10] else f"{first} to {last}",
    )


def _tiles(rows: Sequence[Validation]) -> list[Tile]:
    judged, cases = score(rows), counted(rows)
    if not judged:
        return []
    worst = max(cases, key=lambda row: abs(row.error_pct))
    side = "too slow" if judged.bias_pct > 0 else "too fast"
    bias = f"rather {side}" if abs(judged.bias_pct) >= UNBIASED_PCT else "neither too slow nor too fast"
    left = len(rows) - len(cases)
    aim = f"aim: at most {percent(judged.aim_pct)} {'✓' if judged.is_near else '✗'}"
    tick = {"right": " ✓", "too few runs": ""}.get(judged.holding, " ✗")
    held = f"{judged.held} of {judged.runs}; aim: {AIM}{tick}"
    return [
        Tile("Median error", percent(judged.error_pct), aim),
        Tile("Runs within intervals", percent(judged.held_pct, 0), held),
        Tile("Bias", signed_percent(judged.bias_pct), f"on the whole {bias}"),
        Tile("Noise of the runs", plus_minus(judged.noise_pct), "median of the configurations"),
        Tile("Greatest error", signed_percent(worst.error_pct), row_name(worst)),
        *([Tile("Not counted", str(left), "had more ranks than cores")] if left else []),
    ]


def _notes(record: ValidationRecord) -> list[str]:
    """Return notes on rows that are not counted, and on a validation that was stopped."""
    left, notes = len(record.rows) - len(counted(record.rows)), []
    if left:
        have = "configuration has" if left == 1 else "configurations have"
        notes.append(f"† {left} {have} more ranks than cores: such times say little, and are not counted")
    if record.status == "interrupted":
        notes.append("the validation was stopped: what was not run is missing")
    return notes


def _passages(rows: Sequence[Validation]) -> list[Passage]:
    """Return passages on combinations beyond their aim and configurations outside their interval, the worst first."""
    parts = parts_of(rows).values()
    groups = grouped(counted(rows), lambda row: tuple(name(row) for name in parts))
    far = [(names, judged) for names, alike in groups.items() if (judged := score(alike)) and not judged.is_near]
    missed = [row for row in counted(rows) if not row.holds_median]
    lines = {
        "Beyond the aim": [
            f"{', '.join(names)}: {percent(judged.error_pct)} in the median of {count(judged.cases, 'case')}, "
            f"aim {percent(judged.aim_pct)}"
            for names, judged in sorted(far, key=lambda pair: -pair[1].error_pct)
        ],
        "Outside the interval": [
            f"{row_name(row)}: predicted {with_bounds(row.predicted_ms, milliseconds)}, "
            f"measured {milliseconds(row.median_ms)}"
            for row in sorted(missed, key=lambda row: -abs(row.error_pct))
        ],
    }
    passages = []
    for title, texts in lines.items():
        more = [f"and {len(texts) - MOST_LINES} more"] if len(texts) > MOST_LINES else []
        passages += [Passage(title, sentences=texts[:MOST_LINES], others=more)] if texts else []
    return passages


def _machines(rows: Sequence[Validation]) -> list[list[tuple[str, str]]]:
    """Return the calibrations that the predictions are from, and the versions of the last."""
    calibrations = grouped(rows, lambda row: (row.machine, row.calibrated))
    sources = [
        (machine, f"calibrated {day(moment)}, {count(len(alike), 'prediction')}")
        for (machine, moment), alike in calibrations.items()
    ]
    return [sources, facts(rows[-1].versions)]
