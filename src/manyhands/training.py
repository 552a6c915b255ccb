"""One rank's part in a run: joins data, replica, sync and comm, and reads straight down."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands import sync, tasks
from manyhands.agreement import check_same_data, check_same_model
from manyhands.beat import WARM_UP, Beat
from manyhands.checkpoint import Cursor, restore
from manyhands.comm import Comm
from manyhands.comm.exact import ExactComm
from manyhands.comm.traced import TracedComm
from manyhands.config import RunConfig
from manyhands.data import Dataset
from manyhands.errors import Stopped
from manyhands.journal import Journal, restore_own
from manyhands.plan import Plan
from manyhands.record import RunDir
from manyhands.replica import Replica
from manyhands.replica.base import sum_of_lanes
from manyhands.serving import serve_rank
from manyhands.spans import Spans
from manyhands.summary import summarise
from manyhands.sync import Sync
from manyhands.sync.base import settled
from manyhands.tasks import Task
from manyhands.tasks.setup import device_of, load_data, loss_of, make_replica
from manyhands.timeline import align, store_timeline
from manyhands.watch import Watch


@dataclass(frozen=True)
class Job:
    """What a rank is to do."""

    config: RunConfig
    run: RunDir
    resume: str = ""
    """Checkpoint to go on from."""
    keep_weights: bool = False
    """Whether to keep the weights after every step, for `verify`."""
    warnings: tuple[str, ...] = ()
    """What the record is to say of the run's answer."""
    task: Task | None = None
    """The task itself, where the rank runs in the process that has it."""
    data: Dataset | None = None
    """The task's data, likewise."""
    same_data: bool = False
    """Whether all ranks are known to have the same data: they share it, or it was compared before."""
    read_s: float = 0.0
    """How long it took to read them."""
    place: int | None = None
    """Which of the host's devices to use, where that is not the rank's own."""
    after_step: Callable[[Comm, Replica, Sync, int], None] | None = None
    """What every worker does besides after each of its steps, where it runs in the process that has this."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What a worker function other than `train_rank` wants to know, as plain JSON."""


def train_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Train as one rank of `comm`; return the run's record, the same on every worker."""
    config, started = job.config, time.perf_counter() - (job.read_s if job.data else 0.0)
    task = job.task or tasks.load(config.task)
    device = device_of(config, comm.rank if job.place is None else job.place)
    loaded = job.data or load_data(task, config)
    data = loaded.to(device)
    read_s = time.perf_counter() - started

    if not job.same_data:
        check_same_data(comm, loaded, config.data)
    replica = make_replica(task, config, data, device)
    check_same_model(comm, replica, exchanged=True)
    strategy = sync.make(config.sync)
    spans = Spans(config.trace)
    traced = TracedComm(comm, spans)
    group = ExactComm(traced, config.lanes, config.size) if config.exact else traced
    workers = comm.split(int(comm.rank >= config.size)) if strategy.num_servers() else comm
    cursor = restore(Path(job.resume), replica) if job.resume else Cursor()
    strategy.start(replica, group)
    traced.forget()
    align(comm, spans)
    plan = Plan(config, data.train, workers.rank, workers.size, strategy.own_split)
    spans.open(cursor.step + min(WARM_UP, max(0, plan.steps - cursor.step - config.trace)))
    if comm.rank >= config.size:
        return serve_rank(comm, config, job.run, replica, strategy, traced, group, watch, first_step=cursor.step)

    if job.resume:
        restore_own(Path(job.resume), replica, strategy, comm.rank)
    beat = Beat(workers, traced, config.lanes if config.exact else 0, strategy.meet_s())
    journal = Journal(job.run, plan, cursor, beat)
    stopped = False
    while cursor.step < plan.steps and not stopped:
        beat.open()
        batches = plan.batches(cursor.step // plan.steps_per_epoch)
        for step in plan.steps_of_epoch(cursor.step):
            begun = comm.clock()
            watch.at(step)
            spans.at(step)
            replica.update.scale = plan.lr_scale(step)
            loss = sum_of_lanes(replica, plan.lanes(batches[step % plan.steps_per_epoch], step))
            shared = comm.clock()
            strategy.step(replica, group, step)
            if (step + 1) % plan.steps_per_epoch == 0:
                strategy.end_epoch(replica, group)
            ended = comm.clock()
            spans.add("forward and backward", "compute", begun, shared)
            spans.add("agree and update", "update", shared, ended)
            due = beat.add(loss, ended - begun, shared - begun)

            if job.after_step is not None:
                job.after_step(comm, replica, strategy, step)
            if job.keep_weights:
                journal.keep_weights(replica)
            saves = config.checkpoint_every > 0 and (step + 1) % config.checkpoint_every == 0
            if due or saves or plan.ends_epoch(step):
                stopped = journal.note(step + 1, watch)
            if saves or (stopped and config.checkpoint_every > 0):
                journal.checkpoint(replica, strategy, comm)
            if stopped:
                break
            if beat.seldom and watch.stop_asked():
                raise Stopped(f"stopped; workers of '{config.sync}' meet at the end of an epoch only: nothing is kept")
        if plan.wants_evaluation(cursor.step) and not stopped:
            with settled(strategy, replica, comm):
                journal.evaluate(replica, data.test, loss_of(task))

    strategy.finish(replica, group)
    replica.refresh()
    journal.evaluate(replica, data.test, loss_of(task))
    store_timeline(comm, job.run, spans, config.size)
    return summarise(
        comm,
        config,
        job.run,
        replica,
        journal,
        traced,
        strategy,
        read_s=read_s,
        stopped=stopped,
        started=started,
        warnings=job.warnings,
    )
