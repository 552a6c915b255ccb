"""The ways to run a case: as it is, with nothing counted, with a timeline of every step, and profiled."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import manyhands.training
from manyhands import launch, tasks, train
from manyhands.comm import Comm
from manyhands.comm.spans import Spans
from manyhands.comm.traced import TracedComm
from manyhands.profiling.profile import profile
from manyhands.record.run import RunDir, RunRecord, new_id, open_run
from manyhands.request import resolve
from manyhands.run import ignore
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.watch import Watch

CALLS = (
    "all_reduce_", "begin_all_reduce_", "reduce_", "broadcast_", "all_gather", "reduce_scatter",
    "send", "recv", "barrier", "split", "add",
)  # fmt: skip
"""What a comm can do."""


class BareSpans(Spans):  # type: ignore[misc]
    """Keeps nothing, without looking at the step."""

    def at(self, step: int) -> None:
        """Do nothing."""

    def add(self, name: str, kind: str, start_s: float, end_s: float) -> None:
        """Do nothing."""


class BareComm(TracedComm):  # type: ignore[misc]
    """Counts nothing: every call is the inner comm's own."""

    def __init__(self, inner: Comm, spans: Spans | None = None) -> None:
        super().__init__(inner, spans)
        for name in CALLS:
            setattr(self, name, getattr(inner, name))


def bare_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Train as one rank of `comm` with nothing counted."""
    manyhands.training.loop.TracedComm, manyhands.training.loop.Spans = BareComm, BareSpans  # type: ignore[misc]
    return train_rank(comm, job, watch)


def run(way: str, task: str, steps: int, options: dict[str, Any]) -> dict[str, float]:
    """Run a case in one of the ways; return milliseconds of a step, and what the profile says that it cost."""
    out = Path(tempfile.mkdtemp(prefix="manyhands-tracing-"))
    # An evaluation between two steps empties the caches, and is no part of what is measured.
    settings = {"steps": steps, "eval_every": 1 << 20, **options}
    found = {}
    try:
        if way == "profiled":
            ranks = profile(task, out=out, trace=0, **settings).ranks
            found["cost_pct"] = max(rank.cost_pct for rank in ranks)
            found["calls"] = sum(row.calls for row in ranks[0].functions if row.name in TRACED) / steps
            record = RunDir(next(out.iterdir())).read()
        elif way == "bare":
            record = _launch(task, out, settings)
        else:
            record = train(task, out=out, trace=steps if way == "traced" else 0, **settings)
    finally:
        shutil.rmtree(out)
    assert record is not None
    return {**found, "mean_ms": record.steady.step_ms, "median_ms": record.step_ms.median}


TRACED = {f"TracedComm.{name}" for name in CALLS}


def _launch(task: str, out: Path, settings: dict[str, Any]) -> RunRecord:
    own = tasks.load(task)
    config = resolve(task, settings, own)
    folder = RunDir(out / new_id(config))
    open_run(folder, config)
    results = launch.make(config.engine).launch(bare_rank, Job(config, folder, task=own), ignore)
    return RunRecord.model_validate(results[0])
