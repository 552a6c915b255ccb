"""The page of a piece of advice, and the same as Markdown."""

import shlex

from manyhands.record.advice import AdviceDir, AdviceRecord, AdviceRow
from manyhands.record.texts import (
    NOTHING,
    count,
    day,
    duration,
    figure,
    percent,
    with_bounds,
)
from manyhands.report.advice_figures import advice_figures, way_name
from manyhands.report.html import Page, Section, Tile
from manyhands.report.pages import facts
from manyhands.report.tables.advice import best_table, numbers_table
from manyhands.report.tables.table import as_csv, as_markdown, markdown_text
from manyhands.report.words import Passage, task_name

FOOTER = "Times are predicted; intervals hold 90 %."


def advice_page(folder: AdviceDir, record: AdviceRecord) -> Page:
    """Set the page of advice from its record."""
    return Page(
        kicker="manyhands advice report",
        title=title(record),
        headline=headline(record),
        facts=circumstances(record),
        tiles=_tiles(record),
        sections=[
            Section(
                "best",
                "The best ways",
                data=True,
                tables=[best_table(record)],
                notes=notes(record),
            ),
            Section("why", "Why", short=True, passages=passages(record)),
            Section("type", "What to type", short=True, commands=_typed(record)),
            Section("glance", "All that was looked at", pair=advice_figures(record)),
            Section("scale", "What limits it", passages=[_limits(record)]),
            Section("source", "Based on", short=True, passages=_based(record), facts=_source(record)),
            Section("again", "Ask again", short=True, commands=_commands(folder, record)),
        ],
        markdown=advice_markdown(record),
        csv=as_csv(numbers_table(record)),
        csv_name=f"{record.id or 'advice'}.csv",
        footer=FOOTER,
    )


def title(record: AdviceRecord) -> str:
    """Say what was asked for."""
    return f"{task_name(record.task)} to {100 * record.target_accuracy:g} % on {record.cluster}"


def headline(record: AdviceRecord) -> str:
    """Say what is best, and how much sooner that is."""
    best = record.best[0]
    if best.workers == 1 and best.batch_size == record.alone.batch_size:
        return f"Nothing is sooner than one worker with the task's own batch: {_seconds(best)}."
    return (
        f"The soonest is {way_name(best)}: {_seconds(best)}, {figure(best.speed_up.value)}× as soon as one worker with "
        f"a batch of {record.alone.batch_size:,}."
    )


def _seconds(row: AdviceRow) -> str:
    return with_bounds(row.time_s, duration)


def circumstances(record: AdviceRecord) -> str:
    """Say in a line what was looked at, and when."""
    parts = [
        f"{record.considered:,} ways looked at, {count(len(record.trainings), 'training')}",
        *([f"at most {figure(record.max_cost)} {record.currency}"] if record.max_cost is not None else []),
        day(record.made),
        f"took {duration(record.wall_s)}",
    ]
    return " · ".join(parts)


def _tiles(record: AdviceRecord) -> list[Tile]:
    best, alone = record.best[0], record.alone
    scale = NOTHING if record.critical_batch is None else figure(record.critical_batch)
    high = "" if record.critical_high is None else f" to {figure(record.critical_high)}"
    return [
        Tile("Time to target", duration(best.time_s.value), f"one worker: {duration(alone.time_s.value)}"),
        Tile("Speed-up", f"{figure(best.speed_up.value)}×", way_name(best)),
        Tile("Efficiency", percent(100 * best.efficiency.value, 0), count(best.workers, "worker")),
        *([Tile(f"Cost in {record.currency}", figure(best.cost.value), _cheaper(record))] if best.cost else []),
        Tile("Noise scale", scale, f"samples; 90 %: {figure(record.critical_low)}{high or ' or more'}"),
    ]


def _cheaper(record: AdviceRecord) -> str:
    return f"one worker: {figure(record.alone.cost.value)}" if record.alone.cost else ""


def notes(record: AdviceRecord) -> list[str]:
    """Say what makes the advice less sure."""
    stopped = ["it was stopped: what is best was not trained with all seeds"] if record.status == "interrupted" else []
    return [*record.doubts, *stopped]


def passages(record: AdviceRecord) -> list[Passage]:
    """Say of each of the best why it is."""
    return [
        Passage(f"{number}. {way_name(row)}", "", row.reasons, [], [], []) for number, row in enumerate(record.best, 1)
    ]


def _typed(record: AdviceRecord) -> list[tuple[str, str]]:
    return [(f"{number}. {way_name(row)}:", row.command) for number, row in enumerate(record.best, 1)]


def _limits(record: AdviceRecord) -> Passage:
    return Passage("The gradient's noise, and the next bottleneck", record.noise, record.next, [], [], [])


def _based(record: AdviceRecord) -> list[Passage]:
    found = {"Trained": record.measured, "Assumed": record.assumed}
    return [Passage(name, "", sentences, [], [], []) for name, sentences in found.items() if sentences]


def _source(record: AdviceRecord) -> list[list[tuple[str, str]]]:
    about = [("cluster", record.cluster), ("calibrated", f"{record.machine}, {day(record.calibrated)}")]
    return [about, facts(record.versions)]


def _commands(folder: AdviceDir, record: AdviceRecord) -> list[tuple[str, str]]:
    return [
        *([("The advice:", record.command)] if record.command else []),
        ("This report, drawn again from the stored record:", f"manyhands report {shlex.quote(str(folder.path))}"),
    ]


def advice_markdown(record: AdviceRecord) -> str:
    """Write the advice for a README."""
    ways = [
        f"{number}. {markdown_text(way_name(row))}\n\n```sh\n{row.command}\n```\n\n"
        + "\n".join(f"- {markdown_text(reason)}" for reason in row.reasons)
        for number, row in enumerate(record.best, 1)
    ]
    said = [record.noise, *record.next, *notes(record), *record.measured, *record.assumed]
    parts = [
        f"## {markdown_text(title(record))}",
        f"**{markdown_text(headline(record))}**",
        markdown_text(circumstances(record)),
        as_markdown(best_table(record)).rstrip(),
        *ways,
        "\n".join(f"- {markdown_text(sentence)}" for sentence in said),
        f"Ask again:\n\n```sh\n{record.command}\n```" if record.command else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
