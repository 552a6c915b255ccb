"""Cross-validate on many workers, one fold or several on each, and compare the result with that of one worker."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import launch, sync, tasks
from manyhands.config import RunConfig, as_toml
from manyhands.crossval.options import FOLDS, Options, make_options
from manyhands.crossval.record import CrossvalRecord, CrossvalTable, FoldScore, HoldOut, half_interval
from manyhands.crossval.units import FoldSettings, Sharing, assign, has_classes, units_of, write_places
from manyhands.crossval.worker import PLACES, alone_or_together, crossval_rank
from manyhands.data import Dataset
from manyhands.data.folds import check_classes
from manyhands.errors import check
from manyhands.launch.base import Observer
from manyhands.launch.environment import outer_world
from manyhands.launch.failures import sharing_failures
from manyhands.machine import facts
from manyhands.record.files import write_atomically, writing
from manyhands.record.run import RunDir, new_id
from manyhands.record.store import write_record, writing_below
from manyhands.replica import Replica
from manyhands.replica.fused import FusedReplica
from manyhands.replica.nested import moved
from manyhands.replica.traits import traits_of
from manyhands.request import resolve
from manyhands.run import Ready, ignore, print_warning, try_step
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.tasks.setup import load_data
from manyhands.training.job import Job
from manyhands.training.monitor import check_unwatched

TABLE_NODES, TABLE_FOLDS = (1, 2, 4, 8), (2, 5, 10)
STARTERS = "mpiexec, srun or torchrun"
SMALL = 50_000
"""Number of weights up to which a network of any kind is stacked on a CPU."""

ObserverOf = Callable[[str, int], Observer]
"""Returns the observer of one cross-validation, given its label and the number of models it trains."""


class _Inputs(NamedTuple):
    """The task and its data, and how long it took to read."""

    task: Task
    data: Dataset
    read_s: float


@sharing_failures()
def cross_validate(
    task: str | Task,
    *,
    folds: int = FOLDS,
    split_data: bool = False,
    nodes: int | None = None,
    stacked: bool | None = None,
    baseline: bool | None = None,
    out: str | Path = "runs",
    observe: ObserverOf = lambda label, models: ignore,
    **options: Any,
) -> CrossvalRecord:
    """Cross-validate a task with the options of `manyhands crossval`.

    >>> record = cross_validate("mlp", folds=10, engine="mpi", workers=4)  # doctest: +SKIP
    """
    check_not_importing()
    task, config = _resolve(task, options, Path(out))
    wanted = make_options(
        {"folds": folds, "split_data": split_data, "nodes": nodes, "stacked": stacked, "baseline": baseline}
    )
    check(split_data or nodes is None, f"nodes {nodes} needs --split-data, which cuts the data over them")
    check(nodes is None or nodes >= 1, f"nodes must be at least 1, got {nodes}")
    settings = FoldSettings(folds=folds, nodes=(nodes or config.workers) if split_data else 0, stacked=bool(stacked))
    launcher = launch.make(config.engine)
    launcher.check(config)
    launcher.agree("")  # ranks that were started from outside meet before one that reads much data keeps others waiting
    inputs = _load(config, task)
    tried = _preflight(config, settings, inputs)
    if stacked is None:
        settings = replace(settings, stacked=_stacks(config, settings, tried.replica))
    compares = _compares(config, settings, baseline)
    run = _open(Path(out), config, wanted)
    config, settings = _share_cores(config, settings, tried.replica)
    _warn(config, tried.warnings)
    record = _run(config, settings, inputs, run, observe, tried.warnings)
    if compares:
        # With the threads of each of the workers, which may change the bits of a product.
        alone = config.model_copy(update={"engine": "serial", "workers": 1, "threads": 1})
        single = replace(settings, nodes=min(settings.nodes, 1))
        label = "baseline: one worker"
        record = record.against(_run(alone, single, inputs, RunDir(run.path / "baseline"), observe, label=label))
    if launcher.leads:
        write_record(run.path / "crossval.json", record)
    return record


def tabulate(
    task: str | Task,
    *,
    nodes: Sequence[int] = TABLE_NODES,
    folds: Sequence[int] = TABLE_FOLDS,
    stacked: bool | None = None,
    out: str | Path = "runs",
    observe: ObserverOf = lambda label, models: ignore,
    **options: Any,
) -> CrossvalTable:
    """Cross-validate with the data split over each number of nodes, for each number of folds (the paper's tables).

    There are as many workers as nodes, up to those of the config; each trains its nodes in turn. The first number of
    nodes is the baseline of the others.
    """
    check_not_importing()
    check(outer_world() is None, f"a table starts its own workers; run it without {STARTERS}")
    task, config = _resolve(task, options, Path(out))
    wanted = make_options({"table": True, "folds": list(folds), "nodes": list(nodes), "stacked": stacked})
    check(len(nodes) > 0 and len(folds) > 0, "a table needs at least one number of nodes and one of folds")
    check(min(nodes) >= 1, f"nodes must be at least 1, got {min(nodes)}")
    cells = [
        (
            config.model_copy(update={"workers": min(config.workers, num_nodes)}),
            FoldSettings(folds=num_folds, nodes=num_nodes, stacked=bool(stacked)),
        )
        for num_nodes in nodes
        for num_folds in folds
    ]
    inputs = _load(config, task)
    tried = [_preflight(*cell, inputs) for cell in cells]
    replica = tried[0].replica
    if stacked is None:
        # One answer for all cells, since their times are compared.
        stacks = _stacks(*max(cells, key=lambda cell: cell[1].nodes), replica)
        cells = [(cell_config, replace(settings, stacked=stacks)) for cell_config, settings in cells]
    run = _open(Path(out), config, wanted)
    _warn(config, dict.fromkeys(sentence for ready in tried for sentence in ready.warnings))
    records: list[CrossvalRecord] = []
    baselines: dict[int, CrossvalRecord] = {}
    for cell, ready in zip(cells, tried, strict=True):
        cell_config, settings = _share_cores(*cell, replica)
        folder = RunDir(run.path / f"nodes-{settings.nodes}-folds-{settings.folds}")
        record = _run(cell_config, settings, inputs, folder, observe, ready.warnings)
        baseline = baselines.setdefault(settings.folds, record)
        records.append(record.against(baseline) if settings.nodes != nodes[0] else record)
    table = CrossvalTable(id=run.path.name, nodes=list(nodes), folds=list(folds), cells=records)
    write_record(run.path / "table.json", table)
    return table


def _resolve(task: str | Task, options: dict[str, Any], out: Path) -> tuple[Task, RunConfig]:
    check(options.get("eval_every") is None, "a fold is tested once, after its last epoch; leave --eval-every out")
    for option in ("eval_steps", "patience", "keep_best"):
        check(
            not options.get(option),
            f"a fold is tested once, after its last step; leave --{option.replace('_', '-')} out",
        )
    name, task = (task, tasks.load(task)) if isinstance(task, str) else (name_of(task), task)
    return task, resolve(name, options, task, out=out)


def _stacks(config: RunConfig, settings: FoldSettings, replica: Replica) -> bool:
    """Return whether to stack if the user did not say: where it is no slower, and the workers change no bits.

    A stack of Linear layers gives each model the same bits however many are stacked, with one thread on a CPU. A large
    network of another kind keeps a core as busy alone. Workers in groups do not stack, but their baseline does.
    """
    if config.exact:
        return False
    fused, cuda = isinstance(replica, FusedReplica), replica.params.is_cuda
    if config.workers == 1 or Sharing(settings.num_units, config.workers).in_groups:
        return fused or cuda or replica.params.numel() <= SMALL
    return fused and not cuda and config.blas_threads <= 1


def _share_cores(config: RunConfig, settings: FoldSettings, replica: Replica) -> tuple[RunConfig, FoldSettings]:
    """Give each worker its share of the cores, unless the user set the threads of its matrix products.

    Stacks of Linear layers use the cores side by side, folds in turn inside the matrix products; networks of other
    stacks are too small to gain.
    """
    if config.blas_threads:
        return config, settings
    share = 1 if config.exact else max(1, facts.cores() // config.workers)
    stacks = settings.stacked and not Sharing(settings.num_units, config.workers).in_groups
    side_by_side = stacks and isinstance(replica, FusedReplica) and not replica.params.is_cuda
    shared = config.model_copy(update={"blas_threads": 1 if stacks else share})
    return shared, replace(settings, threads=share if side_by_side else 1)


def _load(config: RunConfig, task: Task) -> _Inputs:
    started = time.perf_counter()
    data = load_data(task, config, scan=launch.make(config.engine).leads)
    return _Inputs(task, data, time.perf_counter() - started)


def _warn(config: RunConfig, warnings: Iterable[str]) -> None:
    for sentence in warnings if launch.make(config.engine).leads else ():
        print_warning(sentence)


def _preflight(config: RunConfig, settings: FoldSettings, inputs: _Inputs) -> Ready:
    """Check the whole request before any worker starts; return a replica that has tried a step, and warnings."""
    launcher = launch.make(config.engine)
    check(
        "split" in launcher.features,
        f"engine {config.engine} cannot form the groups that crossval needs; choose serial, threads, mpi, torch or ray",
    )
    launcher.check(config)
    check(config.checkpoint_every == 0, "crossval keeps no checkpoints; leave --checkpoint-every out")
    both = config.exact and settings.stacked
    check(not both, "give --exact or --stacked, not both: stacked models round differently")
    servers = sync.make(config.sync).num_servers()
    check(servers == 0, f"sync '{config.sync}' needs server ranks, which crossval has not; use allreduce")
    num, sharing = settings.num_units, Sharing(settings.num_units, config.workers)
    check(
        config.sync == "allreduce" or sharing.in_groups,
        f"sync '{config.sync}' would do nothing, since one worker trains each of the {num} folds; "
        f"leave --sync out, or use more than {num} workers",
    )
    data = inputs.data
    by_class = has_classes(data, inputs.task.loss)
    if by_class and data.train.labels is not None:
        check_classes(data.train.labels, settings.num_units, str(settings))
    rows = data.train.num_rows
    check(rows >= settings.num_units, f"{settings} need as many training samples, but there are {rows}")
    # A step of one fold of each size is tried, as by `train` before it starts.
    probe = alone_or_together(config, sharing.largest_group)
    probe = probe.model_copy(update={"data": "", "image_size": 0, "replicate": 1})
    sizes = {
        len(unit.train): unit
        for unit in units_of(assign(data.train, settings, config.seed, by_class=by_class), settings)
    }
    for unit in sizes.values():
        tried = try_step(probe, replace(inputs.task, data=partial(unit.of, data)))
    replica = tried.replica
    check_unwatched(replica, "a fold is tested once, after its last step")
    x, _ = data.train.batch(slice(0, min(2, len(data.train))), replica.params.dtype)
    check(
        config.engine != "threads" or not traits_of(replica.module, moved(x, replica.params.device)).global_random,
        "threads cannot each train a model that draws from a process-wide generator; "
        "draw with torch along the batch, or use --engine mpi",
    )
    return tried


def _compares(config: RunConfig, settings: FoldSettings, baseline: bool | None) -> bool:
    """Return whether to run on one worker too: where that differs, unless processes were started from outside."""
    outside = outer_world() is not None
    check(not (baseline and outside), f"--baseline starts a run of its own; give it without {STARTERS}")
    return (config.workers > 1 or settings.nodes > 1) and baseline is not False and not outside


def _run(
    config: RunConfig,
    settings: FoldSettings,
    inputs: _Inputs,
    run: RunDir,
    observe: ObserverOf,
    warnings: Sequence[str] = (),
    label: str = "",
) -> CrossvalRecord:
    label = label or f"{settings}, {config.workers} worker{'s' if config.workers > 1 else ''}"
    observer = observe(label, settings.num_units)
    launcher = launch.make(config.engine)
    if launcher.leads:
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
        by_class = has_classes(inputs.data, inputs.task.loss)
        places = assign(inputs.data.train, settings, config.seed, by_class=by_class)
        write_places(run.path / PLACES, places)
    launcher.agree("the folds are written")
    job = Job(config, run, task=inputs.task, data=inputs.data, extra=asdict(settings))
    started = time.perf_counter()
    result = launcher.launch(crossval_rank, job, observer)[0]
    if result["status"] == "interrupted":
        raise KeyboardInterrupt
    wall_s = time.perf_counter() - started + inputs.read_s
    folds = [FoldScore.model_validate(fold) for fold in result["folds"]]
    accuracies = [fold.accuracy for fold in folds if fold.accuracy is not None]
    nodes = {fold.node for fold in folds}
    return CrossvalRecord(
        id=run.path.name,
        task=config.task,
        engine=config.engine,
        sync=config.sync,
        workers=config.workers,
        num_folds=settings.folds,
        nodes=settings.nodes,
        folds=folds,
        accuracy=sum(accuracies) / len(folds) if accuracies else None,
        interval=half_interval(accuracies, settings.folds) if accuracies else None,
        loss=sum(fold.loss for fold in folds) / len(folds),
        metrics={name: sum(fold.metrics[name] for fold in folds) / len(folds) for name in folds[0].metrics},
        hold_out=HoldOut.model_validate(result["hold_out"]) if result["hold_out"] else None,
        total_s=result["total_s"],
        wall_s=wall_s,
        longest_node_s=max(sum(fold.seconds for fold in folds if fold.node == node) for node in nodes),
        warnings=list(warnings),
        hardware=facts.hardware(),
        versions=facts.versions(),
        config=config,
    )


def _open(out: Path, config: RunConfig, wanted: Options) -> RunDir:
    """Make the folder and write the settings, to run again with `--config`."""
    launcher = launch.make(config.engine)
    run = RunDir(out / launcher.agree(f"{new_id(config)}-crossval"))
    if launcher.leads:
        run.make()
        with writing_below(out):
            write_atomically(
                run.path / "crossval.toml", as_toml({**config.model_dump(), **wanted.model_dump(exclude_none=True)})
            )
    return run
