"""`manyhands runs`: list, show, compare and delete stored runs."""

import shutil
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.options import JSON_OPTION, OUT_OPTION
from manyhands.cli.show import print_json, results
from manyhands.cli.stored_run import print_record
from manyhands.cli.tables import print_table
from manyhands.record import RunDir
from manyhands.record.owner import own
from manyhands.record.status import record_of, status_of
from manyhands.record.texts import count
from manyhands.report.tables.runs import compared_table, list_table

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
    runs = RunDir.all_in(out)
    if json:
        records = [r.model_dump_json() for run in runs if (r := run.read_or_none())]
        others = [(run.path.name, *status_of(run)) for run in runs if not run.read_or_none()]
        unfinished = dumps([dict(zip(("id", "status", "says"), other, strict=True)) for other in others])
        print_json(f'{{"runs": [{", ".join(records)}], "unfinished": {unfinished}}}')
        return
    if not runs:
        results.print(f"no runs under '{out}' yet; try: manyhands train mlp", markup=False)
        return
    print_table(results, list_table(runs))
    if crossvals := len([*out.glob("*/crossval.json"), *out.glob("*/table.json")]):
        results.print(f"not listed: {count(crossvals, 'cross-validation')} in '{out}'", markup=False)


@app.command("show")
def show(run: RUN_ARGUMENT = "last", out: OUT_OPTION = Path("runs"), json: JSON_OPTION = False) -> None:
    """Show one run's record. Example: manyhands runs show last --json"""
    record = record_of(RunDir.find(out, run))
    if json:
        print_json(record.model_dump_json())
        return
    print_record(results, record)
    results.print(f"\nrun again: manyhands train --config {RunDir.find(out, run).toml}", markup=False)


@app.command("compare")
def compare(
    runs: Annotated[list[str], typer.Argument(help="Runs; speed-up is over the first.")],
    out: OUT_OPTION = Path("runs"),
) -> None:
    """Put runs side by side. Example: manyhands runs compare 0815-mlp-serial 0816-mlp-mpi2"""
    records = [record_of(RunDir.find(out, run)) for run in runs]
    print_table(results, compared_table(records, baseline=records[0], ids=True))
    same = len({r.weights_sha256 for r in records}) == 1
    threads = sorted({r.blas_threads for r in records})
    why = f"; matrix products used {' and '.join(map(str, threads))} threads" if len(threads) > 1 else ""
    results.print("the weights are the same, bit for bit" if same else f"the weights differ in their bits{why}")


@app.command("delete")
def delete(
    runs: Annotated[list[str], typer.Argument(help="Runs to delete.")],
    out: OUT_OPTION = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs with their checkpoints. Example: manyhands runs delete last"""
    found = [RunDir.find(out, run) for run in runs]
    for run in found:
        if yes or typer.confirm(f"delete {run.path}?"):
            with own(run.path, f"run '{run.path.name}'"):
                shutil.rmtree(run.path)
            results.print(f"deleted {run.path}", markup=False)
