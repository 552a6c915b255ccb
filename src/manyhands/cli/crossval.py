"""`manyhands crossval`: k-fold cross-validation, folds and data both in parallel."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyhands import launch
from manyhands.cli.bars import BarText, ProgressBars, eta
from manyhands.cli.options import (
    CONFIG_OPTION,
    JSON_OPTION,
    OUT_OPTION,
    check_early,
    config_options,
    with_config_file,
)
from manyhands.cli.show import people, print_json, results
from manyhands.cli.tables import print_table
from manyhands.config import read_toml
from manyhands.crossval.options import FOLDS, Options, make_options
from manyhands.errors import check
from manyhands.record.texts import NOTHING, duration, fixed, percent, times
from manyhands.report.tables.table import Column, tabulate
from manyhands.training.watch import Observer, ignore

if TYPE_CHECKING:
    from manyhands.crossval.record import CrossvalRecord, CrossvalTable, FoldScore
    from manyhands.crossval.run import ObserverOf
    from manyhands.record import Pulse


@config_options
def crossval(
    task: Annotated[str, typer.Argument(help="Task to cross-validate; may be left out with --config.")] = "",
    folds: Annotated[
        int | None, typer.Option(help=f"Parts of the training samples; each is held out once. [default: {FOLDS}]")
    ] = None,
    split_data: Annotated[
        bool,
        typer.Option(
            "--split-data",
            help="Cut the data over nodes, fold each part, average all weights, score the mean on the test split.",
        ),
    ] = False,
    nodes: Annotated[
        int | None,
        typer.Option(help="Nodes of --split-data; as many as workers if not given. More are trained in turn."),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Run --split-data for 1, 2, 4, 8 nodes and 2, 5, 10 folds.")
    ] = False,
    stacked: Annotated[
        bool | None,
        typer.Option(
            "--stacked/--no-stacked",
            help="Train a worker's folds as one batched model: equal to in turn to round-off. [default: where quicker]",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        bool | None,
        typer.Option(
            "--baseline/--no-baseline",
            help="Run on one worker too, for the speed-up and to compare the scores. [default: with several workers]",
            show_default=False,
        ),
    ] = None,
    config: CONFIG_OPTION = None,
    out: OUT_OPTION = Path("runs"),
    json: JSON_OPTION = False,
    *,
    options: dict[str, Any],
) -> None:
    """Cross-validate TASK on stratified folds of its training samples; the test split is left alone.

    Workers take whole folds; when there are more workers than folds, several train each fold together. Fold scores
    are those of one worker, to the last bit; of folds trained together to round-off, or to the bit with --exact.

    Every worker uses its share of the cores, and so does the one that it is compared with: for stacks of folds
    side by side, or inside the matrix products of folds in turn; --blas-threads sets the latter by hand.

    Example: manyhands crossval mlp --folds 10 --engine mpi --workers 4
    """
    if config and not task:
        task = str(read_toml(config).get("task", ""))
    check(bool(task), "which task? for example: manyhands crossval mlp --folds 5")
    given = {"folds": folds, "nodes": nodes, "stacked": stacked, "baseline": baseline}
    given |= {"split_data": split_data or None, "table": table or None}
    asked, settings = _with_file(config, given, options)
    check_early(task, settings)
    leads = launch.make(str(settings.get("engine", "mpi"))).leads
    with _progress(visible=leads) as observe, redirect_stdout(sys.stderr):
        if asked.table:
            found = _tabulate(task, asked, out=out, observe=observe, **settings)
        else:
            record = _cross_validate(task, asked, out=out, observe=observe, **settings)
    if not leads:
        return
    if asked.table:
        _show_table(found, out, as_json=json)
    else:
        _show(record, out, as_json=json)


def _with_file(config: Path | None, given: dict[str, Any], options: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Put a file's settings under what was given; return crossval's own apart from those of every run."""
    settings = with_config_file(config, {}, Options.model_fields)
    own = {name: settings.pop(name) for name in Options.model_fields if name in settings}
    settings.pop("eval_every", None)  # every run's file has it
    own |= {name: value for name, value in given.items() if value is not None}
    return make_options(own), {**settings, **options}


def _cross_validate(task: str, asked: Options, **settings: Any) -> "CrossvalRecord":
    from manyhands.crossval.run import cross_validate  # torch is slow to import: a bad request is refused before

    folds, nodes = FOLDS if asked.folds is None else asked.folds, asked.nodes
    for name, value in (("folds", folds), ("nodes", nodes)):
        check(not isinstance(value, list), f"{name} must be one number without --table, got {value}")
    own: dict[str, Any] = {"folds": folds, "nodes": nodes, "split_data": asked.split_data}
    return cross_validate(task, **own, stacked=asked.stacked, baseline=asked.baseline, **settings)


def _tabulate(task: str, asked: Options, **settings: Any) -> "CrossvalTable":
    from manyhands.crossval.run import tabulate

    lists = {name: value for name in ("folds", "nodes") if (value := getattr(asked, name)) is not None}
    for name, value in lists.items():
        check(isinstance(value, list), f"--table chooses the {name} itself; leave --{name} out")
    check(not asked.split_data, "--table cuts the data over nodes by itself; leave --split-data out")
    check(asked.baseline is None, "--table is held to its first number of nodes; leave --baseline out")
    return tabulate(task, **lists, stacked=asked.stacked, **settings)


@contextmanager
def _progress(*, visible: bool) -> "Iterator[ObserverOf]":
    """Draw a bar for each cross-validation on a terminal; elsewhere print a line at every tenth."""
    if not visible:
        yield lambda label, models: ignore
    elif not people.is_terminal:
        yield _lines
    else:
        bars = ProgressBars(people)
        with bars.progress:

            def observer(label: str, models: int) -> Observer:
                bar = bars.add(label)
                return lambda p: bars.show(bar, p.step, p.steps, _parts(p, models), left_s=p.eta_s)

            yield observer


def _lines(label: str, models: int) -> Observer:
    printed = [0]

    def show(p: "Pulse") -> None:
        tenths = 10 * p.step // max(1, p.steps)
        if tenths > printed[0]:
            printed[0] = tenths
            done, loss = (part.text for part in _parts(p, models))
            people.print(f"{label}: {done} · {eta(p.eta_s)} · {loss}", markup=False, soft_wrap=True)

    return show


def _parts(p: "Pulse", models: int) -> list[BarText]:
    done = models * p.step / max(1, p.steps)
    return [BarText(f"{done:.1f} of {models} folds"), BarText(f"train loss {fixed(p.loss, 4)}", 1)]


def _show(record: "CrossvalRecord", out: Path, *, as_json: bool) -> None:
    """Print the folds for people, and the answer: a sentence, or one JSON object."""
    _print_folds(record)
    if record.bit_equal is not None:
        people.print(_equality(record), markup=False, soft_wrap=True)
    if record.workers > record.hardware["cores"] and record.engine != "sim":
        note = f"{record.workers} workers shared {record.hardware['cores']} cores: these times say little"
        people.print(note, markup=False, soft_wrap=True)
    people.print(f"kept in {out / record.id}", markup=False, soft_wrap=True)
    if as_json:
        print_json(record.model_dump_json())
    else:
        results.print(sentence(record), markup=False)


def sentence(r: "CrossvalRecord") -> str:
    """Say the result in words."""
    interval = f" ± {100 * r.interval:.2f}" if r.interval is not None else ""
    cuts = f"{r.num_folds} folds" if r.nodes < 2 else f"{r.num_folds} folds on each of {r.nodes} nodes"
    sure = ", 95 % interval" if interval else ""
    parts = [f"accuracy {100 * r.accuracy:.2f}{interval} % (mean of {cuts}{sure}), test loss {fixed(r.loss, 4)}"]
    if r.hold_out:
        held = r.hold_out
        parts.append(
            f"hold-out accuracy {percent(100 * held.accuracy, 2)}, "
            f"training accuracy {percent(100 * held.train_accuracy, 2)} (mean weights)"
        )
    many = "worker" if r.workers == 1 else "workers"
    took = f"training took {duration(r.total_s)} on {r.workers} {many}"
    parts.append(f"{took} ({duration(r.wall_s)} with starting and reading)")
    if r.speed_up is not None and r.improvement_pct is not None:
        better = f"performance improvement {percent(r.improvement_pct)}"
        parts.append(f"speed-up {times(r.speed_up)}, {better if r.improvement_pct >= 0 else 'slower than one worker'}")
    return "; ".join(parts)


def _equality(r: "CrossvalRecord") -> str:
    if r.bit_equal:
        return "every fold has the accuracy, loss and weights of one worker, to the last bit"
    return f"the folds' losses differ from one worker's by at most {r.max_loss_difference:.1e} of their value"


def _print_folds(record: "CrossvalRecord") -> None:
    columns: list[Column[FoldScore]] = [
        Column("fold", lambda fold: f"{fold.node}.{fold.fold}" if record.nodes > 1 else str(fold.fold)),
        Column("samples", lambda fold: f"{fold.samples:,}", drop=3),
        Column("accuracy", lambda fold: percent(100 * fold.accuracy, 2)),
        Column("test loss", lambda fold: fixed(fold.loss, 4)),
        Column("time", lambda fold: duration(fold.seconds), drop=1),
        Column("weights", lambda fold: fold.weights_sha256[:12], drop=2),
    ]
    caption = f"{record.task}: {record.num_folds} folds, each tested on what it was not trained on"
    print_table(people, tabulate(columns, record.folds, caption))


def _show_table(found: "CrossvalTable", out: Path, *, as_json: bool) -> None:
    virtual = any(cell.nodes > cell.workers for cell in found.cells)
    if virtual:
        note = "where nodes are more than workers, these trained them in turn; 'node s' is the slowest node's own time"
        people.print(note, markup=False, soft_wrap=True)
    people.print(f"kept in {out / found.id}", markup=False, soft_wrap=True)
    if as_json:
        print_json(found.model_dump_json())
    else:
        _print_cells(found)


def _print_cells(found: "CrossvalTable") -> None:
    columns: list[Column[CrossvalRecord]] = [
        Column("nodes", lambda cell: str(cell.nodes)),
        Column("folds", lambda cell: str(cell.num_folds)),
        Column("workers", lambda cell: str(cell.workers), drop=3),
        Column("fold %", lambda cell: fixed(100 * cell.accuracy, 2)),
        Column("train %", lambda cell: _hold_out(cell, "train_accuracy"), drop=2),
        Column("hold-out %", lambda cell: _hold_out(cell, "accuracy")),
        Column("time s", lambda cell: fixed(cell.total_s, 1)),
        Column("time PI %", lambda cell: _saved(cell.improvement_pct)),
        Column("node s", lambda cell: fixed(cell.longest_node_s, 1), drop=1),
        Column("node PI %", lambda cell: _saved(cell.longest_node_improvement_pct), drop=1),
    ]
    print_table(results, tabulate(columns, found.cells))


def _hold_out(cell: "CrossvalRecord", name: str) -> str:
    assert cell.hold_out is not None, "a table's data is cut over nodes"
    return fixed(100 * getattr(cell.hold_out, name), 2)


def _saved(improvement_pct: float | None) -> str:
    """Write the time saved; none is, where it is slower than what it is held to."""
    return fixed(improvement_pct, 1) if (improvement_pct or 0.0) >= 0 else NOTHING
