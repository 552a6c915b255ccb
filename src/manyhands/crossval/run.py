"""Cross-validate on many workers, one fold or several to each, and hold the result to what one worker gives."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import launch, sync, tasks
from manyhands.config import RunConfig
from manyhands.crossval.options import FOLDS, Options, make_options
from manyhands.crossval.record import CrossvalRecord, CrossvalTable, FoldScore, HoldOut, half_interval
from manyhands.crossval.units import FoldsAsk, Sharing, assign, check_units, units_of, write_places
from manyhands.crossval.worker import PLACES, alone_or_together, crossval_rank
from manyhands.data import Dataset
from manyhands.errors import check
from manyhands.launch.base import Observer
from manyhands.launch.environment import outer_world
from manyhands.launch.failures import sharing_failures
from manyhands.machine import facts
from manyhands.record import RunDir, new_id, write_atomically
from manyhands.record.files import writing
from manyhands.record.store import write_record, writing_below
from manyhands.replica import Replica
from manyhands.replica.fused import FusedReplica
from manyhands.replica.traits import traits_of
from manyhands.request import resolve
from manyhands.run import ignore, print_warning, try_step
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.tasks.setup import load_data
from manyhands.training.job import Job

TABLE_NODES, TABLE_FOLDS = (1, 2, 4, 8), (2, 5, 10)
STARTERS = "mpiexec, srun or torchrun"
SMALL = 50_000
"""Weights up to which a network of any kind is stacked on a CPU."""

ObserverOf = Callable[[str, int], Observer]
"""Makes the observer of one cross-validation, from what it is and how many models it trains."""


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
    own, config = _resolve(task, options)
    wanted = make_options(
        {"folds": folds, "split_data": split_data, "nodes": nodes, "stacked": stacked, "baseline": baseline}
    )
    check(split_data or nodes is None, f"nodes {nodes} needs --split-data, which cuts the data over them")
    check(nodes is None or nodes >= 1, f"nodes must be at least 1, got {nodes}")
    ask = FoldsAsk(folds=folds, nodes=(nodes or config.workers) if split_data else 0, stacked=bool(stacked))
    _meet(config)
    ready = _load(config, own)
    replica, warnings = _preflight(config, ask, own, ready.data)
    if stacked is None:
        ask = replace(ask, stacked=_stacks(config, ask, replica))
    compares = _compares(config, ask, baseline)
    run = _open(Path(out), config, wanted)
    config, ask = _share_cores(config, ask, replica)
    _warn(config, warnings)
    record = _run(config, ask, own, ready, run, observe(_label(config, ask), ask.num_units), warnings)
    if compares:
        # With the threads of each of the workers, which may change the bits of a product.
        alone = config.model_copy(update={"engine": "serial", "workers": 1, "threads": 1})
        single = replace(ask, nodes=min(ask.nodes, 1))
        beside = RunDir(run.path / "baseline")
        label = "baseline: one worker"
        record = record.against(_run(alone, single, own, ready, beside, observe(label, single.num_units)))
    _store(run, "crossval.json", record, config)
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
    """Cross-validate with the data cut over each number of nodes, for each number of folds (the paper's tables).

    As many workers as nodes take part, up to those of the config; each trains its nodes in turn. The first number
    of nodes is what the others' times are held to.
    """
    check_not_importing()
    check(outer_world() is None, f"a table starts its own workers; run it without {STARTERS}")
    own, config = _resolve(task, options)
    wanted = make_options({"table": True, "folds": list(folds), "nodes": list(nodes), "stacked": stacked})
    check(len(nodes) > 0 and len(folds) > 0, "a table needs at least one number of nodes and one of folds")
    check(min(nodes) >= 1, f"nodes must be at least 1, got {min(nodes)}")
    asks = [FoldsAsk(folds=k, nodes=n, stacked=bool(stacked)) for n in nodes for k in folds]
    ready = _load(config, own)
    tried = [_preflight(_with_workers(config, ask), ask, own, ready.data) for ask in asks]
    replica = tried[0].replica
    if stacked is None:
        # One answer for all cells, since their times are compared.
        widest = max(asks, key=lambda ask: ask.nodes)
        stacks = _stacks(_with_workers(config, widest), widest, replica)
        asks = [replace(ask, stacked=stacks) for ask in asks]
    run = _open(Path(out), config, wanted)
    _warn(config, dict.fromkeys(sentence for cell in tried for sentence in cell.warnings))
    cells: dict[int, dict[int, CrossvalRecord]] = {}
    for each, (_, warnings) in zip(asks, tried, strict=True):
        here, ask = _share_cores(_with_workers(config, each), each, replica)
        folder = RunDir(run.path / f"nodes-{ask.nodes}-folds-{ask.folds}")
        cell = _run(here, ask, own, ready, folder, observe(_label(here, ask), ask.num_units), warnings)
        first = cells.setdefault(ask.folds, {}).setdefault(nodes[0], cell)
        cells[ask.folds][ask.nodes] = cell.against(first) if ask.nodes != nodes[0] else cell
    flat = [cells[k][n] for n in nodes for k in folds]
    table = CrossvalTable(id=run.path.name, nodes=list(nodes), folds=list(folds), cells=flat)
    _store(run, "table.json", table, config)
    return table


def _resolve(task: str | Task, options: dict[str, Any]) -> tuple[Task, RunConfig]:
    own = tasks.load(task) if isinstance(task, str) else task
    check(options.get("eval_every") is None, "a fold is tested once, after its last epoch; leave --eval-every out")
    return own, resolve(task if isinstance(task, str) else name_of(task), options, own)


def _stacks(config: RunConfig, ask: FoldsAsk, replica: Replica) -> bool:
    """Choose whether to stack where the user did not: where that is no slower, and changes no bit with the workers.

    A stack of Linear layers gives each model the same bits however many are stacked, with one thread on a CPU. Of
    other networks a large one keeps a core as busy alone. Workers in groups do not stack, but their baseline does.
    """
    if config.exact:
        return False
    fused, cuda = isinstance(replica, FusedReplica), replica.params.is_cuda
    if config.workers == 1 or Sharing(ask.num_units, config.workers).in_groups:
        return fused or cuda or replica.params.numel() <= SMALL
    return fused and not cuda and config.blas_threads <= 1


def _share_cores(config: RunConfig, ask: FoldsAsk, replica: Replica) -> tuple[RunConfig, FoldsAsk]:
    """Give each worker its share of the cores, unless the user said how many threads its products may use.

    Stacks of Linear layers use them side by side, folds in turn inside the products; other stacks are of networks
    too small to gain.
    """
    if config.blas_threads:
        return config, ask
    share = 1 if config.exact else max(1, facts.cores() // config.workers)
    stacks = ask.stacked and not Sharing(ask.num_units, config.workers).in_groups
    beside = stacks and isinstance(replica, FusedReplica) and not replica.params.is_cuda
    shared = config.model_copy(update={"blas_threads": 1 if stacks else share})
    return shared, replace(ask, threads=share if beside else 1)


def _with_workers(config: RunConfig, ask: FoldsAsk) -> RunConfig:
    return config.model_copy(update={"workers": min(config.workers, ask.nodes)})


class _Ready(NamedTuple):
    """The data, and how long it took to read."""

    data: Dataset
    read_s: float


class _Tried(NamedTuple):
    """A replica of the network, and what is to be said of the folds' answers."""

    replica: Replica
    warnings: Sequence[str]


def _meet(config: RunConfig) -> None:
    """Let ranks that were started from outside meet before one that reads much data can keep others waiting."""
    launcher = launch.make(config.engine)
    launcher.check(config)
    launcher.agree("")


def _load(config: RunConfig, task: Task) -> _Ready:
    begun = time.perf_counter()
    data = load_data(task, config, scan=launch.make(config.engine).leads)
    return _Ready(data, time.perf_counter() - begun)


def _warn(config: RunConfig, warnings: Iterable[str]) -> None:
    for sentence in warnings if launch.make(config.engine).leads else ():
        print_warning(sentence)


def _preflight(config: RunConfig, ask: FoldsAsk, task: Task, data: Dataset) -> _Tried:
    """Find every bad request before any worker starts; return a replica of the network."""
    launcher = launch.make(config.engine)
    check(
        "split" in launcher.features,
        f"engine {config.engine} cannot form the groups that crossval needs; choose serial, threads, mpi, torch or ray",
    )
    launcher.check(config)
    check(config.checkpoint_every == 0, "crossval keeps no checkpoints; leave --checkpoint-every out")
    check(not (config.exact and ask.stacked), "give --exact or --stacked, not both: stacked models round differently")
    servers = sync.make(config.sync).num_servers()
    check(servers == 0, f"sync '{config.sync}' needs server ranks, which crossval has not; use allreduce")
    num = ask.num_units
    check(
        config.sync == "allreduce" or Sharing(num, config.workers).in_groups,
        f"sync '{config.sync}' would do nothing, since one worker trains each of the {num} folds; "
        f"leave --sync out, or use more than {num} workers",
    )
    check_units(data.train, ask)
    return _try_folds(config, ask, task, data)


def _try_folds(config: RunConfig, ask: FoldsAsk, task: Task, data: Dataset) -> _Tried:
    """Try a step of one fold of each size, as `train` would before it starts."""
    size = Sharing(ask.num_units, config.workers).largest_group
    probe = alone_or_together(config, size).model_copy(update={"data": "", "image_size": 0, "replicate": 1})
    sizes = {len(unit.train): unit for unit in units_of(assign(data.train, ask, config.seed), ask)}
    for unit in sizes.values():
        tried = try_step(probe, replace(task, data=partial(unit.of, data)))
    replica = tried.replica
    x, _ = data.train.batch(slice(0, min(2, len(data.train))), replica.params.dtype)
    check(
        config.engine != "threads" or not traits_of(replica.module, x.to(replica.params.device)).global_random,
        "threads cannot each train a model that draws from a process-wide generator; "
        "use nn.Dropout layers, or --engine mpi",
    )
    return _Tried(replica, tried.warnings)


def _compares(config: RunConfig, ask: FoldsAsk, wanted: bool | None) -> bool:
    """Tell whether to run on one worker too: only where that is something else, and other processes allow it."""
    outside = outer_world() is not None
    check(not (wanted and outside), f"--baseline starts a run of its own; give it without {STARTERS}")
    return (config.workers > 1 or ask.nodes > 1) and wanted is not False and not outside


def _run(
    config: RunConfig,
    ask: FoldsAsk,
    task: Task,
    ready: _Ready,
    run: RunDir,
    observe: Observer,
    warnings: Sequence[str] = (),
) -> CrossvalRecord:
    launcher = launch.make(config.engine)
    if launcher.leads:
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
        write_places(run.path / PLACES, assign(ready.data.train, ask, config.seed))
    launcher.agree("the folds are written")
    job = Job(config, run, task=task, data=ready.data, extra=asdict(ask))
    begun = time.perf_counter()
    result = launcher.launch(crossval_rank, job, observe)[0]
    if result["status"] == "interrupted":
        raise KeyboardInterrupt
    wall_s = time.perf_counter() - begun + ready.read_s
    folds = [FoldScore.model_validate(fold) for fold in result["folds"]]
    accuracies = [fold.accuracy for fold in folds]
    nodes = {fold.node for fold in folds}
    return CrossvalRecord(
        id=run.path.name,
        task=config.task,
        engine=config.engine,
        sync=config.sync,
        workers=config.workers,
        num_folds=ask.folds,
        nodes=ask.nodes,
        folds=folds,
        accuracy=sum(accuracies) / len(folds),
        interval=half_interval(accuracies),
        loss=sum(fold.loss for fold in folds) / len(folds),
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
            write_atomically(run.path / "crossval.toml", config.to_toml() + wanted.to_toml())
    return run


def _store(run: RunDir, name: str, record: CrossvalRecord | CrossvalTable, config: RunConfig) -> None:
    if launch.make(config.engine).leads:
        write_record(run.path / name, record)


def _label(config: RunConfig, ask: FoldsAsk) -> str:
    cuts = f"{ask.folds} folds" if ask.nodes < 2 else f"{ask.nodes} nodes of {ask.folds} folds"
    return f"{cuts}, {config.workers} worker{'s' if config.workers > 1 else ''}"
