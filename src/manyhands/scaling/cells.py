"""The cells of a sweep, and the options of their runs."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

from manyhands import launch, sync
from manyhands.data.order import num_batches
from manyhands.errors import UserError, check
from manyhands.record.sweep import Cell
from manyhands.request import resolve
from manyhands.scaling.request import SweepRequest
from manyhands.sync.base import check_features
from manyhands.tasks import Task
from manyhands.training.plan import AT_END

TRACE_STEPS = 6
"""Steps of a run's timeline, for the report; the same in all runs, so that all are alike."""


def make_cells(request: SweepRequest) -> list[Cell]:
    """Return the distinct cells: for each batch and image size the baseline, the probes, and the cells to compare."""
    cells: list[Cell] = []
    for image_size, batch_size in product(request.image_sizes, request.batch_sizes):
        alone = Cell(
            role="baseline",
            engine="serial",
            workers=1,
            batch_size=batch_size,
            image_size=image_size,
            replicate=request.replicate,
        )
        cells += [alone, *_probes(request, alone), *_compared(request, alone)]
    return list(dict.fromkeys(cells))  # two batches may ask for the same probe


def why_not(request: SweepRequest, cell: Cell, task: Task) -> str:
    """Return why a cell cannot run, in the words of `manyhands train`; empty where no obstacle is known."""
    try:
        _check(request, cell, task)
    except UserError as error:
        return str(error)
    return ""


def run_options(request: SweepRequest, cell: Cell) -> dict[str, Any]:
    """Return the options of a run of this cell, without its steps."""
    threads = cell.threads if cell.threads > 1 else 0
    optional = {"epochs": request.epochs, "threads": threads, "image_size": cell.image_size}
    return {
        **request.options,
        **{name: value for name, value in optional.items() if value},
        **cell.model_dump(include={"engine", "workers", "sync", "batch_size", "replicate"}),
        **AT_END,
        "trace": TRACE_STEPS,
    }


def steps_per_epoch(request: SweepRequest, cell: Cell) -> int:
    """Return the number of steps in an epoch of this cell."""
    samples = num_samples(request, cell)
    return 1 if cell.batch_size == "full" else num_batches(samples, min(cell.batch_size, samples))


def num_samples(request: SweepRequest, cell: Cell) -> int:
    """Return the number of training samples of this cell, replicated ones included."""
    return request.samples // request.replicate * cell.replicate


def own_steps(request: SweepRequest) -> int:
    """Return the fewest steps that any baseline needs for the requested epochs, or else the task's own."""
    alone = [cell for cell in make_cells(request) if cell.role == "baseline"]
    return min((request.epochs or request.own_epochs) * steps_per_epoch(request, cell) for cell in alone)


def num_steps(request: SweepRequest, cell: Cell) -> int:
    """Return the steps of a run of this cell, once they are chosen.

    A probe measures the time of a step: it makes no more steps than others, though its batches are smaller.
    """
    if not request.epochs:
        return request.steps
    return own_steps(request) if cell.role == "probe" else request.epochs * steps_per_epoch(request, cell)


def _probes(request: SweepRequest, alone: Cell) -> Iterator[Cell]:
    """Yield the cells of one worker alone with the batch of one of n workers."""
    if request.kind == "weak":
        return
    whole = request.samples if alone.batch_size == "full" else min(alone.batch_size, request.samples)
    for n in request.workers:
        if n > 1:
            yield alone.model_copy(update={"role": "probe", "batch_size": math.ceil(whole / n)})


def _compared(request: SweepRequest, alone: Cell) -> Iterator[Cell]:
    """Yield the cells of several workers, in a weak sweep with n times the baseline's work for n workers."""
    for engine, spec, n in product(request.engines, request.syncs, request.workers):
        if engine == "serial" or n == 1:
            continue
        # Hybrid workers that do not divide evenly over processes are refused later.
        threads = request.threads if engine == "hybrid" and n % request.threads == 0 else 1
        change = {"role": "cell", "engine": engine, "sync": spec, "workers": n // threads, "threads": threads}
        if request.kind == "weak" and alone.batch_size == "full":
            change["replicate"] = alone.replicate * n
        elif request.kind == "weak":
            change["batch_size"] = alone.batch_size * n
        yield alone.model_copy(update=change)


def _check(request: SweepRequest, cell: Cell, task: Task) -> None:
    divides = cell.engine != "hybrid" or cell.size % request.threads == 0
    check(divides, f"{cell.size} workers cannot be processes of {request.threads} threads each; see --threads")
    launcher, strategy = launch.make(cell.engine), sync.make(cell.sync)
    config = resolve(request.task, run_options(request, cell), task)
    launcher.check(config)
    check_features(strategy, launcher.features, cell.engine)
    check(strategy.exact or not config.exact, f"--exact needs an exact sync, and '{cell.sync}' is not one")
    samples = num_samples(request, cell)
    check(
        cell.size <= samples,
        f"{cell.size} workers cannot share {samples} training samples; use at most {samples} workers",
    )
    check(
        request.kind == "strong" or cell.batch_size == "full" or cell.batch_size <= samples,
        f"a batch of {cell.batch_size} is more than the {samples} training samples; "
        f"give each worker less with --batch-sizes, or add --replicate",
    )
