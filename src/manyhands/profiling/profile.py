"""Profile a run: train for a few seconds, and tell on every rank which functions took the time (papers/000)."""

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
from manyhands.record import (
    FunctionRow,
    LineRow,
    ProfileRecord,
    RankProfile,
    RunDir,
    RunRecord,
    new_id,
)
from manyhands.record.store import write_record
from manyhands.request import resolve
from manyhands.run import ignore, opened, try_step
from manyhands.tasks import Task
from manyhands.tasks.load import check_not_importing, name_of
from manyhands.training.job import Job
from manyhands.training.meter import WARM_UP
from manyhands.training.plan import Plan

COST = 0.01
"""The share of a run that timing may add."""
NOTE_S = 1e-6
"""What a note of a call costs at the most: 0.2 µs in a tight loop, more where caches are full of other things."""
FEWEST, MOST = 50, 20_000
"""Steps that a profile chooses by itself."""
FEWEST_TIMED = 10
"""A short run is timed more often than the cost allows, until it has so many timed steps."""
LEAST_STRIDE = 3
"""The steps between two timed ones tell what the timing costs."""
FEWEST_AFTER = 2 * LEAST_STRIDE + 1
"""Steps after the warm-up and those drawn, so that two of them can be timed."""


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
    own = tasks.load(task) if isinstance(task, str) else task
    config = resolve(task if isinstance(task, str) else name_of(task), options, own)
    check(config.engine != "sim", "a profile is of real time, of which engine sim has none; choose another engine")
    accept(config)
    launcher, meter = launch.make(config.engine), CoreMeter()
    launcher.check(config)
    launcher.agree("")  # ranks that were started from outside meet before one reads much data
    ready = try_step(config, own)
    config = with_chosen_threads(config, ready.data, ready.replica, meter)
    # Each process of an mpiexec from outside has tried its own steps; the first one's decide for all.
    tried = Trial(*json.loads(launcher.agree(json.dumps(try_steps(config, ready)))))
    config = _with_length(config, tried, options)
    plan = Plan(config, ready.data.train, 0, config.size)
    pace = pace_of(config, plan.steps, tried)
    sync.make(config.sync).check_run(config, plan.steps, plan.steps_per_epoch)
    run = RunDir(Path(out) / launcher.agree(new_id(config)))
    with opened(run, config, launcher):
        job = Job(config, run, task=own, data=ready.data, read_s=ready.read_s, extra=pace._asdict())
        found = launcher.launch(profile_rank, job, observe)[0]["ranks"]
        record = _record(plan, run, found)
        if launcher.leads:
            write_record(run.profile, record)
    return record


def _with_length(config: RunConfig, tried: Trial, options: dict[str, Any]) -> RunConfig:
    """Choose the steps, and how many of them to draw, where the user did not."""
    if not options.get("steps") and options.get("epochs") is None:
        steps = min(MOST, max(FEWEST, round(PROFILE_S / tried.step_s)))
        config = config.model_copy(update={"steps": steps})
    if options.get("trace") is None:
        trace = min(TRACE, max(0, config.steps - WARM_UP - FEWEST_AFTER) // 2) if config.steps else TRACE
        config = config.model_copy(update={"trace": trace})
    return config


def pace_of(config: RunConfig, steps: int, tried: Trial) -> Pace:
    """Choose which steps to time call by call: as many as the cost allows, after the warm-up and those drawn."""
    first = WARM_UP + config.trace
    left = steps - first
    traced = f", {config.trace} are traced" if config.trace else ""
    check(
        left >= FEWEST_AFTER,
        f"a profile of {steps} steps is too short: {WARM_UP} warm up{traced}, and at least {FEWEST_AFTER} must follow; "
        f"give --steps {first + FEWEST_AFTER} or more",
    )
    # Threads of one process note one after the other, since they share the interpreter's lock.
    sharing = config.workers if config.engine == "threads" else config.threads
    wanted = sharing * tried.notes * NOTE_S / (COST * tried.least_s)
    return Pace(first, _prime_from(max(LEAST_STRIDE, min(wanted, left / FEWEST_TIMED))))


def _prime_from(number: float) -> int:
    """Return the least prime from here on, so that what happens every second, or eighth, step is timed as often."""
    candidates = (n for n in itertools.count(max(2, round(number))) if all(n % d for d in range(2, int(n**0.5) + 1)))
    return next(candidates)


def _record(plan: Plan, run: RunDir, found: Sequence[dict[str, Any]]) -> ProfileRecord:
    """Put the ranks' profiles together; the first rank's record tells of the run."""
    whole = RunRecord.model_validate(found[0]["record"])
    each = plan.steps_per_epoch * plan.config.eval_every
    return ProfileRecord(
        id=whole.id,
        status=whole.status,
        task=whole.task,
        engine=whole.engine,
        sync=whole.sync,
        workers=whole.workers,
        threads=whole.threads,
        batch_size=whole.batch_size,
        device=whole.device,
        parameters=whole.parameters,
        steps=whole.steps,
        evaluations=-(-whole.steps // each),
        steps_per_evaluation=each,
        trace=run.trace.name if plan.config.trace else "",
        others=whole.others,
        ranks=[
            _rank(whole, rank, own["record"] if rank < plan.config.size else {}, own["profile"])
            for rank, own in enumerate(found)
        ],
        hardware=facts.hardware(),
        versions=facts.versions(),
    )


def _rank(whole: RunRecord, rank: int, own: dict[str, Any], seen: dict[str, Any]) -> RankProfile:
    """Scale what was seen in the timed steps to the rank's whole loop; a server has no record of its own."""
    spent = whole.ranks[rank]
    loop_s = spent.compute_s + spent.comm_s + spent.wait_s
    read_s, eval_s, total_s = (float(own.get(name, 0.0)) for name in ("read_s", "eval_s", "total_s"))
    rest_s = max(0.0, total_s - read_s - eval_s - loop_s)
    seen_s = sum(function["self_s"] for function in seen["functions"])
    longer = loop_s / seen_s if seen_s else 0.0
    more = seen["steps"] / max(1, seen["timed_steps"])
    percent = 100 / max(loop_s + read_s + eval_s + rest_s, 1e-9)

    def scaled(row: dict[str, Any]) -> dict[str, Any]:
        times: dict[str, float] = {key: row[key] * longer for key in ("self_s", "total_s") if key in row}
        return {**row, **times, "calls": round(row["calls"] * more), "share_pct": times["self_s"] * percent}

    functions = [FunctionRow(**scaled(row)) for row in seen["functions"]]
    lines = [LineRow(**scaled(row)) for row in seen["lines"]]
    return RankProfile(
        rank=rank,
        role=spent.role,
        host=spent.host,
        steps=seen["steps"],
        timed_steps=seen["timed_steps"],
        disturbed_steps=seen["disturbed_steps"],
        plain_step_ms=seen["plain_step_ms"],
        extra_ms=seen["extra_ms"],
        cost_pct=_cost_pct(seen),
        loop_s=loop_s,
        read_s=read_s,
        eval_s=eval_s,
        rest_s=rest_s,
        functions=sorted(functions, key=lambda row: -row.self_s),
        lines=sorted(lines, key=lambda row: -row.self_s),
    )


def _cost_pct(seen: dict[str, Any]) -> float:
    timed = seen["timed_steps"] + seen["disturbed_steps"]
    return float(100 * seen["extra_ms"] * timed / max(1e-9, seen["plain_step_ms"] * seen["steps"]))
