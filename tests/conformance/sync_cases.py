"""The runs that every strategy must get right, and the worker that does them all in one launch."""

import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from shapes import Group, groups

from manyhands import codec, registry, sync
from manyhands.comm import Comm
from manyhands.config import RunConfig, make_config
from manyhands.record.run import RunDir, open_run
from manyhands.sync import Sync
from manyhands.sync.compressed import DEFAULT
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.watch import Watch

TINY, OWN = (Path(__file__).parent / name for name in ("tiny.py", "own.py"))


@dataclass(frozen=True)
class Case:
    """A tiny task and its settings; 97 samples, so that nothing divides evenly."""

    name: str
    task: str
    settings: dict[str, Any] = field(hash=False)
    only_exact: bool = False
    """Whether n workers give the serial answer with `--exact` alone, since rows see each other (BatchNorm)."""
    meets: bool = False
    """Whether the workers meet inside a pass, so that `--exact` cannot hold."""
    own: bool = False
    """Whether it shows what users bring along: groups, schedules, any data and losses."""


CASES = (
    Case("crossing-an-epoch", "mlp", {"batch_size": 10, "steps": 12}),
    Case("fewer-rows-than-workers", "mlp", {"batch_size": 3, "steps": 5}),
    Case("one-row", "mlp", {"batch_size": 1, "steps": 4}),
    Case("batch-beyond-the-data", "mlp", {"batch_size": 1000, "steps": 3}),
    Case("full-batch-in-pieces", "mlp", {"batch_size": "full", "micro_batch": 4, "steps": 3}),
    Case("whole-epochs", "mlp", {"batch_size": 40, "epochs": 2}),
    Case("sigmoid-momentum", "sigmoid", {"batch_size": 30, "steps": 5}),
    Case("adam", "adam", {"batch_size": 30, "steps": 5}),
    Case("dropout", "dropout", {"batch_size": 30, "steps": 5}),
    Case("dropout-in-pieces", "dropout", {"batch_size": 30, "micro_batch": 2, "steps": 5}),
    Case("draws", "draws", {"batch_size": 30, "steps": 4}),
    Case("draws-in-pieces", "draws", {"batch_size": 30, "micro_batch": 2, "steps": 3}),
    Case("draws-of-few-rows", "draws", {"batch_size": 3, "steps": 4}),
    Case("convolutions", "conv", {"batch_size": 30, "steps": 5}),
    Case("autograd", "mlp", {"batch_size": 30, "steps": 4, "fuse": False}),
    Case("batchnorm", "batchnorm", {"batch_size": 30, "steps": 5, "batchnorm": "local"}, only_exact=True),
)

OWN_CASES = (
    Case("groups", "groups", {"steps": 12}, own=True),
    Case("true-shapes", "shapes", {"steps": 12}, own=True),
    Case("clipped", "clipped", {"clip": 0.05, "batch_size": 3, "steps": 12}, own=True),
    Case("averaged", "clipped", {"clip": 1.0, "ema": 0.8, "warmup": 0.5, "epochs": 1}, own=True),
    Case("normed", "normed", {"steps": 8}, meets=True, own=True),
    Case("normed-fewer-rows", "normed", {"batch_size": 3, "micro_batch": 1, "steps": 5}, meets=True, own=True),
    Case("attending", "attending", {"steps": 8}, own=True),
    Case("attending-in-pieces", "attending", {"batch_size": 11, "micro_batch": 2, "steps": 4}, own=True),
    Case("regression", "regression", {"steps": 8}, own=True),
    Case("samples", "samples", {"steps": 8}, own=True),
    Case("by-class", "by_class", {"batch_size": 11, "micro_batch": 2, "steps": 8}, own=True),
    Case("summed", "summed", {"batch_size": 3, "steps": 6}, own=True),
)
"""The last batch of an epoch has two rows, so that some workers have none."""
CASES += OWN_CASES

MODES = ("float64", "exact")
"""In float64 with a free order of summation; in float32 with `--exact`."""

FIRST = "allreduce"
"""The strategy that is put through every case; the others through those in which they could differ from it."""

THOROUGH = ("serial", "threads")
"""Engines on which it is; to the others the kind of network is all one, and their ranks are slow to share two cores."""

EXACT_CASES = ("crossing-an-epoch", "fewer-rows-than-workers", "full-batch-in-pieces", "adam", "batchnorm")
LOOSE_CASES = ("crossing-an-epoch", "fewer-rows-than-workers", "adam")
FEW_CASES = {"exact": ("crossing-an-epoch", "fewer-rows-than-workers", "adam"), "float64": ("crossing-an-epoch",)}

VARIANTS = (
    "parameter-server:servers=2",
    "async-server:servers=2",
    "local-sgd:period=1",
    "overlap:bucket=7",
    *(f"compressed:codec={name}" for name in codec.names() if name != DEFAULT),
)
"""Strategies with other options than their own."""

MOST_SERVERS = 2


@cache
def strategies() -> dict[str, Sync]:
    """Return every strategy there is, those too that are added later, and some with other options."""
    return {text: sync.make(text) for text in (*registry.names(sync, Sync), *VARIANTS)}


def equals_serial(strategy: str, case: Case, workers: int) -> bool:
    """Tell whether so many workers must give the serial answer: always, or under a law of the strategy's own."""
    if strategies()[strategy].exact:
        return True
    averages_each_step = strategy == "local-sgd:period=1" and case.task == "mlp"  # which is plain SGD
    return averages_each_step or (strategy.startswith("async-server") and workers == 1)


@cache
def runs(engine: str) -> list[tuple[str, Case, str]]:
    """List strategy, case and mode of every run of the suite on this engine."""
    return [
        (text, case, mode)
        for text, strategy in strategies().items()
        for case in CASES
        for mode in MODES
        if _belongs(text, strategy, case, mode, thorough=engine in THOROUGH)
        and not (engine == "sim" and case.meets)  # which is refused
    ]


OWN_STRATEGIES = ("sharded", "parameter-server:servers=2", "overlap:bucket=7")
"""Strategies besides the first whose ranks update slices, or exchange while they compute."""
SLICED_OWN = ("groups", "true-shapes", "clipped", "normed-fewer-rows")
"""The cases in which these strategies could differ from the first."""
FEW_OWN = {"exact": (), "float64": ("groups", "normed", "attending", "samples", "by-class")}


def _shows_own(text: str, case: Case, mode: str, *, thorough: bool) -> bool:
    if mode == "exact" and case.meets:
        return False
    if not thorough:
        return text == FIRST and case.name in FEW_OWN[mode]
    sliced = text in OWN_STRATEGIES and case.name in SLICED_OWN
    return text == FIRST or (sliced and (mode == "float64" or case.name == "clipped"))


def _belongs(text: str, strategy: Sync, case: Case, mode: str, *, thorough: bool) -> bool:
    if case.own:
        return _shows_own(text, case, mode, thorough=thorough)
    if (mode == "float64" and case.only_exact) or (mode == "exact" and not strategy.exact):
        return False
    if not thorough:
        return case.name in FEW_CASES[mode]
    return text == FIRST or case.name in (EXACT_CASES if strategy.exact else LOOSE_CASES)


def folder_of(run: RunDir, group: Group, strategy: str, case: Case, mode: str) -> RunDir:
    """Return where a run of the suite is kept."""
    return RunDir(run.path / str(group) / f"{strategy.replace(':', '-')}-{case.name}-{mode}")


def world(engine: str) -> Group:
    """Return the largest group of an engine that can split: the others are parts of it, and need no launch."""
    return max((group for group in groups() if group.engine == engine), key=lambda group: group.size)


def train_all(comm: Comm, job: Job, watch: Watch) -> dict[str, dict[str, Any]]:
    """Do the runs of every group as one rank, of those ranks that a run needs; return each one's record."""
    if "servers" not in comm.features:
        group = Group(job.config.engine, job.config.workers, job.config.threads)
        return {str(group): _train(group, {group.size: comm}, comm.rank, job, watch)}
    sharing = sorted((group for group in groups() if group.engine == job.config.engine), key=lambda group: group.size)
    parts = {size: comm.split(int(comm.rank >= size)) for size in range(1, comm.size + 1)}
    return {str(group): _train(group, parts, comm.rank, job, watch) for group in sharing}


def _train(group: Group, parts: dict[int, Comm], rank: int, job: Job, watch: Watch) -> dict[str, Any]:
    """Do the runs of one group; `parts` are the first so many ranks."""
    records = {}
    known = strategies()
    for strategy, case, mode in runs(group.engine):
        needs = group.size + known[strategy].num_servers()
        if not known[strategy].requires <= group.features or rank >= needs:
            continue
        run = folder_of(job.run, group, strategy, case, mode)
        config = config_of(group, strategy, case, mode)
        if rank == 0:
            open_run(run, config)
        while group.engine != "sim" and not run.toml.is_file():  # virtual ranks take turns: no use in sleeping
            time.sleep(0.005)  # ranks that this group's workers do not need yet must not keep them from the cores
        parts[needs].barrier()
        try:
            records[run.path.name] = train_rank(parts[needs], Job(config, run), watch)
        except Exception as error:
            raise RuntimeError(f"{run.path.name} does not train on {needs} ranks of {group}") from error
    return records


def config_of(group: Group, strategy: str, case: Case, mode: str) -> RunConfig:
    """Describe a run of the suite in a group."""
    own = {"engine": group.engine, "workers": group.workers, "threads": group.threads}
    settings = {"lr": 0.05, "exact": mode == "exact", "dtype": "float32" if mode == "exact" else "float64"}
    task = f"{OWN if case.own else TINY}:{case.task}"
    return make_config({**own, **settings, "task": task, "sync": strategy, "batch_size": 10, **case.settings})
