"""`manyhands profile`: which functions took the time, on one worker or on each of many."""

import statistics
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from manyhands import launch
from manyhands.cli.options import (
    CONFIG_OPTION,
    JSON_OPTION,
    OUT_OPTION,
    check_early,
    config_options,
    default_is,
    with_config_file,
)
from manyhands.cli.show import people, print_json, progress, results
from manyhands.cli.tables import print_table
from manyhands.config import RunConfig, read_toml
from manyhands.errors import check
from manyhands.profiling.defaults import PROFILE_S, TRACE
from manyhands.record import FunctionRow, LineRow, ProfileRecord, RankProfile
from manyhands.record.texts import NOTHING, duration, percent
from manyhands.report.tables.table import Column, Table, tabulate

ROWS = 20
MOST_COLUMNS = 8
"""Ranks that are compared side by side; of more, the least, the middle and the greatest share are shown."""
SELDOM = 1.2
"""How many times as often as in a whole training a run may evaluate without this being said."""


def _option(text: str, default: str) -> Any:
    return typer.Option(help=f"{text}{default_is(default)}", show_default=False)


@config_options
def profile(
    task: Annotated[str, typer.Argument(help="Task to profile; may be left out with --config.")] = "",
    steps: Annotated[int | None, _option("Steps of the run.", f"about {PROFILE_S:.0f} seconds of them")] = None,
    trace: Annotated[
        int | None, _option("Steps to keep a timeline of, in trace.json; 0 for none.", f"{TRACE}, or fewer")
    ] = None,
    rank: Annotated[int, typer.Option(help="Whose table to print.")] = 0,
    all_ranks: Annotated[bool, typer.Option("--all-ranks", help="Print every rank's table.")] = False,
    rows: Annotated[int, typer.Option(help="Functions in a table.")] = ROWS,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print the hot lines too: those that call torch's operations and the like.")
    ] = False,
    config: CONFIG_OPTION = None,
    out: OUT_OPTION = Path("runs"),
    json: JSON_OPTION = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train TASK for a few seconds and tell which functions took the time: share, self and total time, calls.

    One table for one worker; with many, one for a rank (--rank, --all-ranks) and all ranks side by side.

    Some steps are timed call by call, and what that costs is taken off: the run is slowed by less than 2 %.

    A timeline of some steps on every rank is left in trace.json, to be opened at ui.perfetto.dev or chrome://tracing.

    Example: manyhands profile cnn --engine mpi --workers 2
    """
    if config and not task:
        task = str(read_toml(config).get("task", ""))
    check(bool(task), "which task? for example: manyhands profile mlp")
    check(rows >= 1, f"rows must be at least 1, got {rows}")
    given = {name: value for name, value in (("steps", steps), ("trace", trace)) if value is not None}
    settings = with_config_file(config, {**options, **given})
    if trace is None and not settings.get("trace"):
        settings.pop("trace", None)  # every run's file has it
    check_early(task, settings)
    from manyhands.profiling.profile import profile as profile_task
    from manyhands.sync.base import num_ranks

    def accept(settled: RunConfig) -> None:
        ranks = num_ranks(settled)
        check(0 <= rank < ranks, f"there is no rank {rank}: this run has {ranks}, counted from 0")

    leads = launch.make(str(settings.get("engine", "mpi"))).leads
    with progress(Path(task).name, visible=leads) as observe, redirect_stdout(sys.stderr):
        record = profile_task(task, out=out, observe=observe, accept=accept, **settings)
    if leads:
        shown = record.ranks if all_ranks else [record.ranks[rank]]
        show(record, shown, people if json else results, rows=rows, lines=lines)
        _say_where(record, out)
        if json:
            print_json(record.model_dump_json())
    if record.status == "interrupted":
        raise typer.Exit(130)


def show(record: ProfileRecord, ranks: list[RankProfile], console: Console, *, rows: int, lines: bool) -> None:
    """Print the tables of these ranks, and all ranks side by side."""
    for profile in ranks:
        if not profile.timed_steps:
            console.print(f"rank {profile.rank}: no step was timed, since the run ended too early", markup=False)
            continue
        _print_functions(console, record, profile, rows)
        console.print(_caption(record, profile), markup=False, soft_wrap=True)
        if lines:
            console.print()
            title = "hot lines: what the compiled functions took that they call"
            print_table(console, tabulate(LINES, profile.lines[:rows], title))
    if len(record.ranks) > 1:
        _print_comparison(console, record, rows)
    if record.others is not None and record.others.disturbed:
        console.print(f"{record.others} meanwhile: on a quiet machine it is faster", markup=False, soft_wrap=True)


class _Spent(NamedTuple):
    """What a rank spent on a function, or on something else where `function` is None."""

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
    Column("line", lambda row: _place(row), left=True),
    Column("source", lambda row: row.source, drop=1, left=True),
)


def _print_functions(console: Console, record: ProfileRecord, profile: RankProfile, rows: int) -> None:
    """Print the table of papers/000: of a rank's whole run, what each function took."""
    kept = profile.functions[:rows]
    spent = [_Spent(_named(row.name, row.file), row.share_pct, row.self_s, row) for row in kept]
    for name, seconds in _others(profile, kept):
        spent.append(_Spent(Text(name, "italic"), _share_pct(seconds, profile), seconds))
    console.print()
    table = tabulate(FUNCTIONS, spent, _title(record, profile))
    print_table(console, table, styled={row.name.plain: row.name for row in spent})


def _share_pct(seconds: float, profile: RankProfile) -> float:
    return 100 * seconds / max(profile.total_s, 1e-9)


def _others(profile: RankProfile, kept: list[FunctionRow]) -> list[tuple[str, float]]:
    """Return what else the run spent its time on, with the name of each."""
    left_s = profile.loop_s - sum(row.self_s for row in kept)
    num_left = len(profile.functions) - len(kept)
    found = [(f"{num_left} more functions of the loop", left_s)] if num_left else []
    found += [("reading data", profile.read_s), ("evaluation", profile.eval_s), ("set-up and storing", profile.rest_s)]
    return [(name, seconds) for name, seconds in found if seconds > 0]


def _title(record: ProfileRecord, profile: RankProfile) -> str:
    many = f"{record.workers}×{record.threads}" if record.threads > 1 else f"×{record.workers}"
    engine = record.engine if record.engine == "serial" else f"{record.engine} {many}"
    whose = _short(profile) if len(record.ranks) > 1 else "one worker"
    step = duration(profile.loop_s / profile.steps if profile.steps else None)
    return (
        f"{Path(record.task).name}: {engine}, batch {record.batch_size}, {whose}: {profile.steps:,} {_unit(profile)} "
        f"of {step}, {duration(profile.total_s)} in all"
    )


def _caption(record: ProfileRecord, profile: RankProfile) -> str:
    """Say how the figures came about."""
    more = profile.disturbed_steps
    disturbed = f" ({more} more {'was' if more == 1 else 'were'} disturbed by other programs)" if more else ""
    says = (
        f"{profile.timed_steps} {_unit(profile)} were timed call by call{disturbed}; times and calls are scaled to all "
        f"{profile.steps:,}. Timing cost {percent(profile.cost_pct)} of the loop, and is taken off. Compiled "
        "functions, such as matrix products, count as the function that called them."
    )
    if record.device != "cpu":
        says += " A GPU's kernels are queued: what they take is found in the function that waits for them."
    per_step = record.evaluations / max(1, record.steps)
    if profile.eval_s and per_step * record.steps_per_evaluation > SELDOM:
        each_s = profile.eval_s / record.evaluations
        loop_s = profile.loop_s / max(1, profile.steps) * record.steps_per_evaluation
        says += f" In a whole training evaluation is {100 * each_s / (each_s + loop_s):.1f} %: it comes every "
        says += f"{record.steps_per_evaluation:,} steps."
    return says


def _unit(profile: RankProfile) -> str:
    return "steps" if profile.role == "worker" else "updates"


def _print_comparison(console: Console, record: ProfileRecord, rows: int) -> None:
    """Print the table of all ranks side by side: of its whole run, what each spent in each function."""
    shares: dict[tuple[str, str, int], dict[int, float]] = {}
    for profile in record.ranks:
        for row in profile.functions:
            shares.setdefault((row.name, row.file, row.line), {})[profile.rank] = row.share_pct
        for name, seconds in _others(profile, profile.functions):
            shares.setdefault((name, "", 0), {})[profile.rank] = _share_pct(seconds, profile)
    ordered = sorted(shares, key=lambda key: -max(shares[key].values()))[:rows]
    many = len(record.ranks) > MOST_COLUMNS
    headings = ["least", "middle", "most", "on rank"] if many else [_short(profile) for profile in record.ranks]
    names = [_named(*key[:2]) if key[1] else Text(key[0], "italic") for key in ordered]
    cells = []
    for key, written in zip(ordered, names, strict=True):
        each = [shares[key].get(profile.rank, 0.0) for profile in record.ranks]
        spread = [f"{share:.2f}" for share in (min(each), statistics.median(each), max(each))]
        figures = [*spread, str(each.index(max(each)))] if many else [f"{share:.2f}" for share in each]
        cells.append([*figures, written.plain])
    columns: list[Column[Any]] = [Column(heading, drop=i) for i, heading in enumerate(headings)]
    table = Table([*columns, Column("function", left=True)], cells, "% time of every rank")
    console.print()
    print_table(console, table, styled={written.plain: written for written in names})


def _short(profile: RankProfile) -> str:
    return f"rank {profile.rank}" if profile.role == "worker" else f"server {profile.rank}"


def _named(name: str, file: str) -> Text:
    """Write a function's name, and where it is from unless it is ours."""
    package = Path(file).name if Path(file).is_absolute() else Path(file).parts[0].removesuffix(".py")
    return Text(name) if package == "manyhands" else Text.assemble(name, " ", (package, "dim"))


def _place(row: LineRow) -> str:
    return f"{Path(row.file).name if Path(row.file).is_absolute() else row.file}:{row.line}"


def _say_where(record: ProfileRecord, out: Path) -> None:
    folder = out / record.id
    if record.trace:
        sentence = f"timeline: {folder / record.trace} (drag it into ui.perfetto.dev or chrome://tracing)"
        people.print(sentence, markup=False, soft_wrap=True)
    people.print(f"kept in {folder}", markup=False, soft_wrap=True)
