"""The page of some runs that stand for themselves: their table, losses, where their time went, timelines."""

import shlex
from collections.abc import Sequence

from manyhands.record import RunDir, RunRecord
from manyhands.record.texts import count, duration, fixed, percent, rate, times
from manyhands.report.drawing import Figure
from manyhands.report.histories import Drawn, losses, timelines
from manyhands.report.html import Page, Section, Tile
from manyhands.report.pages import facts
from manyhands.report.stacks import split_figure
from manyhands.report.tables.runs import (
    learned_table,
    numbers_table,
    parts_ms,
    rank_parts_s,
    ranks_table,
    run_names,
    speed_table,
)
from manyhands.report.tables.table import Table, as_csv, as_markdown, markdown_text
from manyhands.report.words import machine, task_name

Stored = tuple[RunDir, RunRecord]


def run_figures(runs: Sequence[Stored]) -> list[Figure]:
    """Draw the time split of a warmed-up step, and of every rank over the whole run, where any time passed."""
    records = [record for _, record in runs]
    names = run_names(records)
    if not any(sum(parts_ms(record).values()) for record in records):
        return []
    ranks = [(f"{name}, rank {k.rank}", k) for name, r in zip(names, records, strict=True) for k in r.ranks]
    return [
        split_figure(
            "split",
            "Where a step's time goes",
            "A step once the run had warmed up, mean over the workers: compute is shared out, serial is what every "
            "worker repeats, comm is what the exchanges took, wait is time spent waiting for the slowest worker.",
            names,
            [parts_ms(record) for record in records],
            picture="split",
        ),
        split_figure(
            "ranks",
            "Every rank's time",
            "The whole training, rank by rank: a rank that computes longer than the others makes them wait.",
            [label for label, _ in ranks],
            [{part: 1e3 * s for part, s in rank_parts_s(rank).items()} for _, rank in ranks],
        ),
    ]


def runs_page(runs: Sequence[Stored]) -> Page:
    """Set the page of some runs from their records and folders."""
    records = [record for _, record in runs]
    drawn = drawn_runs(runs)
    loss, line = losses(drawn), timelines(drawn)
    tasks = ", ".join(dict.fromkeys(task_name(record.task) for record in records))
    return Page(
        kicker="manyhands run report",
        title=f"{tasks}: {records[0].id if len(records) == 1 else count(len(records), 'run')}",
        headline=runs_headline(records),
        facts=machine(records[0].hardware),
        tiles=_tiles(records),
        sections=[
            Section("numbers", "The numbers", data=True, tables=_tables(records), notes=_notes(records)),
            Section("learning", "Learning", short=True, figures=[loss] if loss else []),
            Section("time", "Where the time went", figures=run_figures(runs)),
            Section("timeline", "Timeline", short=True, figures=[line] if line else []),
            Section("ranks", "Ranks", short=True, tables=[ranks_table(records)]),
            Section(
                "machine", "The machine", short=True, facts=[facts(records[0].hardware), facts(records[0].versions)]
            ),
            Section("again", "Run it again", short=True, commands=_commands(runs)),
        ],
        markdown=runs_markdown(records),
        csv=as_csv(numbers_table(records)),
        csv_name=f"{records[0].id}.csv",
        footer="Figures are those of single runs.",
    )


def _tables(records: Sequence[RunRecord]) -> list[Table]:
    return [speed_table(records), learned_table(records)]


def drawn_runs(runs: Sequence[Stored]) -> list[Drawn]:
    """Say how the history of each run is drawn: in the colour of its engine."""
    names = run_names([record for _, record in runs])
    return [
        Drawn(name, record.engine, order, True, folder)
        for order, ((folder, record), name) in enumerate(zip(runs, names, strict=True))
    ]


def runs_headline(records: Sequence[RunRecord]) -> str:
    """Say in one sentence how the runs went."""
    names = run_names(records)
    fastest = max(range(len(records)), key=lambda i: records[i].samples_per_s)
    best = records[fastest]
    if len(records) == 1:
        return (
            f"{task_name(best.task)} with {names[0]} reaches {percent(100 * best.test_accuracy, 2)} on the test data "
            f"after {count(best.steps, 'step')}{_with_rate(best)}."
        )
    timed = [record.samples_per_s for record in records if record.samples_per_s]
    if len(timed) < 2:
        return f"Of {len(records)} runs, fewer than two have a speed to compare."
    return (
        f"Of {len(records)} runs, {names[fastest]} is the fastest{_with_rate(best)}, "
        f"{times(best.samples_per_s / min(timed))} the slowest."
    )


def _with_rate(record: RunRecord) -> str:
    return f" with {rate(record.samples_per_s)} samples/s" if record.samples_per_s else ""


def _tiles(records: Sequence[RunRecord]) -> list[Tile]:
    if len(records) > 1:
        return []
    r = records[0]
    return [
        Tile("Samples per second", rate(r.samples_per_s), f"{duration(r.step_ms.median / 1e3 or None)} a step"),
        Tile("Test accuracy", percent(100 * r.test_accuracy, 2), f"test loss {fixed(r.test_loss, 4)}"),
        Tile("Time", duration(r.total_s), f"{count(r.steps, 'step')}, {count(r.epochs, 'epoch')}"),
        Tile("Parameters", f"{r.parameters:,}", f"batch {r.batch_size:,}"),
    ]


def _notes(records: Sequence[RunRecord]) -> list[str]:
    notes = ["‡ stopped before it was done"] if any(r.status == "interrupted" for r in records) else []
    if len(records) > 1:
        same = len({record.weights_sha256 for record in records}) == 1
        notes.append("the weights are the same, bit for bit" if same else "the weights differ in their bits")
    return notes


def _commands(runs: Sequence[Stored]) -> list[tuple[str, str]]:
    names = run_names([record for _, record in runs])
    return [
        (f"{name}:", f"manyhands train --config {shlex.quote(str(folder.toml))}")
        for (folder, _), name in zip(runs, names, strict=True)
    ]


def runs_markdown(records: Sequence[RunRecord]) -> str:
    """Write what some runs say for a README."""
    parts = [
        f"**{markdown_text(runs_headline(records))}**",
        markdown_text(machine(records[0].hardware)),
        *(as_markdown(table).rstrip() for table in _tables(records)),
        "\n".join(f"- {markdown_text(note)}" for note in _notes(records)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
