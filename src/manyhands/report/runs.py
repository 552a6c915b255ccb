"""The page of some runs that stand for themselves: their table, losses, where their time went, timelines."""

import shlex
from collections import Counter
from collections.abc import Sequence

from manyhands.record import Cell, RankRecord, RunDir, RunRecord
from manyhands.record.texts import cell_name, count, duration, fixed, num_bytes, percent, rate, share, times
from manyhands.report.drawing import Figure
from manyhands.report.histories import Drawn, losses, timelines
from manyhands.report.html import Page, Section, Tile, table
from manyhands.report.pages import facts
from manyhands.report.stacks import split_figure
from manyhands.report.tables import Grid, as_csv, as_markdown, markdown_text, plain_text
from manyhands.report.words import machine, task_name

Stored = tuple[RunDir, RunRecord]


def run_names(records: Sequence[RunRecord]) -> list[str]:
    """Name runs by engine, workers and strategy; also by task and id where that is not enough."""
    short = [_name(record) for record in records]
    if len({record.task for record in records}) > 1:
        short = [f"{task_name(record.task)} {name}" for record, name in zip(records, short, strict=True)]
    seen = Counter(short)
    return [name if seen[name] == 1 else f"{name} ({r.id[-4:]})" for name, r in zip(short, records, strict=True)]


def _name(record: RunRecord) -> str:
    return cell_name(
        Cell(
            engine=record.engine,
            workers=record.workers,
            threads=record.threads,
            sync=record.sync,
            batch_size=record.batch_size,
        )
    )


SPEED = ["run", "samples/s", "time per batch", "compute", "serial", "comm", "wait", "memory/rank", "total"]
LEARNED = ["run", "batch", "steps", "train loss", "test loss", "accuracy", "weights"]


def runs_table(records: Sequence[RunRecord], headings: Sequence[str]) -> Grid:
    """Make the table of some runs, with the columns of these headings."""
    rows = [_texts(record, name) for record, name in zip(records, run_names(records), strict=True)]
    return Grid(list(headings), [[row[heading] for heading in headings] for row in rows])


def _texts(record: RunRecord, name: str) -> dict[str, str]:
    parts = parts_ms(record)
    whole = sum(parts.values())
    return {
        "run": f"{name} ‡" if record.status == "interrupted" else name,
        "samples/s": rate(record.samples_per_s),
        "time per batch": duration(record.step_ms.median / 1e3 or None),
        **{part: share(ms, whole) for part, ms in parts.items()},
        "memory/rank": num_bytes(max((rank.max_rss_bytes for rank in record.ranks), default=None)),
        "total": duration(record.total_s),
        "batch": f"{record.batch_size:,}",
        "steps": f"{record.steps:,}",
        "train loss": fixed(record.train_loss[-1] if record.train_loss else None, 4),
        "test loss": fixed(record.test_loss, 4),
        "accuracy": percent(100 * record.test_accuracy, 2),
        "weights": record.weights_sha256[:12],
    }


def runs_numbers(records: Sequence[RunRecord]) -> Grid:
    """Make the table of some runs as plain numbers in full precision, with the units in the headings."""
    rows = [_numbers(record) for record in records]
    return Grid(list(rows[0]) if rows else [], [[plain_text(value) for value in row.values()] for row in rows])


def _numbers(record: RunRecord) -> dict[str, object]:
    names = (
        *("id", "status", "task", "engine", "sync", "workers", "threads", "batch_size", "epochs", "steps", "seed"),
        *("device", "parameters", "samples", "samples_per_s", "test_loss", "test_accuracy"),
        *("compute_s", "comm_s", "wait_s", "read_s", "eval_s", "total_s", "bytes_sent", "messages", "weights_sha256"),
    )
    return {
        **{name: getattr(record, name) for name in names},
        "samples_per_s": record.samples_per_s or None,  # virtual time may stand still
        "train_loss": record.train_loss[-1] if record.train_loss else None,
        "step_ms_median": record.step_ms.median,
        "step_ms_p90": record.step_ms.p90,
        **{f"steady_{part}_ms": ms for part, ms in parts_ms(record).items()},
    }


def parts_ms(record: RunRecord) -> dict[str, float]:
    """Return the parts of a warmed-up step."""
    s = record.steady
    return {"compute": s.compute_ms, "serial": s.serial_ms, "comm": s.comm_ms, "wait": s.wait_ms}


def ranks_table(records: Sequence[RunRecord]) -> Grid:
    """Make the table of every rank's time."""
    headings = ["run", "rank", "role", "host", "compute", "serial", "comm", "wait", "memory"]
    rows = [
        [name, str(k.rank), k.role, k.host, *map(duration, _rank_parts_s(k).values()), num_bytes(k.max_rss_bytes)]
        for record, name in zip(records, run_names(records), strict=True)
        for k in record.ranks
    ]
    return Grid(headings, rows)


def _rank_parts_s(rank: RankRecord) -> dict[str, float]:
    return {
        "compute": max(0.0, rank.compute_s - rank.serial_s),
        "serial": rank.serial_s,
        "comm": rank.comm_s,
        "wait": rank.wait_s,
    }


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
        ),
        split_figure(
            "ranks",
            "Every rank's time",
            "The whole training, rank by rank: a rank that computes longer than the others makes them wait.",
            [label for label, _ in ranks],
            [{part: 1e3 * s for part, s in _rank_parts_s(rank).items()} for _, rank in ranks],
        ),
    ]


def runs_page(runs: Sequence[Stored]) -> Page:
    """Set the page of some runs from their records and folders."""
    records = [record for _, record in runs]
    drawn = drawn_runs(runs)
    loss, line = losses(drawn), timelines(drawn)
    tasks = ", ".join(dict.fromkeys(task_name(record.task) for record in records))
    tables = [
        table("Speed, and where a step's time goes", runs_table(records, SPEED)),
        table("What was learned", runs_table(records, LEARNED)),
    ]
    return Page(
        kicker="manyhands run report",
        title=f"{tasks}: {records[0].id if len(records) == 1 else count(len(records), 'run')}",
        headline=runs_headline(records),
        facts=machine(records[0].hardware),
        tiles=_tiles(records),
        sections=[
            Section("numbers", "The numbers", data=True, tables=tables, notes=_notes(records)),
            Section("learning", "Learning", short=True, figures=[loss] if loss else []),
            Section("time", "Where the time went", figures=run_figures(runs)),
            Section("timeline", "Timeline", short=True, figures=[line] if line else []),
            Section("ranks", "Ranks", short=True, tables=[table("Every rank's time and memory", ranks_table(records))]),
            Section(
                "machine", "The machine", short=True, facts=[facts(records[0].hardware), facts(records[0].versions)]
            ),
            Section("again", "Run it again", short=True, commands=_commands(runs)),
        ],
        markdown=runs_markdown(records),
        csv=as_csv(runs_numbers(records)),
        csv_name=f"{records[0].id}.csv",
        footer="Figures are those of single runs.",
    )


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
        as_markdown(runs_table(records, SPEED)).rstrip(),
        as_markdown(runs_table(records, LEARNED)).rstrip(),
        "\n".join(f"- {markdown_text(note)}" for note in _notes(records)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
