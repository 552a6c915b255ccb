"""The page of a piece of advice."""

from manyhands.record.advice import AdviceDir, AdviceRecord
from manyhands.record.texts import NOTHING, count, day, duration, factor, figure, percent, with_bounds
from manyhands.report.advice_figures import advice_figures, way_name
from manyhands.report.html import Page, Section, Tile, again, facts, shell_block
from manyhands.report.tables.advice import best_table, numbers_table
from manyhands.report.tables.table import markdown_text
from manyhands.report.words import Passage, dotted, task_name


def advice_page(folder: AdviceDir, record: AdviceRecord) -> Page:
    """Return the page of advice, made from its record."""
    ways = {f"{number}. {way_name(row)}": row for number, row in enumerate(record.best, 1)}
    interrupted = record.status == "interrupted"
    stopped = ["it was stopped: what is best was not trained with all seeds"] if interrupted else []
    notes = [*record.doubts, *stopped]
    based_on = [Passage("Trained", sentences=record.measured), Passage("Assumed", sentences=record.assumed)]
    calibrated = f"{record.machine}, {day(record.calibrated)}"
    why = [Passage(way, sentences=row.reasons) for way, row in ways.items()]
    commands = [(f"{way}:", row.command) for way, row in ways.items()]
    limits = Passage("The gradient's noise, and the next bottleneck", record.noise, record.next)
    explained: list[str | list[str]] = []
    for way, row in ways.items():
        explained += [shell_block(markdown_text(way), row.command), row.reasons]
    return Page(
        name=record.id or "advice",
        kicker="manyhands advice report",
        title=f"{task_name(record.task)} to {100 * record.target_accuracy:g} % on {record.cluster}",
        headline=_headline(record),
        facts=dotted(
            f"{record.considered:,} ways looked at, {count(len(record.trainings), 'training')}",
            f"at most {figure(record.max_cost)} {record.currency}" if record.max_cost is not None else "",
            day(record.made),
            f"took {duration(record.wall_s)}",
        ),
        tiles=_tiles(record),
        sections=[
            Section("best", "The best ways", data=True, tables=[best_table(record)], notes=notes),
            Section("why", "Why", short=True, passages=why),
            Section("type", "What to type", short=True, commands=commands),
            Section("glance", "All that was looked at", pair=advice_figures(record)),
            Section("scale", "What limits it", passages=[limits]),
            Section(
                "source",
                "Based on",
                short=True,
                passages=[passage for passage in based_on if passage.sentences],
                facts=[
                    [("cluster", record.cluster), ("calibrated", f"{calibrated}; {record.circumstances}")],
                    facts(record.versions),
                ],
            ),
            again("The advice:", record.command, folder.path, "Ask again"),
        ],
        numbers=numbers_table(record),
        blocks=[
            best_table(record),
            *explained,
            [record.noise, *record.next, *notes, *record.measured, *record.assumed],
            shell_block("Ask again:", record.command),
        ],
        footer="Times are predicted; intervals should hold 90 % of runs: see `manyhands validate`.",
    )


def _headline(record: AdviceRecord) -> str:
    """Return a sentence on the best way, and how much sooner it is than one worker."""
    best = record.best[0]
    time = with_bounds(best.time_s, duration)
    if best.workers == 1 and best.batch_size == record.alone.batch_size:
        return f"Nothing is sooner than one worker with the task's own batch: {time}."
    return (
        f"The soonest is {way_name(best)}: {time}, {factor(best.speed_up.value)} as soon as one worker with "
        f"a batch of {record.alone.batch_size:,}."
    )


def _tiles(record: AdviceRecord) -> list[Tile]:
    best, alone = record.best[0], record.alone
    scale = NOTHING if record.critical_batch is None else figure(record.critical_batch)
    high = " or more" if record.critical_high is None else f" to {figure(record.critical_high)}"
    alone_cost = f"one worker: {figure(alone.cost.value)}" if alone.cost else ""
    return [
        Tile("Time to target", duration(best.time_s.value), f"one worker: {duration(alone.time_s.value)}"),
        Tile("Speed-up", factor(best.speed_up.value), way_name(best)),
        Tile("Efficiency", percent(100 * best.efficiency.value, 0), count(best.workers, "worker")),
        *([Tile(f"Cost in {record.currency}", figure(best.cost.value), alone_cost)] if best.cost else []),
        Tile("Noise scale", scale, f"samples; 90 %: {figure(record.critical_low)}{high}"),
    ]
