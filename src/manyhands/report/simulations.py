"""The page of a simulation, and the same as Markdown."""

import shlex
from collections.abc import Sequence

from manyhands.record.simulation import Estimate, SimulationDir, SimulationRecord, SimulationRow
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
from manyhands.report.drawing import Figure
from manyhands.report.html import Page, Section, Tile
from manyhands.report.pages import facts
from manyhands.report.simulation_figures import PART_NAMES, scaling_figures, shares, some, split_figure, strategies
from manyhands.report.tables.simulations import learned_table, numbers_table, speed_table, split_table, time_table
from manyhands.report.tables.table import Table, as_csv, as_markdown, markdown_text, one_line, words_table
from manyhands.report.trained import trained_sentence
from manyhands.report.trained_figures import trained_figures
from manyhands.report.words import Passage, task_name

MOST_ROWS = 120
"""Rows of a table on the page; the CSV has all."""
WORTH_IT = 0.5
"""Efficiency from which on nodes are said to be used well."""
FOOTER = "All but what was trained is predicted; intervals hold 90 %."


def simulation_page(folder: SimulationDir, record: SimulationRecord) -> Page:
    """Set a simulation's page from its record."""
    figures = scaling_figures(record) if record.rows else []
    paired = len(figures) // 2 * 2
    tables = _tables(record)
    return Page(
        kicker="manyhands simulation report",
        title=f"{task_name(record.task)} on {record.cluster}, predicted",
        headline=headline(record),
        facts=circumstances(record),
        tiles=_tiles(record),
        sections=[
            Section("scaling", "Scaling", pair=figures[:paired], figures=figures[paired:]),
            Section("learning", "Learning", pair=trained_figures(record)),
            Section("reached", "Time to accuracy", short=True, tables=_trained(record)),
            Section("split", "Where the time goes", passages=passages(record), figures=_split(record)),
            Section(
                "numbers",
                "The numbers",
                data=True,
                tables=tables,
                notes=notes(record),
                meanings=[(c.heading, c.about) for table in tables[:1] for c in table.columns if c.about],
            ),
            Section("failed", "What failed", short=True, tables=_failed(record)),
            Section("source", "Predicted from", short=True, facts=[_source(record), facts(record.versions)]),
            Section("again", "Run it again", short=True, commands=_commands(folder, record)),
        ],
        markdown=simulation_markdown(record),
        csv=as_csv(numbers_table(record)),
        csv_name=f"{record.id or 'simulation'}.csv",
        footer=FOOTER,
    )


def best_row(rows: Sequence[SimulationRow]) -> SimulationRow:
    """Return the row of the greatest speed-up; of the fewest nodes where there are several."""
    return max(rows, key=lambda row: (row.speed_up.value, -row.number))


def headline(record: SimulationRecord) -> str:
    """Say what is fastest, and what was learned or which strategy is left behind."""
    if not record.rows:
        return "Nothing was predicted before the simulation was stopped."
    best = best_row(record.rows)
    name = f"{task_name(record.task)} with {best.sync}"
    if best.speed_up.value <= 1:
        first = f"No number of {record.by} makes {name} faster than one worker alone."
    else:
        first = (
            f"{name} on {best.many} is predicted to be {_times(best.speed_up)} as fast as one worker, "
            f"at {percent(100 * best.efficiency.value, 0)} efficiency."
        )
    second = trained_sentence(record) or _left_behind(record, best)
    return f"{first} {second}".strip()


def _times(value: Estimate) -> str:
    text = factor(value.value)
    return f"{text} (90 %: {figure(value.low)}–{figure(value.high)})" if value.low < value.high else text


def _left_behind(record: SimulationRecord, best: SimulationRow) -> str:
    """Say of the strategy that gains the least where it stops."""
    others = [best_row(strategy.rows) for strategy in strategies(record) if strategy.name != best.sync]
    if not others:
        return ""
    worst = min(others, key=lambda row: row.speed_up.value)
    if worst.speed_up.value <= 1:
        return f"With {worst.sync}, no number of {record.by} is faster than one worker."
    most = max(row.number for row in record.rows if row.sync == worst.sync)
    speed = factor(worst.speed_up.value)
    end = "reaches" if worst.number == most else f"gains nothing beyond {worst.many}, where it has"
    return f"The slowest strategy, {worst.sync}, {end} {speed}."


def circumstances(record: SimulationRecord) -> str:
    """Say in a line what was predicted, from what, and when."""
    rows = sorted(record.rows, key=lambda row: row.number)
    nodes = f"{rows[0].number:,} to {rows[-1].many}" if rows and rows[0].number < rows[-1].number else ""
    parts = [
        nodes,
        f"engine {record.engine}",
        count(record.parameters, "parameter"),
        count(record.samples, "sample"),
        day(record.made),
        f"took {duration(record.wall_s)}",
    ]
    return " · ".join(part for part in parts if part)


def _tiles(record: SimulationRecord) -> list[Tile]:
    if not record.rows:
        return []
    best = best_row(record.rows)
    name = f"{best.sync}, {best.many}"
    well = [row for row in record.rows if row.efficiency.value >= WORTH_IT]
    most = max(well, key=lambda row: (row.number, row.speed_up.value), default=None)
    return [
        Tile("Best speed-up", factor(best.speed_up.value), name)
        if best.speed_up.value >= 1
        else Tile("Best speed-up", NOTHING, "none is faster than one worker"),
        Tile("Efficiency there", percent(100 * best.efficiency.value, 0), f"{milliseconds(best.step_ms.value)} a step"),
        Tile("Epoch there", duration(best.epoch_s.value), f"one worker: {duration(_alone_epoch_s(record))}"),
        *([Tile("Half efficient up to", most.many, most.sync)] if most else []),
        *([_cheapest(record)] if any(row.cost for row in record.rows) else []),
    ]


def _alone_epoch_s(record: SimulationRecord) -> float:
    return -(-record.samples // max(1, record.alone_batch)) * record.alone_ms.value / 1e3


def _cheapest(record: SimulationRecord) -> Tile:
    """Name the cheapest epoch that is at least twice as fast as one worker, or the cheapest at all."""
    priced = [(row.cost.value, row) for row in record.rows if row.cost]
    faster = [each for each in priced if each[1].speed_up.value >= 2]
    cost, row = min(faster or priced, key=lambda each: each[0])
    return Tile(
        f"{record.currency} an epoch, {'from 2× on' if faster else 'at least'}",
        figure(cost),
        f"{row.sync}, {row.many}, {factor(row.speed_up.value)}",
    )


def passages(record: SimulationRecord) -> list[Passage]:
    """Say of each strategy where it is fastest, how far its nodes are used well, and what takes the time there."""
    return [_passage(strategy.name, strategy.rows, record.currency) for strategy in strategies(record)]


def _passage(name: str, rows: Sequence[SimulationRow], currency: str) -> Passage:
    best, last = best_row(rows), rows[-1]
    end = ", the most that was asked for" if best is last and len(rows) > 1 else ""
    fastest = f"Fastest on {best.many}{end}: {with_bounds(best.speed_up, factor)}."
    if best.speed_up.value < 1:
        fastest = f"Never faster than one worker; the nearest is {best.many}, at {factor(best.speed_up.value)}."
    well = [row for row in rows if row.efficiency.value >= WORTH_IT]
    half = percent(100 * WORTH_IT, 0)
    told = [
        f"At least {half} efficient up to {well[-1].many}." if well else f"Never {half} efficient.",
        f"On {last.many} {_split_words(last)}.",
    ]
    if best.cost:
        told.append(f"An epoch costs {with_bounds(best.cost, figure)} {currency} where it is fastest.")
    return Passage(name, fastest, told, [], [], [])


def _split_words(row: SimulationRow) -> str:
    found = sorted(shares(row).items(), key=lambda each: -each[1])
    return "a step is " + ", ".join(f"{percent(share, 0)} {PART_NAMES[part]}" for part, share in found if share >= 0.5)


def _split(record: SimulationRecord) -> list[Figure]:
    return [split_figure(record)] if record.rows else []


def _tables(record: SimulationRecord) -> list[Table]:
    rows = some(record.rows, MOST_ROWS)
    return [speed_table(record, rows), split_table(record, rows)] if rows else []


def notes(record: SimulationRecord) -> list[str]:
    """Say what the marks mean, what is left out and what was stopped."""
    found = []
    if any(row.method == "closed form" for row in record.rows):
        found.append("* by closed form, not by following events")
    if len(record.rows) > MOST_ROWS:
        found.append(f"{len(record.rows) - MOST_ROWS:,} rows are left out here; the CSV has them")
    if record.status == "interrupted":
        found.append("the simulation was stopped: what was not predicted until then is missing")
    return found


def _trained(record: SimulationRecord) -> list[Table]:
    return [time_table(record), learned_table(record)] if record.trained else []


def _failed(record: SimulationRecord) -> list[Table]:
    lines = [[name, one_line(reason)] for name, reason in record.failed.items()]
    return [words_table(["training", "reason"], lines, "Trainings that failed")] if lines else []


def _source(record: SimulationRecord) -> list[tuple[str, str]]:
    return [
        ("cluster", record.cluster),
        ("calibrated", f"{record.machine}, {day(record.calibrated)}"),
        ("engine", record.engine),
        ("one worker alone", f"{with_bounds(record.alone_ms, milliseconds)} a step, batch {record.alone_batch:,}"),
        ("weights", f"{record.parameters:,} parameters, {num_bytes(record.weight_bytes)}"),
        ("samples", f"{record.samples:,}"),
        ("seed", str(record.seed)),
    ]


def _commands(folder: SimulationDir, record: SimulationRecord) -> list[tuple[str, str]]:
    return [
        *([("The simulation:", record.command)] if record.command else []),
        ("This report, drawn again from the stored record:", f"manyhands report {shlex.quote(str(folder.path))}"),
    ]


def simulation_markdown(record: SimulationRecord) -> str:
    """Write what a simulation says for a README."""
    parts = [
        f"## {markdown_text(task_name(record.task))} on {markdown_text(record.cluster)}, predicted",
        f"**{markdown_text(headline(record))}**",
        markdown_text(circumstances(record)),
        *(as_markdown(table).rstrip() for table in (*_tables(record), *_trained(record))),
        "\n".join(f"- {markdown_text(note)}" for note in notes(record)),
        f"Run it again:\n\n```sh\n{record.command}\n```" if record.command else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
