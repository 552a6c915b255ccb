"""The page of some runs: their tables, losses, where their time went, and timelines."""

import shlex
from collections.abc import Sequence

from manyhands.record.run import RunDir, RunRecord
from manyhands.record.texts import count, duration, fixed, rate, times
from manyhands.report.drawing import Figure
from manyhands.report.histories import DrawnRun, evaluations, losses, timelines
from manyhands.report.html import Page, Section, Tile, facts
from manyhands.report.stacks import parts_ms, split_figure
from manyhands.report.tables.runs import (
    learned_table,
    numbers_table,
    quality,
    rank_parts_s,
    ranks_table,
    run_names,
    speed_table,
)
from manyhands.report.words import machine, task_name


def runs_page(runs: Sequence[tuple[RunDir, RunRecord]]) -> Page:
    """Return the page of some runs, made from their folders and records."""
    folders, records = [folder for folder, _ in runs], [record for _, record in runs]
    names, first = run_names(records), records[0]
    drawn = [
        DrawnRun(name, record.engine, order, True, folder)
        for order, (name, folder, record) in enumerate(zip(names, folders, records, strict=True))
    ]
    tasks = ", ".join(dict.fromkeys(task_name(record.task) for record in records))
    tables, notes = [speed_table(records), learned_table(records)], _notes(records)
    commands = [
        (f"{name}:", f"manyhands train --config {shlex.quote(str(folder.toml))}")
        for name, folder in zip(names, folders, strict=True)
    ]
    return Page(
        name=first.id,
        kicker="manyhands run report",
        title=f"{tasks}: {first.id if len(records) == 1 else count(len(records), 'run')}",
        headline=_headline(records, names),
        facts=machine(first.hardware),
        tiles=_tiles(first) if len(records) == 1 else [],
        sections=[
            Section("numbers", "The numbers", data=True, tables=tables, notes=notes),
            Section("learning", "Learning", short=True, figures=[*losses(drawn), *evaluations(names, records)]),
            Section("time", "Where the time went", figures=run_figures(records)),
            Section("timeline", "Timeline", short=True, figures=timelines(drawn)),
            Section("ranks", "Ranks", short=True, tables=[ranks_table(records)]),
            Section("machine", "The machine", short=True, facts=[facts(first.hardware), facts(first.versions)]),
            Section("again", "Run it again", short=True, commands=commands),
        ],
        numbers=numbers_table(records),
        blocks=[*tables, notes],
        titled=False,
        footer="Figures are those of single runs.",
    )


def run_figures(records: Sequence[RunRecord]) -> list[Figure]:
    """Draw the time split of a warmed-up step, and of every rank over the whole run; none where no time passed."""
    names = run_names(records)
    steps = [parts_ms(record.steady) for record in records]
    if not any(sum(parts.values()) for parts in steps):
        return []
    ranks = [
        (f"{name}, rank {rank.rank}", {part: 1e3 * seconds for part, seconds in rank_parts_s(rank).items()})
        for name, record in zip(names, records, strict=True)
        for rank in record.ranks
    ]
    return [
        split_figure(
            "split",
            "Where a step's time goes",
            "A step once the run had warmed up, mean over the workers: compute is shared out, serial is what every "
            "worker repeats, comm is what the exchanges took, wait is time spent waiting for the slowest worker.",
            list(zip(names, steps, strict=True)),
            picture="split",
        ),
        split_figure(
            "ranks",
            "Every rank's time",
            "The whole training, rank by rank: a rank that computes longer than the others makes them wait.",
            ranks,
        ),
    ]


def _headline(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Return a sentence on the fastest of the runs; of a single run, on its accuracy."""
    fastest = max(range(len(records)), key=lambda i: records[i].samples_per_s)
    best = records[fastest]
    with_rate = f" with {rate(best.samples_per_s)} samples/s" if best.samples_per_s else ""
    if len(records) == 1:
        name, value = quality(best)
        reached = f"{value} on the test data" if name == "accuracy" else f"a {name} of {value} on the test data"
        return f"{task_name(best.task)} with {names[0]} reaches {reached} after {count(best.steps, 'step')}{with_rate}."
    timed = [record.samples_per_s for record in records if record.samples_per_s]
    if len(timed) < 2:
        return f"Of {len(records)} runs, fewer than two have a speed to compare."
    ratio = times(best.samples_per_s / min(timed))
    return f"Of {len(records)} runs, {names[fastest]} is the fastest{with_rate}, {ratio} the slowest."


def _tiles(record: RunRecord) -> list[Tile]:
    step, steps = duration(record.step_ms.median / 1e3 or None), count(record.steps, "step")
    return [
        Tile("Samples per second", rate(record.samples_per_s), f"{step} a step"),
        _quality_tile(record),
        Tile("Time", duration(record.total_s), f"{steps}, {count(record.epochs, 'epoch')}"),
        Tile("Parameters", f"{record.parameters:,}", f"batch {record.batch_size:,}"),
    ]


def _quality_tile(record: RunRecord) -> Tile:
    name, value = quality(record)
    beside = "" if name == "test loss" else f"test loss {fixed(record.test_loss, 4)}"
    return Tile("Test accuracy" if name == "accuracy" else name.capitalize(), value, beside)


def _notes(records: Sequence[RunRecord]) -> list[str]:
    notes = ["‡ stopped before it was done"] if any(r.status == "interrupted" for r in records) else []
    if len(records) > 1:
        same = len({record.weights_sha256 for record in records}) == 1
        notes.append("the weights are the same, bit for bit" if same else "the weights differ in their bits")
    return notes
