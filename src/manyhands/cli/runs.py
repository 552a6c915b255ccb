"""`manyhands runs`: list, show, compare and delete stored runs."""

import shutil
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from manyhands.cli.options import Json, RunsFolder
from manyhands.cli.show import print_json, results, say
from manyhands.cli.tables import print_facts, print_table
from manyhands.record.owner import own
from manyhands.record.run import RunDir, RunRecord
from manyhands.record.status import record_of, status_of
from manyhands.record.texts import (
    NOTHING,
    accuracy_text,
    count,
    duration,
    figure,
    fixed,
    num_bytes,
    rate,
    share,
    workers_name,
)
from manyhands.report.tables.runs import compared_table, list_table, ranks_table

app = typer.Typer(
    help="List, show, compare and delete stored runs.\n\nExample: manyhands runs compare serial mpi2",
    invoke_without_command=True,
)

RunName = Annotated[str, typer.Argument(help="An id, a unique part of one, a folder, or 'last'.")]
SHOWN = {"task", "engine", "workers", "threads", "sync", "batch_size", "lr", "seed", "device"}
"""Settings that are always shown; of the others, those that differ from their defaults."""


@app.callback()
def default(context: typer.Context, out: RunsFolder = Path("runs")) -> None:
    """List the runs, unless another command is given."""
    if context.invoked_subcommand is None:
        show_list(out)


@app.command("list")
def show_list(out: RunsFolder = Path("runs"), json: Json = False) -> None:
    """List the stored runs, oldest first."""
    runs = RunDir.all_in(out)
    if json:
        records = [r.model_dump_json() for run in runs if (r := run.read_or_none())]
        others = [(run.path.name, *status_of(run)) for run in runs if not run.read_or_none()]
        unfinished = dumps([dict(zip(("id", "status", "says"), other, strict=True)) for other in others])
        print_json(f'{{"runs": [{", ".join(records)}], "unfinished": {unfinished}}}')
        return
    if not runs:
        say(f"no runs under '{out}' yet; try: manyhands train mlp", to=results)
        return
    print_table(results, list_table(runs))
    if crossvals := len([*out.glob("*/crossval.json"), *out.glob("*/table.json")]):
        say(f"not listed: {count(crossvals, 'cross-validation')} in '{out}'", to=results)


@app.command("show")
def show(run: RunName = "last", out: RunsFolder = Path("runs"), json: Json = False) -> None:
    """Show one run's record. Example: manyhands runs show last --json"""
    folder = RunDir.find(out, run)
    record = record_of(folder)
    if json:
        print_json(record.model_dump_json())
        return
    print_record(results, record)
    say(f"\nrun again: manyhands train --config {folder.toml}", to=results)


@app.command("compare")
def compare(
    runs: Annotated[list[str], typer.Argument(help="Runs; speed-up is over the first.")],
    out: RunsFolder = Path("runs"),
) -> None:
    """Put runs side by side. Example: manyhands runs compare 0815-mlp-serial 0816-mlp-mpi2"""
    records = [record_of(RunDir.find(out, run)) for run in runs]
    print_table(results, compared_table(records, baseline=records[0], ids=True))
    same = len({r.weights_sha256 for r in records}) == 1
    threads = sorted({r.blas_threads for r in records})
    why = f"; matrix products used {' and '.join(map(str, threads))} threads" if len(threads) > 1 else ""
    say("the weights are the same, bit for bit" if same else f"the weights differ in their bits{why}", to=results)


@app.command("delete")
def delete(
    runs: Annotated[list[str], typer.Argument(help="Runs to delete.")],
    out: RunsFolder = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs with their checkpoints. Example: manyhands runs delete last"""
    for folder in [RunDir.find(out, run).path for run in runs]:
        if yes or typer.confirm(f"delete {folder}?"):
            with own(folder, f"run '{folder.name}'"):
                shutil.rmtree(folder)
            say(f"deleted {folder}", to=results)


def print_record(console: Console, record: RunRecord) -> None:
    """Print a record in groups, then a table of its ranks."""
    say(f"{record.id} ({record.status})", to=console, style="bold")
    parts = {"result": _result, "speed": _speed, "exchange": _exchange, "settings": _settings, "machine": _machine}
    groups = {
        title: {f"  {name}": text for name, text in describe(record).items() if text}
        for title, describe in parts.items()
    }
    width = max(len(name) for facts in groups.values() for name in facts)
    for title, facts in groups.items():
        say(f"\n{title}", to=console, style="italic")
        print_facts(console, facts, width)
    console.print()
    print_table(console, ranks_table([record]), "every rank's time in training, and its memory")


def _result(r: RunRecord) -> dict[str, str]:
    losses = [fixed(loss, 4) for loss in r.train_loss[-5:]]
    before = "… " if len(r.train_loss) > len(losses) else ""
    trained = f"{count(r.steps, 'step')}, {count(r.samples, 'sample')}, {count(r.epochs, 'epoch')} begun"
    return {
        "accuracy": "" if r.test_accuracy is None else f"{accuracy_text(r.test_accuracy)} of the test samples",
        "test loss": fixed(r.test_loss, 4),
        **{name: figure(value, 5) for name, value in r.metrics.items()},
        "best": "" if r.best_step is None else f"weights of step {r.best_step:,}, by {r.config.monitor}",
        "train loss": f"{before}{', '.join(losses) or NOTHING} (mean of each epoch)",
        "trained": trained
        + (f"; resumed at step {r.resumed_from:,}" if r.resumed_from else "")
        + ("; stopped early" if r.stopped_early else ""),
        "weights sha256": r.weights_sha256,
        "weights missing": r.weights_missing,
        "warnings": "; ".join(r.warnings),
    }


def _speed(r: RunRecord) -> dict[str, str]:
    steady, busy = r.steady, r.compute_s + r.comm_s + r.wait_s
    data_ms = steady.gather_ms
    parts = (("compute", steady.compute_ms - data_ms), ("data", data_ms), ("serial", steady.serial_ms))
    others = (("comm", steady.comm_ms), ("wait", steady.wait_ms))
    split = ", ".join(f"{name} {share(ms, steady.step_ms)}" for name, ms in (*parts, *others))
    training = (("compute", r.compute_s - r.data_s), ("data", r.data_s), ("comm", r.comm_s), ("wait", r.wait_s))
    shares = ", ".join(f"{name} {share(s, busy)}" for name, s in training)
    median, late = (duration(ms / 1e3 or None) for ms in (r.step_ms.median, r.step_ms.p90))
    return {
        "samples/s": rate(r.samples_per_s),
        "disturbed": f"{r.others} meanwhile" if r.others is not None and r.others.disturbed else "",
        "BLAS threads": f"{r.blas_threads} in each worker" if r.blas_threads else "",
        "step": f"{median} (median), {late} (90th percentile)" if r.step_ms.p90 else NOTHING,
        "warmed-up step": f"{duration(steady.step_ms / 1e3)}: {split}" if steady.step_ms else NOTHING,
        "training time": f"{duration(busy)}: {shares} (mean of the workers)" if busy else NOTHING,
        "total time": f"{duration(r.total_s)}, with {duration(r.read_s)} to read data and {duration(r.eval_s)} to test",
    }


def _exchange(r: RunRecord) -> dict[str, str]:
    steps = r.steps - r.resumed_from
    per_step = f"; {num_bytes(r.bytes_sent / steps)} a step" if steps > 0 else ""
    return {"sent": f"{num_bytes(r.bytes_sent)} in {count(r.messages, 'message')}, all ranks together{per_step}"}


def _settings(r: RunRecord) -> dict[str, str]:
    changed = r.config.model_dump(exclude_defaults=True, exclude=SHOWN)
    return {
        "task": r.task,
        "workers": f"{workers_name(r.engine, r.workers, r.threads)}, {r.sync}",
        "batch size": f"{r.batch_size:,}",
        "learning rate": f"{r.config.lr:g}",
        "seed": str(r.seed),
        "device": r.device,
        "parameters": f"{r.parameters:,}",
        "further": ", ".join(f"{name.replace('_', '-')} {value}" for name, value in changed.items()),
    }


def _machine(r: RunRecord) -> dict[str, str]:
    about = dict(r.hardware)
    gpus = ", ".join(map(str, about.pop("gpus", None) or [])) or "none"
    cores, cpu, memory = (about.pop(name, NOTHING) for name in ("cores", "cpu", "memory_gib"))
    return {
        **{name: str(value) for name, value in about.items()},
        "processor": f"{cores} cores of {cpu}, {memory} GiB",
        "GPUs": gpus,
        "versions": ", ".join(f"{name} {version}" for name, version in r.versions.items()),
    }
