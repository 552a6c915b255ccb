"""`manyhands verify`: prove that parallel equals serial."""

from pathlib import Path
from typing import Any

import typer

from manyhands.cli.options import CONFIG_OPTION, JSON_OPTION, TASK_ARGUMENT, config_options, with_config_file
from manyhands.cli.show import people, print_json, progress, results, side_by_side
from manyhands.errors import check
from manyhands.launch.environment import outer_world
from manyhands.request import resolve
from manyhands.verify import Verdict
from manyhands.verify import verify as verify_config


@config_options
def verify(
    task: TASK_ARGUMENT, config: CONFIG_OPTION = None, json: JSON_OPTION = False, *, options: dict[str, Any]
) -> None:
    """Run TASK serially and in parallel, step by step side by side; say equal, or where and why they part.

    Compares the weights after each of 20 steps (--steps for more). Exit status 0: equal; 1: different.

    Example: manyhands verify mlp --engine mpi --workers 3
    """
    settings = {"engine": "mpi", "workers": 2, **with_config_file(config, options)}
    check(outer_world() is None, "verify starts its own workers; run it without mpiexec, srun or torchrun")
    resolved = resolve(task, settings)
    with progress(f"verify {Path(task).name}") as observe:
        verdict = verify_config(resolved, observe=observe)
    people.print(side_by_side([verdict.serial, verdict.parallel]))
    if json:
        print_json(verdict.model_dump_json())
    else:
        results.print(sentence(verdict), markup=False)
    if not verdict.equal:
        raise typer.Exit(1)


def sentence(v: Verdict) -> str:
    """Say the verdict in words."""
    steps = f"{v.steps} step{'s' if v.steps != 1 else ''}"
    if v.bit_equal:
        return f"equal: the same bits after each of {steps}"
    measure = (
        f"largest difference {v.max_ulps:,} ulps, {v.max_relative:.1e} relative to the largest weight, "
        f"{v.share_of_change:.1e} of what training changed"
    )
    if v.equal:
        return f"equal to round-off after each of {steps}: {measure}"
    return f"different from step {v.first_step} on ({measure}); likely cause: {v.cause}"
