"""From what a sweep was asked for to its cells, and what the runs of each are given."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

from manyhands import launch, sync
from manyhands.data.order import num_batches
from manyhands.errors import UserError, check
from manyhands.record import Cell
from manyhands.request import resolve
from manyhands.scaling.request import SweepRequest
from manyhands.sync.base import check_features
from manyhands.tasks import Task
from manyhands.training.plan import NEVER

TRACE_STEPS = 6
"""Steps of each run of which the report may draw a timeline; in all runs, so that all are alike."""


def make_cells(asked: SweepRequest) -> list[Cell]:
    """Return every cell once: for each batch and image size one worker alone, the probes, and what is compared."""
    cells: list[Cell] = []
    for image_size, batch_size in product(asked.image_sizes, asked.batch_sizes):
        alone = Cell(
            role="baseline",
            engine="serial",
            workers=1,
            batch_size=batch_size,
            image_size=image_size,
            replicate=asked.replicate,
        )
        cells += [alone, *_probes(asked, alone), *_compared(asked, alone)]
    return list(dict.fromkeys(cells))  # two batches may ask for the same probe


def why_not(asked: SweepRequest, cell: Cell, task: Task) -> str:
    """Say why a cell cannot run, in the words of `manyhands train`; nothing where it can, as far as is known yet."""
    try:
        _check(asked, cell, task)
    except UserError as error:
        return str(error)
    return ""


def run_options(asked: SweepRequest, cell: Cell) -> dict[str, Any]:
    """Return what a run of this cell is given, but for its steps."""
    threads = {"threads": cell.threads} if cell.threads > 1 else {}
    image_size = {"image_size": cell.image_size} if cell.image_size else {}
    epochs = {"epochs": asked.epochs} if asked.epochs else {}
    return {
        **asked.options,
        **epochs,
        "engine": cell.engine,
        "workers": cell.workers,
        **threads,
        "sync": cell.sync,
        "batch_size": cell.batch_size,
        **image_size,
        "replicate": cell.replicate,
        "eval_every": NEVER,
        "trace": TRACE_STEPS,
    }


def steps_per_epoch(asked: SweepRequest, cell: Cell) -> int:
    """Return the steps in which this cell sees every sample once."""
    samples = num_samples(asked, cell)
    return 1 if cell.batch_size == "full" else num_batches(samples, min(cell.batch_size, samples))


def num_samples(asked: SweepRequest, cell: Cell) -> int:
    """Return how many training samples this cell has, those that are repeated included."""
    return asked.samples // asked.replicate * cell.replicate


def own_steps(asked: SweepRequest) -> int:
    """Return the fewest steps in which one worker alone would train the epochs asked for, or the task's own."""
    alone = [cell for cell in make_cells(asked) if cell.role == "baseline"]
    return min((asked.epochs or asked.own_epochs) * steps_per_epoch(asked, cell) for cell in alone)


def num_steps(asked: SweepRequest, cell: Cell) -> int:
    """Return how many steps a run of this cell makes, once that is chosen.

    A probe tells how long a step takes: it needs no more of them than others do, though its batches are smaller.
    """
    if not asked.epochs:
        return asked.steps
    return own_steps(asked) if cell.role == "probe" else asked.epochs * steps_per_epoch(asked, cell)


def _probes(asked: SweepRequest, alone: Cell) -> Iterator[Cell]:
    """Yield one worker alone with the batch that each of n workers gets."""
    if asked.kind == "weak":
        return
    whole = asked.samples if alone.batch_size == "full" else min(alone.batch_size, asked.samples)
    for n in asked.workers:
        if n > 1:
            yield alone.model_copy(update={"role": "probe", "batch_size": math.ceil(whole / n)})


def _compared(asked: SweepRequest, alone: Cell) -> Iterator[Cell]:
    """Yield the cells of several workers; one worker of any engine is the baseline."""
    engines = [engine for engine in asked.engines if engine != "serial"]
    for engine, spec, n in product(engines, asked.syncs, asked.workers):
        if n > 1:
            many = _many(engine, n, asked.threads)
            work = _more_work(alone, n) if asked.kind == "weak" else {}
            yield alone.model_copy(update={"role": "cell", "engine": engine, "sync": spec, **many, **work})


def _many(engine: str, n: int, threads: int) -> dict[str, int]:
    """Share n workers out over processes and threads; hybrid workers that do not divide are refused later."""
    if engine == "hybrid" and n % threads == 0:
        return {"workers": n // threads, "threads": threads}
    return {"workers": n, "threads": 1}


def _more_work(alone: Cell, n: int) -> dict[str, int]:
    """Give n workers n times the work of one."""
    if alone.batch_size == "full":
        return {"replicate": alone.replicate * n}
    return {"batch_size": alone.batch_size * n}


def _check(asked: SweepRequest, cell: Cell, task: Task) -> None:
    divides = cell.engine != "hybrid" or cell.size % asked.threads == 0
    check(divides, f"{cell.size} workers cannot be processes of {asked.threads} threads each; see --threads")
    launcher, strategy = launch.make(cell.engine), sync.make(cell.sync)
    config = resolve(asked.task, run_options(asked, cell), task)
    launcher.check(config)
    check_features(strategy, launcher.features, cell.engine)
    check(strategy.exact or not config.exact, f"--exact needs an exact sync, and '{cell.sync}' is not one")
    samples = num_samples(asked, cell)
    check(
        cell.size <= samples,
        f"{cell.size} workers cannot share {samples} training samples; use at most {samples} workers",
    )
    check(
        asked.kind == "strong" or cell.batch_size == "full" or cell.batch_size <= samples,
        f"a batch of {cell.batch_size} is more than the {samples} training samples; "
        f"give each worker less with --batch-sizes, or add --replicate",
    )
