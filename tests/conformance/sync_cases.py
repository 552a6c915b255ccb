"""The runs that every strategy must get right, and the worker that does them all in one launch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands import registry, sync
from manyhands.comm import Comm
from manyhands.config import RunConfig, make_config
from manyhands.record import RunDir, open_run
from manyhands.sync import Sync
from manyhands.training import Job, train_rank
from manyhands.watch import Watch

TINY = Path(__file__).parent / "tiny.py"


@dataclass(frozen=True)
class Case:
    """A tiny task and its settings; 97 samples, so that nothing divides evenly."""

    name: str
    task: str
    settings: dict[str, Any] = field(hash=False)
    only_exact: bool = False
    """Whether n workers give the serial answer with `--exact` alone, since rows see each other (BatchNorm)."""


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
    Case("convolutions", "conv", {"batch_size": 30, "steps": 5}),
    Case("autograd", "mlp", {"batch_size": 30, "steps": 4, "fuse": False}),
    Case("batchnorm", "batchnorm", {"batch_size": 30, "steps": 5}, only_exact=True),
)

MODES = ("float64", "exact")
"""In float64 with a free order of summation; in float32 with `--exact`."""


def strategies() -> dict[str, Sync]:
    """Return every strategy there is, with the options it has by itself."""
    return {name: sync.make(name) for name in registry.names(sync, Sync)}


def runs() -> list[tuple[str, Case, str]]:
    """List strategy, case and mode of every run of the suite."""
    return [
        (name, case, mode)
        for name in strategies()
        for case in CASES
        for mode in MODES
        if mode == "exact" or not case.only_exact
    ]


def folder_of(run: RunDir, strategy: str, case: Case, mode: str) -> RunDir:
    """Return where a run of the suite is kept."""
    return RunDir(run.path / f"{strategy}-{case.name}-{mode}")


def train_all(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Do every run as one rank; return each one's record."""
    records = {}
    for strategy, case, mode in runs():
        if not strategies()[strategy].requires <= comm.features:
            continue
        run = folder_of(job.run, strategy, case, mode)
        config = config_of(job.config, strategy, case, mode)
        if comm.rank == 0:
            open_run(run, config)
        comm.barrier()
        try:
            records[run.path.name] = train_rank(comm, Job(config, run), watch)
        except Exception as error:
            raise RuntimeError(f"{run.path.name} does not train on {comm.size} ranks") from error
    return records


def config_of(base: RunConfig, strategy: str, case: Case, mode: str) -> RunConfig:
    """Describe a run of the suite in the group of `base`."""
    group = {key: getattr(base, key) for key in ("engine", "workers", "threads")}
    settings = {"lr": 0.05, "exact": mode == "exact", "dtype": "float32" if mode == "exact" else "float64"}
    return make_config({**group, **settings, "task": f"{TINY}:{case.task}", "sync": strategy, **case.settings})
