"""The page of a sweep, and the same as Markdown."""

import shlex
from collections.abc import Mapping
from typing import Any

from manyhands.record import Row, SweepDir, SweepRecord
from manyhands.record.labels import cell_name, cell_names, coverage, with_coverage
from manyhands.record.texts import NOTHING, num_bytes, percent, rate, times
from manyhands.report.curves import curves
from manyhands.report.figures import CAUSES, sweep_figures
from manyhands.report.histories import losses, runs_of, timelines
from manyhands.report.html import Page, Section, Tile
from manyhands.report.tables.sweeps import (
    ON_PAGE,
    fits_table,
    notes,
    numbers_table,
    scaling_table,
    scaling_tables,
)
from manyhands.report.tables.table import Table, as_csv, as_markdown, markdown_text, words_table
from manyhands.report.words import best_row, circumstances, headline, of_own_cores, passages, task_name


def sweep_page(sweep: SweepDir, record: SweepRecord) -> Page:
    """Set a sweep's page from its record and its runs' folders."""
    figures, runs = sweep_figures(record), runs_of(sweep, record)
    paired = len(figures["scaling"]) // 2 * 2
    line, loss = timelines(runs), losses(runs)
    title = f"{task_name(record.task)}: {record.kind} scaling"
    return Page(
        kicker="manyhands scaling report",
        title=title,
        headline=headline(record),
        facts=circumstances(record),
        tiles=_tiles(record),
        sections=[
            Section("scaling", "Scaling", pair=figures["scaling"][:paired], figures=figures["scaling"][paired:]),
            Section(
                "numbers",
                "The numbers",
                data=True,
                tables=scaling_tables(record, ON_PAGE),
                notes=notes(record),
                meanings=[(column.heading, column.about) for column in scaling_table(record).columns],
            ),
            Section("why", "Where the time went", passages=passages(record), figures=figures["why"]),
            Section("timeline", "Timeline", figures=[line] if line else []),
            Section("learning", "Learning", short=True, pair=[*([loss] if loss else []), *figures["learning"]]),
            Section("laws", "Fitted laws", short=True, tables=_fits(record)),
            Section("failed", "What failed", short=True, tables=_failed(record)),
            Section("machine", "The machine", short=True, facts=[facts(record.hardware), facts(record.versions)]),
            Section("again", "Run it again", short=True, commands=_commands(sweep, record)),
        ],
        markdown=sweep_markdown(record),
        csv=as_csv(numbers_table(record)),
        csv_name=f"{record.id}.csv",
        footer=_footer(record),
    )


def _footer(record: SweepRecord) -> str:
    """Say what the figures are, and how often their intervals hold; of rows with fewer repeats, less often."""
    known = [row.step_ms for row in record.rows if row.step_ms and row.step_ms.is_shown]
    most = max((row.repeats for row in record.rows), default=0)
    if not known:
        return (
            f"Figures are medians of at most {most} repeats, too few for an interval."
            if most > 1
            else "Figures are of one run each, which has no interval."
        )
    least = coverage(min(known, key=lambda interval: interval.coverage_pct))
    return f"Figures are medians over the repeats; their intervals hold the true median in {least} of cases."


def _tiles(record: SweepRecord) -> list[Tile]:
    """Return the figures of the best row that are seen first."""
    best = best_row(record)
    if best is None or not (best.speed_up and best.efficiency and best.samples_per_s):
        return []
    name = cell_names(row.cell for row in record.rows)[best.cell.key]
    interval = with_coverage(best.speed_up)
    fastest = Tile("Best speed-up", times(best.speed_up.value), ", ".join([name, *([interval] if interval else [])]))
    if best.speed_up.value < 1:
        fastest = Tile("Best speed-up", NOTHING, f"no run{of_own_cores(record)} was faster than one worker")
    return [
        fastest,
        Tile("Efficiency", percent(100 * best.efficiency.value, 0), with_coverage(best.efficiency, 100, 0) or name),
        Tile("Samples per second", rate(best.samples_per_s.value), f"{name}, together"),
        *_greatest_loss(record, best, name),
        Tile("Test accuracy", percent(100 * best.test_accuracy, 2), _beside_one_worker(record, best, name)),
    ]


def _greatest_loss(record: SweepRecord, row: Row, name: str) -> list[Tile]:
    parts = [part for finding in record.findings if finding.row == row.cell.key for part in finding.parts]
    if not parts or (worst := max(parts, key=lambda part: part.percent)).percent <= 0:
        return []
    return [Tile("Greatest loss", percent(worst.percent, 0), f"to {CAUSES[worst.cause]}, {name}")]


def _beside_one_worker(record: SweepRecord, row: Row, name: str) -> str:
    alone = next((curve.baseline for curve in curves(record) if row in curve.rows), None)
    return f"one worker: {percent(100 * alone.test_accuracy, 2)}" if alone and alone.repeats else name


def _fits(record: SweepRecord) -> list[Table]:
    return [fits_table(record, "Laws of scaling fitted to each curve")] if record.fits else []


def _failed(record: SweepRecord) -> list[Table]:
    rows = [[cell_name(row.cell), row.cell.key, row.failed] for row in record.rows if row.failed]
    caption = "Cells that failed, or ran less often than was asked for"
    return [words_table(["run", "cell", "reason"], rows, caption)] if rows else []


def facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Put facts of a record in words."""
    return [_fact(name, value) for name, value in about.items()]


def _fact(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "none"
    if name.endswith("_gib"):
        return name.removesuffix("_gib"), f"{value} GiB"
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes"), num_bytes(value)
    return {"cpu": "processor"}.get(name, name.replace("_", " ")), str(value)


def _commands(sweep: SweepDir, record: SweepRecord) -> list[tuple[str, str]]:
    return [
        ("The sweep, on this machine or another:", record.command),
        ("This report, drawn again from the stored record:", f"manyhands report {shlex.quote(str(sweep.path))}"),
    ]


def sweep_markdown(record: SweepRecord) -> str:
    """Write what a sweep says for a README."""
    parts = [
        f"## {markdown_text(task_name(record.task))}: {record.kind} scaling",
        f"**{markdown_text(headline(record))}**",
        markdown_text(circumstances(record)),
        *(as_markdown(table).rstrip() for table in scaling_tables(record, ON_PAGE)),
        "\n".join(f"- {markdown_text(note)}" for note in notes(record)),
        "\n".join(_markdown_passages(record)),
        as_markdown(fits_table(record)).rstrip() if record.fits else "",
        f"Run it again:\n\n```sh\n{record.command}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_passages(record: SweepRecord) -> list[str]:
    lines = []
    for passage in passages(record):
        lines.append(f"- {markdown_text(passage.headline or passage.title)}")
        inner = [*passage.sentences, *(f"→ {remedy}" for remedy in passage.remedies), *passage.others, *passage.fits]
        lines += [f"  - {markdown_text(line)}" for line in inner]
    return lines
