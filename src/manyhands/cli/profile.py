"""`manyhands profile`: which functions took the time, on one worker or on each of many."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from manyhands.cli.options import SETTINGS, CommandOption, ConfigFile, Json, RunsFolder, command_options, read_settings
from manyhands.cli.show import finish, people, progress, results, say
from manyhands.cli.tables import print_table
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.launch.environment import leads
from manyhands.profiling.defaults import PROFILE_S, TRACE
from manyhands.record.profile import FunctionRow, LineRow, ProfileRecord, RankProfile
from manyhands.record.texts import NOTHING, duration, percent, workers_name
from manyhands.report.tables.table import Column, Table, tabulate

MOST_COLUMNS = 8
"""Ranks that are compared side by side; of more, the least, the middle and the greatest share are shown."""
SELDOM = 1.2
"""How many times as often as in a whole training a run may evaluate without a note on it."""
OPTIONS = {
    "steps": CommandOption(int, "Steps of the run.", f"about {PROFILE_S:.0f} seconds of them"),
    "trace": CommandOption(int, "Steps to keep a timeline of, in trace.json; 0 for none.", f"{TRACE}, or fewer"),
}


@command_options(OPTIONS, SETTINGS)
def profile(
    task: Annotated[str, typer.Argument(help="Task to profile; may be left out with --config.")] = "",
    rank: Annotated[int, typer.Option(help="Whose table to print.")] = 0,
    all_ranks: Annotated[bool, typer.Option("--all-ranks", help="Print every rank's table.")] = False,
    rows: Annotated[int, typer.Option(help="Functions in a table.")] = 20,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print the hot lines too: those that call torch's operations and the like.")
    ] = False,
    config: ConfigFile = None,
    out: RunsFolder = Path("runs"),
    json: Json = False,
    *,
    request: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Train TASK for a few seconds and tell which functions took the time: share, self and total time, calls.

    One table for one worker; with many, one for a rank (--rank, --all-ranks) and all ranks side by side.

    Some steps are timed call by call; the cost of that, less than 2 % of the run, is subtracted.

    A timeline of some steps on every rank is left in trace.json, to be opened at ui.perfetto.dev or chrome://tracing.

    Example: manyhands profile cnn --engine mpi --workers 2
    """
    task, settings = read_settings(task, config, {**request, **options}, example="manyhands profile mlp")
    check(rows >= 1, f"rows must be at least 1, got {rows}")
    if "trace" not in request and not settings.get("trace"):
        settings.pop("trace", None)  # every run's file has it
    from manyhands.profiling.profile import profile as profile_task
    from manyhands.sync.base import num_ranks

    def accept(settled: RunConfig) -> None:
        ranks = num_ranks(settled)
        check(0 <= rank < ranks, f"there is no rank {rank}: this run has {ranks}, counted from 0")

    with progress(Path(task).name, visible=leads()) as observe:
        record = profile_task(task, out=out, observe=observe, accept=accept, **settings)
    if leads():
        shown = record.ranks if all_ranks else [record.ranks[rank]]
        show(record, shown, people if json else results, rows=rows, lines=lines)
        folder = out / record.id
        if record.trace:
            say(f"timeline: {folder / record.trace} (drag it into ui.perfetto.dev or chrome://tracing)")
        say(f"kept in {folder}")
    finish(record, as_json=json and leads())


def show(record: ProfileRecord, ranks: list[RankProfile], console: Console, *, rows: int, lines: bool) -> None:
    """Print a table for each of `ranks`, and one with all ranks side by side."""
    for profile in ranks:
        if not profile.timed_steps:
            say(f"rank {profile.rank}: no step was timed, since the run ended too early", to=console)
            continue
        console.print()
        spent = _spent(profile, rows)
        styled = {row.name.plain: row.name for row in spent}
        print_table(console, tabulate(FUNCTIONS, spent, _title(record, profile)), styled=styled)
        say(_caption(record, profile), to=console)
        if lines:
            console.print()
            title = "hot lines: time in the compiled functions that they call"
            print_table(console, tabulate(LINES, profile.lines[:rows], title))
    if len(record.ranks) > 1:
        console.print()
        _print_comparison(console, record, rows)
    if record.others is not None and record.others.disturbed:
        say(f"{record.others} meanwhile: on a quiet machine it is faster", to=console)


class _Spent(NamedTuple):
    """The time that a rank spent in a function, or on something else where `function` is None."""

    name: Text
    share_pct: float
    self_s: float
    function: FunctionRow | None = None


def _of_function(heading: str, text: Callable[[FunctionRow], str], drop: int) -> Column[_Spent]:
    return Column(heading, lambda spent: text(spent.function) if spent.function else NOTHING, drop=drop)


FUNCTIONS: tuple[Column[_Spent], ...] = (
    Column("% time", lambda spent: f"{spent.share_pct:.2f}"),
    Column("self s", lambda spent: f"{spent.self_s:.3f}", drop=1),
    _of_function("total s", lambda row: f"{row.total_s:.3f}", drop=2),
    _of_function("calls", lambda row: f"{row.calls:,}" if row.calls else NOTHING, drop=3),
    _of_function("self\nms/call", lambda row: f"{row.self_ms_per_call:.4f}" if row.calls else NOTHING, drop=4),
    _of_function("total\nms/call", lambda row: f"{row.total_ms_per_call:.4f}" if row.calls else NOTHING, drop=5),
    Column("function", lambda spent: spent.name.plain, left=True),
)
LINES: tuple[Column[LineRow], ...] = (
    Column("% time", lambda row: f"{row.share_pct:.2f}"),
    Column("self s", lambda row: f"{row.self_s:.3f}", drop=2),
    Column("calls", lambda row: f"{row.calls:,}", drop=3),
    Column(
        "line", lambda row: f"{Path(row.file).name if Path(row.file).is_absolute() else row.file}:{row.line}", left=True
    ),
    Column("source", lambda row: row.source, drop=1, left=True),
)


def _spent(profile: RankProfile, rows: int) -> list[_Spent]:
    """Return the rows of papers/000's table: what a rank's first `rows` functions took, and everything else."""
    kept = profile.functions[:rows]
    left_s = profile.loop_s - sum(row.self_s for row in kept)
    more = len(profile.functions) - len(kept)
    others = {
        f"{more} more functions of the loop": left_s if more else 0.0,
        "reading data": profile.read_s,
        "evaluation": profile.eval_s,
        "set-up and storing": profile.rest_s,
    }
    return [
        *(_Spent(_named(row), row.share_pct, row.self_s, row) for row in kept),
        *(
            _Spent(Text(name, "italic"), 100 * seconds / max(profile.total_s, 1e-9), seconds)
            for name, seconds in others.items()
            if seconds > 0
        ),
    ]


def _title(record: ProfileRecord, profile: RankProfile) -> str:
    engine = workers_name(record.engine, record.workers, record.threads)
    whose = _short(profile) if len(record.ranks) > 1 else "one worker"
    step = duration(profile.loop_s / profile.steps if profile.steps else None)
    return (
        f"{Path(record.task).name}: {engine}, batch {record.batch_size}, {whose}: {profile.steps:,} {_unit(profile)} "
        f"of {step}, {duration(profile.total_s)} in all"
    )


def _caption(record: ProfileRecord, profile: RankProfile) -> str:
    """Say how the figures were measured."""
    more = profile.disturbed_steps
    disturbed = f" ({more} more {'was' if more == 1 else 'were'} disturbed by other programs)" if more else ""
    says = (
        f"{profile.timed_steps} {_unit(profile)} were timed call by call{disturbed}; times and calls are scaled to all "
        f"{profile.steps:,}. Timing cost {percent(profile.cost_pct)} of the loop, and is subtracted. Compiled "
        "functions, such as matrix products, count as the function that called them."
    )
    if record.device != "cpu":
        says += " A GPU's kernels are queued: their time counts as that of the function that waits for them."
    per_step = record.evaluations / max(1, record.steps)
    if profile.eval_s and per_step * record.steps_per_evaluation > SELDOM:
        one_s = profile.eval_s / record.evaluations
        loop_s = profile.loop_s / max(1, profile.steps) * record.steps_per_evaluation
        says += f" In a whole training evaluation is {100 * one_s / (one_s + loop_s):.1f} %: it comes every "
        says += f"{record.steps_per_evaluation:,} steps."
    return says


def _unit(profile: RankProfile) -> str:
    return "steps" if profile.role == "worker" else "updates"


def _print_comparison(console: Console, record: ProfileRecord, rows: int) -> None:
    """Print the table of all ranks side by side: the share of each rank's whole run that each function took."""
    names: dict[tuple[str, str, int], Text] = {}
    shares: dict[tuple[str, str, int], list[float]] = {}
    for i, profile in enumerate(record.ranks):
        for spent in _spent(profile, len(profile.functions)):
            function = spent.function
            key = (function.name, function.file, function.line) if function else (spent.name.plain, "", 0)
            names[key] = spent.name
            shares.setdefault(key, [0.0] * len(record.ranks))[i] = spent.share_pct
    ordered = sorted(shares, key=lambda key: -max(shares[key]))[:rows]
    many = len(record.ranks) > MOST_COLUMNS
    headings = ["least", "middle", "most", "on rank"] if many else [_short(profile) for profile in record.ranks]
    cells = []
    for key in ordered:
        ranks, most = shares[key], max(shares[key])
        shown = [min(ranks), statistics.median(ranks), most] if many else ranks
        at = [str(ranks.index(most))] if many else []
        cells.append([*(f"{share:.2f}" for share in shown), *at, names[key].plain])
    columns: list[Column[Any]] = [Column(heading, drop=i) for i, heading in enumerate(headings)]
    table = Table([*columns, Column("function", left=True)], cells, "% time of every rank")
    print_table(console, table, styled={name.plain: name for name in names.values()})


def _short(profile: RankProfile) -> str:
    return f"rank {profile.rank}" if profile.role == "worker" else f"server {profile.rank}"


def _named(row: FunctionRow) -> Text:
    """Write a function's name, and the package or file of it unless it is ours."""
    path = Path(row.file)
    package = path.name if path.is_absolute() else path.parts[0].removesuffix(".py")
    return Text(row.name) if package == "manyhands" else Text.assemble(row.name, " ", (package, "dim"))
