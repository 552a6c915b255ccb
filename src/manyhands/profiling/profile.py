"""Profile a run: train for a few seconds, and list on every rank the functions that took the time (papers/000)."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from manyhands import launch, sync, tasks
from manyhands.config import RunConfig
from manyhands.errors import check
from manyhands.launch.base import Observer
from manyhands.launch.blas_threads.trial import with_chosen_threads
from manyhands.launch.failures import sharing_failures
from manyhands.machine import facts
from manyhands.machine.load import CoreMeter
from manyhands.measurement.trial import Trial, try_steps
from manyhands.profiling.defaults import PROFILE_S, TRACE
from manyhands.profiling.lens import Pace, profile_rank
from manyhands.record.profile import FunctionRow, LineRow, ProfileRecord, RankProfile
from manyhands.record.run import RunDir, RunRecord, new_id
from manyhands.record.store import write_record
from manyhands.request import resolve
from manyhands.run import ignore, opened, try_step
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.training.job import Job
from manyhands.training.meter import WARM_UP
from manyhands.training.plan import Plan

COST = 0.01
"""Share of a run's time that timing may add."""
NOTE_S = 1e-6
"""Upper bound of the cost of logging one event: 0.2 µs in a tight loop, more with cold caches."""
FEWEST, MOST = 50, 20_000
"""Bounds of the steps that a profile chooses by itself."""
FEWEST_TIMED = 10
"""Timed steps that a short run aims at, even if that exceeds `COST`; `LEAST_STRIDE` may make them fewer."""
LEAST_STRIDE = 3
"""Least distance of two timed steps; the steps between them tell what timing costs."""
FEWEST_AFTER = 2 * LEAST_STRIDE + 1
"""Steps that must follow the warm-up and the traced ones, so that two of them can be timed."""
FACTS_OF_RUN = {
    *("id", "status", "task", "engine", "sync", "workers", "threads"),
    *("batch_size", "device", "parameters", "steps", "others"),
}
"""Fields that a profile's record has in common with the run's."""


@sharing_failures()
def profile(
    task: str | Task,
    *,
    out: str | Path = "runs",
    observe: Observer = ignore,
    accept: Callable[[RunConfig], None] = lambda config: None,
    **options: Any,
) -> ProfileRecord:
    """Profile a task with the options of `manyhands train`; `accept` may refuse the config before anything starts.

    >>> record = profile("mlp", engine="mpi", workers=2)  # doctest: +SKIP
    """
    check_not_importing()
    loaded = tasks.load(task) if isinstance(task, str) else task
    config = resolve(task if isinstance(task, str) else name_of(task), options, loaded, out=Path(out))
    check(config.engine != "sim", "a profile measures real time, which engine sim does not have; choose another engine")
    accept(config)
    launcher, meter = launch.make(config.engine), CoreMeter()
    launcher.check(config)
    launcher.agree("")  # wait for ranks that were started from outside, before one reads much data
    ready = try_step(config, loaded)
    config = with_chosen_threads(config, ready.data, ready.replica, meter)
    # Each process of an outer mpiexec has tried steps of its own; those of the first decide for all.
    tried = Trial(*json.loads(launcher.agree(json.dumps(try_steps(config, ready)))))
    config = _with_length(config, tried, options)
    plan = Plan(config, ready.data.train, 0, config.size)
    pace = pace_of(config, plan.steps, tried)
    sync.make(config.sync).check_run(config, plan.steps, plan.steps_per_epoch)
    run = RunDir(Path(out) / launcher.agree(new_id(config)))
    with opened(run, config, launcher):
        job = Job(config, run, task=loaded, data=ready.data, read_s=ready.read_s, extra=pace._asdict())
        ranks = launcher.launch(profile_rank, job, observe)[0]["ranks"]
        record = _record(plan, run, ranks)
        if launcher.leads:
            write_record(run.profile, record)
    return record


def _with_length(config: RunConfig, tried: Trial, options: dict[str, Any]) -> RunConfig:
    """Choose the number of steps and of traced steps, where the user did not."""
    if not options.get("steps") and options.get("epochs") is None:
        steps = min(MOST, max(FEWEST, round(PROFILE_S / tried.step_s)))
        config = config.model_copy(update={"steps": steps})
    if options.get("trace") is None:
        trace = min(TRACE, max(0, config.steps - WARM_UP - FEWEST_AFTER) // 2) if config.steps else TRACE
        config = config.model_copy(update={"trace": trace})
    return config


def pace_of(config: RunConfig, steps: int, tried: Trial) -> Pace:
    """Choose the steps to time call by call: as many as `COST` allows, after the warm-up and the traced ones."""
    first = WARM_UP + config.trace
    left = steps - first
    traced = f", {config.trace} are traced" if config.trace else ""
    check(
        left >= FEWEST_AFTER,
        f"a profile of {steps} steps is too short: {WARM_UP} warm up{traced}, and at least {FEWEST_AFTER} must follow; "
        f"give --steps {first + FEWEST_AFTER} or more",
    )
    # Threads of one process log one after the other, since they share the interpreter's lock.
    sharing = config.workers if config.engine == "threads" else config.threads
    wanted = sharing * tried.notes * NOTE_S / (COST * tried.least_s)
    return Pace(first, _prime_from(max(LEAST_STRIDE, min(wanted, left / FEWEST_TIMED))))


def _prime_from(number: float) -> int:
    """Return the next prime, so that work done every second, or eighth, step is timed in the same proportion."""
    return next(n for n in itertools.count(max(2, round(number))) if all(n % d for d in range(2, int(n**0.5) + 1)))


def _record(plan: Plan, run: RunDir, ranks: Sequence[dict[str, Any]]) -> ProfileRecord:
    """Join the profiles of all ranks; the facts of the run are those in the record of rank 0."""
    record = RunRecord.model_validate(ranks[0]["record"])
    return ProfileRecord(
        **record.model_dump(include=FACTS_OF_RUN),
        evaluations=-(-record.steps // plan.steps_per_evaluation),
        steps_per_evaluation=plan.steps_per_evaluation,
        trace=run.trace.name if plan.config.trace else "",
        ranks=[
            _rank(record, rank, result["record"] if rank < plan.config.size else {}, result["profile"])
            for rank, result in enumerate(ranks)
        ],
        hardware=facts.hardware(),
        versions=facts.versions(),
    )


def _rank(record: RunRecord, rank: int, worker: dict[str, Any], profile: dict[str, Any]) -> RankProfile:
    """Scale a rank's profile from the timed steps to its whole loop; `worker` is its record, empty for a server."""
    spent = record.ranks[rank]
    loop_s = spent.compute_s + spent.comm_s + spent.wait_s
    read_s, eval_s, total_s = (float(worker.get(name, 0.0)) for name in ("read_s", "eval_s", "total_s"))
    rest_s = max(0.0, total_s - read_s - eval_s - loop_s)
    timed_s = sum(function["self_s"] for function in profile["functions"])
    longer = loop_s / timed_s if timed_s else 0.0
    more = profile["steps"] / max(1, profile["timed_steps"])
    percent = 100 / max(loop_s + read_s + eval_s + rest_s, 1e-9)

    def scaled(row: dict[str, Any]) -> dict[str, Any]:
        times: dict[str, float] = {key: row[key] * longer for key in ("self_s", "total_s") if key in row}
        return {**row, **times, "calls": round(row["calls"] * more), "share_pct": times["self_s"] * percent}

    functions = [FunctionRow(**scaled(row)) for row in profile["functions"]]
    lines = [LineRow(**scaled(row)) for row in profile["lines"]]
    extra_ms = profile["extra_ms"] * (profile["timed_steps"] + profile["disturbed_steps"])
    rows = {
        "functions": sorted(functions, key=lambda row: -row.self_s),
        "lines": sorted(lines, key=lambda row: -row.self_s),
    }
    return RankProfile(
        rank=rank,
        role=spent.role,
        host=spent.host,
        cost_pct=100 * extra_ms / max(1e-9, profile["plain_step_ms"] * profile["steps"]),
        loop_s=loop_s,
        read_s=read_s,
        eval_s=eval_s,
        rest_s=rest_s,
        **profile | rows,
    )
