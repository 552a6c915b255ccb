"""`manyhands runs`: list, show, compare and delete stored runs."""

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from manyhands.cli.options import JSON_OPTION, OUT_OPTION
from manyhands.cli.show import name_of, print_json, results, table_of
from manyhands.errors import UserError
from manyhands.record import RunDir, RunRecord, find_run, list_runs

app = typer.Typer(
    help="List, show, compare and delete stored runs.\n\nExample: manyhands runs compare serial mpi2",
    invoke_without_command=True,
)

RUN_ARGUMENT = Annotated[str, typer.Argument(help="An id, a unique part of one, a folder, or 'last'.")]


@app.callback()
def default(context: typer.Context, out: OUT_OPTION = Path("runs")) -> None:
    """List the runs, unless another command is given."""
    if context.invoked_subcommand is None:
        show_list(out)


@app.command("list")
def show_list(out: OUT_OPTION = Path("runs"), json: JSON_OPTION = False) -> None:
    """List the stored runs, oldest first."""
    runs = list_runs(out)
    if json:
        records = [r.model_dump_json() for run in runs if (r := run.read())]
        print_json('{"runs": [' + ", ".join(records) + "]}")
        return
    if not runs:
        results.print(f"no runs under '{out}' yet; try: manyhands train mlp", markup=False)
        return
    table = Table()
    for heading in ("id", "status", "workers", "sync"):
        table.add_column(heading, overflow="fold")
    for heading in ("steps", "accuracy", "samples/s"):
        table.add_column(heading, justify="right")
    for run in runs:
        table.add_row(*_row(run))
    results.print(table, soft_wrap=False)


@app.command("show")
def show(run: RUN_ARGUMENT = "last", out: OUT_OPTION = Path("runs"), json: JSON_OPTION = False) -> None:
    """Show one run's record. Example: manyhands runs show last --json"""
    record = _record(find_run(out, run))
    if json:
        print_json(record.model_dump_json())
        return
    results.print(table_of([record], title=record.id), soft_wrap=False)
    for key, value in record.model_dump(exclude={"ranks", "config"}).items():
        results.print(f"{key:>16}  {value}", markup=False)
    for rank in record.ranks:
        results.print(f"{'rank':>16}  {rank.model_dump()}", markup=False)
    results.print(f"{'run again':>16}  manyhands train --config {find_run(out, run).toml}", markup=False)


@app.command("compare")
def compare(
    runs: Annotated[list[str], typer.Argument(help="Runs; speed-up is over the first.")],
    out: OUT_OPTION = Path("runs"),
) -> None:
    """Put runs side by side. Example: manyhands runs compare 0815-mlp-serial 0816-mlp-mpi2"""
    records = [_record(find_run(out, run)) for run in runs]
    results.print(table_of(records, baseline=records[0]), soft_wrap=False)
    same = len({r.weights_sha256 for r in records}) == 1
    results.print("the weights are the same, bit for bit" if same else "the weights differ in their bits")


@app.command("delete")
def delete(
    runs: Annotated[list[str], typer.Argument(help="Runs to delete.")],
    out: OUT_OPTION = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs with their checkpoints. Example: manyhands runs delete last"""
    found = [find_run(out, run) for run in runs]
    for run in found:
        if yes or typer.confirm(f"delete {run.path}?"):
            shutil.rmtree(run.path)
            results.print(f"deleted {run.path}", markup=False)


def _record(run: RunDir) -> RunRecord:
    record = run.read()
    if record is None:
        raise UserError(f"run '{run.path.name}' has no record: it did not end by itself")
    return record


def _row(run: RunDir) -> list[str]:
    record = run.read()
    if record is None:
        return [run.path.name, "unfinished", "", "", "", "", ""]
    return [
        record.id,
        record.status,
        name_of(record),
        record.sync,
        f"{record.steps:,}",
        f"{100 * record.test_accuracy:.2f} %",
        f"{record.samples_per_s:,.0f}",
    ]
