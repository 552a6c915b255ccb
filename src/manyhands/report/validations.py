"""The page of validations: predicted against measured, how good that is, and the same as Markdown."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.record.simulation import Validation, ValidationRecord
from manyhands.record.texts import count, day, milliseconds, percent, plus_minus, signed_percent, with_bounds
from manyhands.report.html import Page, Section, Tile
from manyhands.report.pages import facts
from manyhands.report.scatter import row_name, validation_figures
from manyhands.report.scores import HELD_PCT, PredictionScore, counted, grouped, score
from manyhands.report.tables.table import Table, as_csv, as_markdown, markdown_text, one_line, words_table
from manyhands.report.tables.validations import (
    JUDGED,
    combinations_table,
    numbers_table,
    parts_of,
    parts_table,
    rows_table,
)
from manyhands.report.words import Passage, task_name

MOST_TOLD = 8
"""Missed intervals that are told in words."""
UNBIASED_PCT = 1.0
"""A median error with its sign that is as good as none."""
FOOTER = "Errors are of the median of the runs; intervals of predictions hold 90 %."


@dataclass(frozen=True)
class Validated:
    """The validations that a page is about: all so far, or one."""

    name: str
    path: Path
    """What to name to draw it again."""
    rows: list[Validation]
    command: str = ""
    """What to type to validate it again; empty for several."""
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def all_of(path: Path, rows: list[Validation]) -> Validated:
    """Return all validations of a file."""
    return Validated("validations", path, rows)


def one_of(path: Path, record: ValidationRecord) -> Validated:
    """Return one validation, which may have been stopped."""
    stopped = record.status == "interrupted"
    return Validated(record.id, path, record.rows, record.command, record.failed, stopped)


def validations_page(what: Validated) -> Page:
    """Return the page of predictions against measurements."""
    rows = what.rows
    tasks = ", ".join(grouped(rows, lambda row: task_name(row.task)))
    return Page(
        kicker="manyhands validation report",
        title=f"{tasks}: predicted against measured" if rows else "predicted against measured",
        headline=headline(what),
        facts=circumstances(rows),
        tiles=_tiles(rows),
        sections=[
            Section("glance", "At a glance", pair=validation_figures(rows)),
            Section(
                "scores",
                "How good the predictions are",
                tables=_score_tables(rows),
                notes=notes(what),
                meanings=[(column.heading, column.about) for column in JUDGED],
            ),
            Section("off", "What was off", short=True, passages=passages(rows)),
            Section("numbers", "Every prediction", data=True, tables=[rows_table(rows)] if rows else []),
            Section("failed", "What failed", short=True, tables=_failed(what)),
            Section("machine", "The machine", short=True, facts=_machines(rows)),
            Section("again", "Run it again", short=True, commands=_commands(what)),
        ],
        markdown=validations_markdown(what),
        csv=as_csv(numbers_table(rows)),
        csv_name=f"{what.name}.csv",
        footer=FOOTER,
    )


def headline(what: Validated) -> str:
    """Say in two sentences how near predictions are, and how often their intervals hold."""
    found = score(what.rows)
    if found:
        return f"{_nearness(found)} {_holding(found)}"
    if what.rows:
        return "Nothing can be said of these predictions: all runs had more ranks than cores."
    stopped = " before the validation was stopped" if what.interrupted else ""
    return f"No run went well{stopped}, so there is nothing to compare predictions with."


def _nearness(found: PredictionScore) -> str:
    aim = f"the aim of {percent(found.aim_pct)}"
    if found.cases == 1:
        return f"The predicted step time is off by {percent(found.error_pct)}, {_side(found)} {aim}."
    return f"Predicted step times are off by {percent(found.error_pct)} in the median, {_side(found)} {aim}."


def _side(found: PredictionScore) -> str:
    return "within" if found.is_near else "beyond"


def _holding(found: PredictionScore) -> str:
    low, high = HELD_PCT
    aim = f"{low:.0f}–{high:.0f} %"
    held = f"The 90 % interval held in {found.held} of {count(found.cases, 'case')}"
    if found.holding == "too few cases":
        return f"{held}, too few cases to judge that by."
    share = f"{held} ({percent(found.held_pct, 0)}),"
    if found.holding == "too few":
        return f"{share} less often than the {aim} aimed at."
    if found.holding == "too many":
        return f"{share} more often than the {aim} aimed at: it is wider than it need be."
    return f"{share} within the aim of {aim}."


def circumstances(rows: list[Validation]) -> str:
    """Say in a line what was compared, where and when."""
    if not rows:
        return ""
    runs = sum(len(row.measured_ms) for row in rows)
    days = sorted(row.measured for row in rows)
    parts = [
        f"{count(len(rows), 'configuration')}, {count(runs, 'run')}",
        ", ".join(grouped(rows, lambda row: row.engine)),
        f"{_workers(rows)} workers",
        *list(grouped(rows, lambda row: row.machine))[:1],
        day(days[-1]) if days[0][:10] == days[-1][:10] else f"{_date(days[0])} to {_date(days[-1])}",
    ]
    return " · ".join(part for part in parts if part)


def _date(moment: str) -> str:
    return day(moment).partition(",")[0]


def _workers(rows: list[Validation]) -> str:
    counts = sorted({row.workers for row in rows})
    return ", ".join(map(str, counts)) if len(counts) < 6 else f"{counts[0]}–{counts[-1]}"


def _tiles(rows: list[Validation]) -> list[Tile]:
    found = score(rows)
    if not found:
        return []
    telling = counted(rows)
    worst = max(telling, key=lambda row: abs(row.error_pct))
    side = "too slow" if found.bias_pct > 0 else "too fast"
    bias = f"rather {side}" if abs(found.bias_pct) >= UNBIASED_PCT else "neither too slow nor too fast"
    left = len(rows) - len(telling)
    return [
        Tile("Median error", percent(found.error_pct), f"aim: at most {percent(found.aim_pct)}{_tick(found.is_near)}"),
        Tile(
            "Intervals that held",
            percent(found.held_pct, 0),
            f"{found.held} of {found.cases}; aim: {HELD_PCT[0]:.0f}–{HELD_PCT[1]:.0f} %{_tick(found.is_held)}",
        ),
        Tile("Bias", signed_percent(found.bias_pct), f"on the whole {bias}"),
        Tile("Noise of the runs", plus_minus(found.noise_pct), "median of the configurations"),
        Tile("Greatest error", signed_percent(worst.error_pct), row_name(worst)),
        *([Tile("Not counted", str(left), "had more ranks than cores")] if left else []),
    ]


def _tick(met: bool | None) -> str:
    return {True: " ✓", False: " ✗", None: ""}[met]


def _score_tables(rows: list[Validation]) -> list[Table]:
    parts = parts_of(rows)
    return [parts_table(rows, [*parts.values(), _by_workers]), combinations_table(rows, parts)] if rows else []


def _by_workers(row: Validation) -> str:
    return count(row.workers, "worker")


def notes(what: Validated) -> list[str]:
    """Say what is left out and what was stopped."""
    left = len(what.rows) - len(counted(what.rows))
    have = "configuration has" if left == 1 else "configurations have"
    found = [f"† {left} {have} more ranks than cores: such times say little, and are not counted"] if left else []
    return [*found, *(["the validation was stopped: what was not run is missing"] if what.interrupted else [])]


def passages(rows: list[Validation]) -> list[Passage]:
    """Say which combinations are beyond their aim, and which intervals were missed."""
    parts = parts_of(rows).values()
    groups = grouped(counted(rows), lambda row: tuple(name(row) for name in parts))
    scores = {names: found for names, own in groups.items() if (found := score(own)) and not found.is_near}
    far = [
        f"{', '.join(names)}: {percent(found.error_pct)} in the median of {count(found.cases, 'case')}, "
        f"aim {percent(found.aim_pct)}"
        for names, found in sorted(scores.items(), key=lambda each: -each[1].error_pct)
    ]
    missed = [
        f"{row_name(row)}: predicted {with_bounds(row.predicted_ms, milliseconds)}, "
        f"measured {milliseconds(row.median_ms)}"
        for row in sorted(counted(rows), key=lambda row: -abs(row.error_pct))
        if not row.held
    ]
    return [
        *([Passage("Beyond the aim", "", far[:MOST_TOLD], [], _more(far), [])] if far else []),
        *([Passage("Outside the interval", "", missed[:MOST_TOLD], [], _more(missed), [])] if missed else []),
    ]


def _more(lines: list[str]) -> list[str]:
    left = len(lines) - MOST_TOLD
    return [f"and {left} more"] if left > 0 else []


def _failed(what: Validated) -> list[Table]:
    lines = [[key, one_line(reason)] for key, reason in what.failed.items()]
    lines += [[row_name(row), one_line(reason)] for row in what.rows for reason in dict.fromkeys(row.failed)]
    return [words_table(["configuration", "reason"], lines, "Runs that failed")] if lines else []


def _machines(rows: list[Validation]) -> list[list[tuple[str, str]]]:
    """List where predictions come from, and the versions of the last."""
    if not rows:
        return []
    known = grouped(rows, lambda row: (row.machine, row.calibrated))
    about = [
        (machine, f"calibrated {day(made)}, {count(len(own), 'prediction')}") for (machine, made), own in known.items()
    ]
    return [about, facts(rows[-1].versions)]


def _commands(what: Validated) -> list[tuple[str, str]]:
    again = f"manyhands report {shlex.quote(str(what.path))}"
    return [
        *([("The validation:", what.command)] if what.command else []),
        ("This report, drawn again from the stored records:", again),
    ]


def validations_markdown(what: Validated) -> str:
    """Write what validations say for a README."""
    tables = [*_score_tables(what.rows), *([rows_table(what.rows)] if what.rows else [])]
    parts = [
        f"**{markdown_text(headline(what))}**",
        markdown_text(circumstances(what.rows)),
        *(as_markdown(table).rstrip() for table in tables),
        "\n".join(f"- {markdown_text(note)}" for note in notes(what)),
        f"Run it again:\n\n```sh\n{_commands(what)[0][1]}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
