"""`manyhands crossval`: k-fold cross-validation, folds and data both in parallel."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manyhands.cli.bars import BarText
from manyhands.cli.options import SETTINGS, CommandOption, ConfigFile, Json, RunsFolder, command_options, read_settings
from manyhands.cli.show import people, print_json, results, run_bars, say
from manyhands.cli.tables import print_table
from manyhands.crossval.options import FOLDS, Options, make_options
from manyhands.errors import check
from manyhands.launch.environment import leads
from manyhands.record.texts import NOTHING, accuracy_text, count, duration, fixed, percent, times
from manyhands.report.tables.table import Column, Table, tabulate

if TYPE_CHECKING:
    from manyhands.crossval.record import CrossvalRecord, CrossvalTable, FoldScore
    from manyhands.record.run import Pulse

OPTIONS = {
    "folds": CommandOption(int, "Parts of the training samples; each is held out once.", FOLDS),
    "split_data": CommandOption(
        bool, "Cut the data over nodes, fold each part, average all weights, score the mean on the test split."
    ),
    "nodes": CommandOption(int, "Nodes of --split-data; as many as workers if not given. More are trained in turn."),
    "table": CommandOption(bool, "Run --split-data for 1, 2, 4, 8 nodes and 2, 5, 10 folds."),
    "stacked": CommandOption(
        bool,
        "Train a worker's folds as one batched model: equal to in turn to round-off.",
        "where quicker",
        ("--stacked/--no-stacked",),
    ),
    "baseline": CommandOption(
        bool,
        "Run on one worker too, for the speed-up and to compare the scores.",
        "with several workers",
        ("--baseline/--no-baseline",),
    ),
}


@command_options(OPTIONS, SETTINGS)
def crossval(
    task: Annotated[str, typer.Argument(help="Task to cross-validate; may be left out with --config.")] = "",
    config: ConfigFile = None,
    out: RunsFolder = Path("runs"),
    json: Json = False,
    *,
    request: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Cross-validate TASK on stratified folds of its training samples; the test split is left alone.

    Workers take whole folds; when there are more workers than folds, several train each fold together. Fold scores
    are those of one worker, to the last bit; of folds trained together to round-off, or to the bit with --exact.

    Every worker uses its share of the cores, and so does the one that it is compared with: for stacks of folds
    side by side, or inside the matrix products of folds in turn; --blas-threads sets the latter by hand.

    Example: manyhands crossval mlp --folds 10 --engine mpi --workers 4
    """
    example = "manyhands crossval mlp --folds 5"
    task, settings = read_settings(task, config, {**request, **options}, example=example, further=Options.model_fields)
    wanted = make_options({name: settings.pop(name) for name in Options.model_fields if name in settings})
    _check_table(wanted)
    if "eval_every" not in options:
        settings.pop("eval_every", None)  # every run's file has it
    from manyhands.crossval.run import cross_validate  # imports torch: a bad request is refused before
    from manyhands.crossval.run import tabulate as cross_validate_all

    given = wanted.model_dump(exclude={"table", "split_data"}, exclude_none=True)
    with run_bars(visible=leads()) as observer:
        given |= {"out": out, "observe": lambda label, models: observer(f"{label}:", lambda p: _parts(p, models))}
        result: CrossvalRecord | CrossvalTable
        if wanted.table:
            result = cross_validate_all(task, **given, **settings)
        else:
            result = cross_validate(task, split_data=wanted.split_data, **given, **settings)
    if leads():
        _show(result, out, as_json=json)


def _check_table(wanted: Options) -> None:
    """Refuse options that `--table` sets itself, and several numbers of folds or nodes without it."""
    for name in ("folds", "nodes"):
        value = getattr(wanted, name)
        if wanted.table:
            check(value is None or isinstance(value, list), f"--table chooses the {name} itself; leave --{name} out")
        else:
            check(not isinstance(value, list), f"{name} must be one number without --table, got {value}")
    if wanted.table:
        check(not wanted.split_data, "--table cuts the data over nodes by itself; leave --split-data out")
        check(wanted.baseline is None, "--table is held to its first number of nodes; leave --baseline out")


def _parts(p: "Pulse", models: int) -> list[BarText]:
    done = models * p.step / max(1, p.steps)
    return [BarText(f"{done:.1f} of {models} folds"), BarText(f"train loss {fixed(p.loss, 4)}", 1)]


def _show(result: "CrossvalRecord | CrossvalTable", out: Path, *, as_json: bool) -> None:
    """Print the folds and notes for people, and the answer: a sentence or a table, or one JSON object."""
    from manyhands.crossval.record import CrossvalRecord

    if isinstance(result, CrossvalRecord):
        print_table(people, _folds_table(result))
        if result.bit_equal:
            say("every fold has the accuracy, loss and weights of one worker, to the last bit")
        elif result.bit_equal is not None:
            difference = f"{result.max_loss_difference:.1e} of their value"
            say(f"the folds' losses differ from one worker's by at most {difference}")
        cores = result.hardware["cores"]
        if result.workers > cores and result.engine != "sim":
            say(f"{result.workers} workers shared {cores} cores: these times say little about how the work scales")
    elif any(cell.nodes > cell.workers for cell in result.cells):
        say("where nodes outnumber workers, workers trained them in turn; 'node s' is the slowest node's own time")
    say(f"kept in {out / result.id}")
    if as_json:
        print_json(result.model_dump_json())
    elif isinstance(result, CrossvalRecord):
        say(sentence(result), to=results)
    else:
        print_table(results, tabulate(CELLS, result.cells))


def sentence(r: "CrossvalRecord") -> str:
    """Return the result in words: accuracy, loss, time, and speed-up over one worker."""
    interval = f" ± {100 * r.interval:.2f}" if r.interval is not None else ""
    cuts = f"{r.num_folds} folds" if r.nodes < 2 else f"{r.num_folds} folds on each of {r.nodes} nodes"
    sure = ", 95 % interval" if interval else ""
    parts = [f"test loss {fixed(r.loss, 4)}"]
    if r.accuracy is None:
        parts[0] += f" (mean of {cuts})"
    else:
        parts.insert(0, f"accuracy {100 * r.accuracy:.2f}{interval} % (mean of {cuts}{sure})")
        parts = [", ".join(parts)]
    parts += [f"{name} {fixed(value, 4)}" for name, value in r.metrics.items()]
    if r.hold_out and r.hold_out.accuracy is None:
        parts.append(f"hold-out loss {fixed(r.hold_out.loss, 4)}, training loss {fixed(r.hold_out.train_loss, 4)}")
    elif r.hold_out:
        held, trained = (accuracy_text(share) for share in (r.hold_out.accuracy, r.hold_out.train_accuracy))
        parts.append(f"hold-out accuracy {held}, training accuracy {trained} (mean weights)")
    took = f"training took {duration(r.total_s)} on {count(r.workers, 'worker')}"
    parts.append(f"{took} ({duration(r.wall_s)} with starting and reading)")
    if r.speed_up is not None and r.improvement_pct is not None:
        better = f"performance improvement {percent(r.improvement_pct)}"
        parts.append(f"speed-up {times(r.speed_up)}, {better if r.improvement_pct >= 0 else 'slower than one worker'}")
    return "; ".join(parts)


def _folds_table(record: "CrossvalRecord") -> Table:
    columns: list[Column[FoldScore]] = [
        Column("fold", lambda fold: f"{fold.node}.{fold.fold}" if record.nodes > 1 else str(fold.fold)),
        Column("samples", lambda fold: f"{fold.samples:,}", drop=3),
        Column("accuracy", lambda fold: accuracy_text(fold.accuracy)),
        Column("test loss", lambda fold: fixed(fold.loss, 4)),
        Column("time", lambda fold: duration(fold.seconds), drop=1),
        Column("weights", lambda fold: fold.weights_sha256[:12], drop=2),
    ]
    caption = f"{record.task}: {record.num_folds} folds, each tested on what it was not trained on"
    return tabulate(columns, record.folds, caption)


def _hold_out(cell: "CrossvalRecord", name: str) -> str:
    assert cell.hold_out is not None, "a table's data is cut over nodes"
    return _in_percent(getattr(cell.hold_out, name))


def _in_percent(share: float | None) -> str:
    return fixed(None if share is None else 100 * share, 2)


def _saved(improvement_pct: float | None) -> str:
    """Write the time saved, or a dash where a cell is slower than the one it is compared with."""
    return fixed(improvement_pct, 1) if (improvement_pct or 0.0) >= 0 else NOTHING


CELLS: "tuple[Column[CrossvalRecord], ...]" = (
    Column("nodes", lambda cell: str(cell.nodes)),
    Column("folds", lambda cell: str(cell.num_folds)),
    Column("workers", lambda cell: str(cell.workers), drop=3),
    Column("fold %", lambda cell: _in_percent(cell.accuracy)),
    Column("train %", lambda cell: _hold_out(cell, "train_accuracy"), drop=2),
    Column("hold-out %", lambda cell: _hold_out(cell, "accuracy")),
    Column("time s", lambda cell: fixed(cell.total_s, 1)),
    Column("time PI %", lambda cell: _saved(cell.improvement_pct)),
    Column("node s", lambda cell: fixed(cell.longest_node_s, 1), drop=1),
    Column("node PI %", lambda cell: _saved(cell.longest_node_improvement_pct), drop=1),
)
