"""The page of a sweep."""

from manyhands.record.labels import cell_name, cell_names, with_coverage
from manyhands.record.sweep import Row, SweepDir, SweepRecord
from manyhands.record.texts import NOTHING, accuracy_text, percent, rate, times
from manyhands.report.curves import curves
from manyhands.report.histories import losses, runs_of, timelines
from manyhands.report.html import Page, Section, Tile, again, facts, shell_block
from manyhands.report.sweep_figures import CAUSES, sweep_figures
from manyhands.report.tables.predicted import prediction_notes, predictions_table
from manyhands.report.tables.sweeps import ON_PAGE, fits_table, notes, numbers_table, scaling_table, scaling_tables
from manyhands.report.tables.table import markdown_text, words_table
from manyhands.report.words import (
    Passage,
    best_row,
    certainty,
    circumstances,
    headline,
    of_own_cores,
    passages,
    task_name,
)


def sweep_page(sweep: SweepDir, record: SweepRecord) -> Page:
    """Return a sweep's page, made from its record and its runs' folders."""
    figures, runs = sweep_figures(record), runs_of(sweep, record)
    paired = len(figures["scaling"]) // 2 * 2
    tables, fits, explained = scaling_tables(record, ON_PAGE), fits_table(record), passages(record)
    failed = [[cell_name(row.cell), row.cell.key, row.failed] for row in record.rows if row.failed]
    failures = words_table(["run", "cell", "reason"], failed, "Cells that failed, or ran less often than was asked for")
    return Page(
        name=record.id,
        kicker="manyhands scaling report",
        title=f"{task_name(record.task)}: {record.kind} scaling",
        headline=headline(record),
        facts=circumstances(record),
        tiles=_tiles(record),
        sections=[
            Section("scaling", "Scaling", pair=figures["scaling"][:paired], figures=figures["scaling"][paired:]),
            Section(
                "numbers",
                "The numbers",
                data=True,
                tables=tables,
                notes=notes(record),
                meanings=[(column.heading, column.about) for column in scaling_table(record).columns],
            ),
            Section(
                "predicted",
                "Predicted, not measured",
                short=True,
                tables=[predictions_table(record)],
                notes=prediction_notes(record),
            ),
            Section("why", "Where the time went", passages=explained, figures=figures["why"]),
            Section("timeline", "Timeline", figures=timelines(runs)),
            Section("learning", "Learning", short=True, pair=[*losses(runs), *figures["learning"]]),
            Section("laws", "Fitted laws", short=True, tables=[fits]),
            Section("failed", "What failed", short=True, tables=[failures]),
            Section("machine", "The machine", short=True, facts=[facts(record.hardware), facts(record.versions)]),
            again("The sweep, on this machine or another:", record.command, sweep.path),
        ],
        numbers=numbers_table(record),
        blocks=[
            *tables,
            [*notes(record), certainty(record)],
            predictions_table(record),
            prediction_notes(record),
            "\n".join(map(_markdown_passage, explained)),
            fits,
            shell_block("Run it again:", record.command),
        ],
        footer=certainty(record),
    )


def _tiles(record: SweepRecord) -> list[Tile]:
    """Return the key figures of the best row."""
    best = best_row(record)
    if best is None or not (best.speed_up and best.efficiency and best.samples_per_s):
        return []
    name = cell_names(row.cell for row in record.rows)[best.cell.key]
    interval = with_coverage(best.speed_up)
    fastest = Tile("Best speed-up", times(best.speed_up.value), ", ".join([name, *([interval] if interval else [])]))
    if best.speed_up.value < 1:
        fastest = Tile("Best speed-up", NOTHING, f"no run{of_own_cores(record)} was faster than one worker")
    alone = next((curve.baseline for curve in curves(record) if best in curve.rows), None)
    beside = f"one worker: {accuracy_text(alone.test_accuracy)}" if alone and alone.repeats else name
    return [
        fastest,
        Tile("Efficiency", percent(100 * best.efficiency.value, 0), with_coverage(best.efficiency, 100, 0) or name),
        Tile("Samples per second", rate(best.samples_per_s.value), f"{name}, together"),
        *_greatest_loss(record, best, name),
        *([] if best.test_accuracy is None else [Tile("Test accuracy", accuracy_text(best.test_accuracy), beside)]),
    ]


def _greatest_loss(record: SweepRecord, row: Row, name: str) -> list[Tile]:
    parts = [part for finding in record.findings if finding.row == row.cell.key for part in finding.parts]
    if not parts or (worst := max(parts, key=lambda part: part.percent)).percent <= 0:
        return []
    return [Tile("Greatest loss", percent(worst.percent, 0), f"to {CAUSES[worst.cause]}, {name}")]


def _markdown_passage(passage: Passage) -> str:
    remedies = [f"→ {remedy}" for remedy in passage.remedies]
    inner = [*passage.sentences, *remedies, *passage.others, *passage.fits]
    lines = [f"- {markdown_text(passage.headline or passage.title)}"]
    return "\n".join(lines + [f"  - {markdown_text(line)}" for line in inner])
