"""The page of a simulation."""

from collections.abc import Sequence

from manyhands.record.simulation import SimulationDir, SimulationRecord, SimulationRow
from manyhands.record.texts import (
    NOTHING,
    count,
    day,
    duration,
    factor,
    figure,
    milliseconds,
    num_bytes,
    percent,
    with_bounds,
)
from manyhands.report.html import Page, Section, Tile, again, facts, shell_block
from manyhands.report.simulation_figures import PART_NAMES, scaling_figures, shares, some, split_figure, strategies
from manyhands.report.tables.simulations import learned_table, numbers_table, speed_table, split_table, time_table
from manyhands.report.tables.table import one_line, words_table
from manyhands.report.trained import trained_figures, trained_sentence
from manyhands.report.words import Passage, dotted, task_name

MOST_ROWS = 120
"""Most rows of a table on the page; the CSV has all."""
WORTH_IT = 0.5
"""Least efficiency of nodes that are worth their cost."""


def simulation_page(folder: SimulationDir, record: SimulationRecord) -> Page:
    """Return a simulation's page, made from its record."""
    figures = scaling_figures(record)
    paired = len(figures) // 2 * 2
    rows, counts = some(record.rows, MOST_ROWS), sorted({row.number for row in record.rows})
    tables = [speed_table(record, rows), split_table(record, rows)]
    trained = [time_table(record), learned_table(record)]
    failed = [[name, one_line(reason)] for name, reason in record.failed.items()]
    failures = words_table(["training", "reason"], failed, "Trainings that failed")
    return Page(
        name=record.id or "simulation",
        kicker="manyhands simulation report",
        title=f"{task_name(record.task)} on {record.cluster}, predicted",
        headline=_headline(record),
        facts=dotted(
            f"{counts[0]:,} to {counts[-1]:,} {record.by}" if len(counts) > 1 else "",
            f"engine {record.engine}",
            count(record.parameters, "parameter"),
            count(record.samples, "sample"),
            day(record.made),
            f"took {duration(record.wall_s)}",
        ),
        tiles=_tiles(record) if record.rows else [],
        sections=[
            Section("scaling", "Scaling", pair=figures[:paired], figures=figures[paired:]),
            Section("learning", "Learning", pair=trained_figures(record)),
            Section("reached", "Time to accuracy", short=True, tables=trained),
            Section(
                "split",
                "Where the time goes",
                passages=[_passage(sync, rows, record.currency) for sync, rows in strategies(record).items()],
                figures=[split_figure(record)] if record.rows else [],
            ),
            Section(
                "numbers",
                "The numbers",
                data=True,
                tables=tables,
                notes=_notes(record),
                meanings=[(column.heading, column.about) for column in tables[0].columns if rows and column.about],
            ),
            Section("failed", "What failed", short=True, tables=[failures]),
            Section("source", "Predicted from", short=True, facts=[_source(record), facts(record.versions)]),
            again("The simulation:", record.command, folder.path),
        ],
        numbers=numbers_table(record),
        blocks=[*tables, *trained, _notes(record), shell_block("Run it again:", record.command)],
        footer="All but what was trained is predicted; intervals should hold 90 % of runs: see `manyhands validate`.",
    )


def _best_row(rows: Sequence[SimulationRow]) -> SimulationRow:
    """Return the row of the greatest speed-up; of the fewest nodes where there are several."""
    return max(rows, key=lambda row: (row.speed_up.value, -row.number))


def _headline(record: SimulationRecord) -> str:
    """Return two sentences: on the fastest row, and on the trainings or the slowest strategy."""
    if not record.rows:
        return "Nothing was predicted before the simulation was stopped."
    best = _best_row(record.rows)
    name = f"{task_name(record.task)} with {best.sync}"
    if best.speed_up.value <= 1:
        first = f"No number of {record.by} makes {name} faster than one worker alone."
    else:
        low, high = best.speed_up.low, best.speed_up.high
        interval = f" (90 %: {figure(low)}–{figure(high)})" if low < high else ""
        first = (
            f"{name} on {best.many} is predicted to be {factor(best.speed_up.value)}{interval} as fast as one worker, "
            f"at {percent(100 * best.efficiency.value, 0)} efficiency."
        )
    second = trained_sentence(record) or _slowest(record, best)
    return f"{first} {second}".strip()


def _slowest(record: SimulationRecord, best: SimulationRow) -> str:
    """Return a sentence on where the slowest strategy stops gaining; empty where there is only one strategy."""
    others = [_best_row(rows) for sync, rows in strategies(record).items() if sync != best.sync]
    if not others:
        return ""
    worst = min(others, key=lambda row: row.speed_up.value)
    if worst.speed_up.value <= 1:
        return f"With {worst.sync}, no number of {record.by} is faster than one worker."
    most = max(row.number for row in record.rows if row.sync == worst.sync)
    end = "reaches" if worst.number == most else f"gains nothing beyond {worst.many}, where it has"
    return f"The slowest strategy, {worst.sync}, {end} {factor(worst.speed_up.value)}."


def _tiles(record: SimulationRecord) -> list[Tile]:
    best = _best_row(record.rows)
    well = [row for row in record.rows if row.efficiency.value >= WORTH_IT]
    most = max(well, key=lambda row: (row.number, row.speed_up.value), default=None)
    alone_s = -(-record.samples // max(1, record.alone_batch)) * record.alone_ms.value / 1e3
    return [
        Tile("Best speed-up", factor(best.speed_up.value), f"{best.sync}, {best.many}")
        if best.speed_up.value >= 1
        else Tile("Best speed-up", NOTHING, "none is faster than one worker"),
        Tile("Efficiency there", percent(100 * best.efficiency.value, 0), f"{milliseconds(best.step_ms.value)} a step"),
        Tile("Epoch there", duration(best.epoch_s.value), f"one worker: {duration(alone_s)}"),
        *([Tile("Half efficient up to", most.many, most.sync)] if most else []),
        *([_cheapest(record)] if any(row.cost for row in record.rows) else []),
    ]


def _cheapest(record: SimulationRecord) -> Tile:
    """Return the tile of the cheapest epoch that is at least twice as fast as one worker, or of the cheapest of all."""
    priced = [(row.cost.value, row) for row in record.rows if row.cost]
    faster = [(cost, row) for cost, row in priced if row.speed_up.value >= 2]
    cost, row = min(faster or priced, key=lambda pair: pair[0])
    return Tile(
        f"{record.currency} an epoch, {'from 2× on' if faster else 'at least'}",
        figure(cost),
        f"{row.sync}, {row.many}, {factor(row.speed_up.value)}",
    )


def _passage(sync: str, rows: Sequence[SimulationRow], currency: str) -> Passage:
    """Return a passage on a strategy: where it is fastest, up to where it is efficient, and where the time goes."""
    best, last = _best_row(rows), rows[-1]
    end = ", the most that was asked for" if best is last and len(rows) > 1 else ""
    fastest = f"Fastest on {best.many}{end}: {with_bounds(best.speed_up, factor)}."
    if best.speed_up.value < 1:
        fastest = f"Never faster than one worker; the nearest is {best.many}, at {factor(best.speed_up.value)}."
    well = [row for row in rows if row.efficiency.value >= WORTH_IT]
    half = percent(100 * WORTH_IT, 0)
    parts = sorted(shares(last).items(), key=lambda pair: -pair[1])
    split = ", ".join(f"{percent(share, 0)} {PART_NAMES[part]}" for part, share in parts if share >= 0.5)
    sentences = [
        f"At least {half} efficient up to {well[-1].many}." if well else f"Never {half} efficient.",
        f"On {last.many} a step is {split}.",
    ]
    if best.cost:
        sentences.append(f"An epoch costs {with_bounds(best.cost, figure)} {currency} where it is fastest.")
    return Passage(sync, fastest, sentences)


def _notes(record: SimulationRecord) -> list[str]:
    """Return notes that explain the marks of the table, and say which rows are missing."""
    notes = []
    if any(row.method == "closed form" for row in record.rows):
        notes.append("* by closed form, not by following events")
    if len(record.rows) > MOST_ROWS:
        notes.append(f"{len(record.rows) - MOST_ROWS:,} rows are left out here; the CSV has them")
    if record.status == "interrupted":
        notes.append("the simulation was stopped: what was not predicted until then is missing")
    return notes


def _source(record: SimulationRecord) -> list[tuple[str, str]]:
    return [
        ("cluster", record.cluster),
        ("calibrated", f"{record.machine}, {day(record.calibrated)}"),
        *([("calibration", record.circumstances)] if record.circumstances else []),
        ("engine", record.engine),
        ("one worker alone", f"{with_bounds(record.alone_ms, milliseconds)} a step, batch {record.alone_batch:,}"),
        ("weights", f"{record.parameters:,} parameters, {num_bytes(record.weight_bytes)}"),
        ("samples", f"{record.samples:,}"),
        ("seed", str(record.seed)),
    ]
