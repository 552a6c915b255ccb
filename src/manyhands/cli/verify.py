"""`manyhands verify`: prove that parallel equals serial."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.options import SETTINGS, ConfigFile, Json, TaskName, command_options, read_settings
from manyhands.cli.show import people, print_json, progress, results, say
from manyhands.cli.tables import print_table
from manyhands.errors import check
from manyhands.launch.environment import outer_world

if TYPE_CHECKING:
    from manyhands.verification.verify import Verdict


@command_options({}, SETTINGS)
def verify(task: TaskName, config: ConfigFile = None, json: Json = False, *, options: dict[str, Any]) -> None:
    """Run TASK serially and in parallel, step by step side by side; say equal, or where and why they part.

    Compares the weights after each of 20 steps (--steps for more). Exit status 0: equal; 1: different.

    Example: manyhands verify mlp --engine mpi --workers 3
    """
    check(outer_world() is None, "verify starts its own workers; run it without mpiexec, srun or torchrun")
    task, settings = read_settings(task, config, options, example="manyhands verify mlp")
    from manyhands.report.tables.runs import answers_table
    from manyhands.request import resolve  # imports torch: a bad request is refused before
    from manyhands.verification.verify import verify as verify_config

    with redirect_stdout(sys.stderr):  # a task file may print
        resolved = resolve(task, {"engine": "mpi", "workers": 2, **settings})
    with progress(f"verify {Path(task).name}") as observe:
        verdict = verify_config(resolved, observe=observe)
    print_table(people, answers_table([verdict.serial, verdict.parallel]))
    if json:
        print_json(verdict.model_dump_json())
    else:
        say("; ".join(filter(None, (sentence(verdict), verdict.precision))), to=results)
    if not verdict.equal:
        raise typer.Exit(1)


def sentence(v: "Verdict") -> str:
    """Return the verdict in words: equal or not, by how much, and the likely causes."""
    steps = f"{v.steps} step{'s' if v.steps != 1 else ''}"
    if v.bit_equal:
        return f"equal: the same bits after each of {steps}"
    measure = (
        f"largest difference {v.max_ulps:,} ulps, {v.max_relative:.1e} relative to the largest weight, "
        f"{v.share_of_change:.1e} of the change that training made"
    )
    where = f"{v.tensor_share:.1e} of the change that training made to it"
    if v.equal:
        nearest = f"nearest to the bound is '{v.tensor}' with {where}, and round-off may make {v.bound:.1e}"
        return f"equal to round-off after each of {steps}: {measure}; {nearest} ({v.bound_from})"
    causes = f"likely cause: {v.cause}" if v.cause else f"possible causes: {'; '.join(v.candidates)}"
    if v.parallel.config.exact:
        return f"not the same bits: different from step {v.first_step} on, first in '{v.tensor}' ({measure}); {causes}"
    bound = f"'{v.tensor}' by {where}, where round-off makes at most {v.bound:.1e} ({v.bound_from})"
    verdict = "not round-off" if v.tensor_share > v.bound else "too far apart to tell"
    return f"{verdict}: different from step {v.first_step} on, first in {bound}; {measure}; {causes}"
