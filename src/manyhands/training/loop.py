"""One rank's part in a run: joins data, replica, sync and comm, and reads straight down."""

import time
from functools import partial
from pathlib import Path
from typing import Any

from manyhands import sync, tasks
from manyhands.comm import Comm
from manyhands.comm.exact import ExactComm
from manyhands.comm.spans import Spans
from manyhands.comm.traced import TracedComm
from manyhands.errors import Stopped
from manyhands.tasks.setup import device_of, load_data, make_replica, without_init
from manyhands.training.agreement import check_same_data, check_same_model
from manyhands.training.averaging import Average, result_weights
from manyhands.training.caveats import check_meets
from manyhands.training.checkpoint import Cursor, restore, restore_rank
from manyhands.training.evaluate import scoring_of
from manyhands.training.job import Job, RankContext
from manyhands.training.journal import Journal
from manyhands.training.meter import WARM_UP, StepMeter
from manyhands.training.monitor import monitor_of
from manyhands.training.plan import Plan, Stopwatch
from manyhands.training.serving import serve_rank
from manyhands.training.step import Stepper, compute_gradients
from manyhands.training.summary import align, store_timeline, summarise
from manyhands.training.watch import Watch


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
    replica = make_replica(task, without_init(config) if job.resume else config, data, device)
    check_same_model(comm, replica, exchanged=True)
    strategy = sync.make(config.sync)
    spans = Spans(config.trace)
    traced = TracedComm(comm, spans)
    group = ExactComm(traced, config.lanes, config.size) if config.exact else traced
    workers = comm.split(int(comm.rank >= config.size)) if strategy.num_servers() else comm
    met = TracedComm(workers, spans)
    if strategy.lockstep and not strategy.apart:  # their gradients are shares of the global batch's
        replica.peers.join(ExactComm(met, config.lanes, config.size) if config.exact else met)
    check_meets(replica, workers)
    rank = RankContext(job, comm, workers, traced, group, replica, strategy)
    cursor = restore(Path(job.resume), replica) if job.resume else Cursor()
    strategy.start(replica, group)
    traced.forget()
    align(comm, spans)
    plan = Plan(config, data.train, workers.rank, workers.size, strategy.own_split, Stopwatch(comm.clock))
    spans.open(cursor.step + min(WARM_UP, max(0, plan.steps - cursor.step - config.trace)))
    if comm.rank >= config.size:
        return serve_rank(rank, watch, first_step=cursor.step)

    if job.resume:
        restore_rank(Path(job.resume), replica, strategy, comm.rank)
    meter = StepMeter(workers, traced, config.lanes if config.exact else 0, strategy.meet_s())
    gradients = partial(compute_gradients, replica, plan)
    stepper = Stepper(replica, strategy, group, meter, plan.steps_per_epoch, gradients, watch.at, plan.gathering, met)
    average = Average(replica, config.ema) if config.ema else None
    journal = Journal(rank, plan, cursor, meter, monitor_of(task, config), average)
    scoring, stopped = scoring_of(task, config, data, replica.module), False
    with plan.reading_ahead(workers):
        while True:
            if plan.wants_evaluation(cursor.step):
                with result_weights(rank, average):
                    journal.evaluate(data.test, scoring)
            if stopped or journal.stopped_early or cursor.step >= plan.steps:
                break
            meter.start()
            batches = plan.batches(cursor.step // plan.steps_per_epoch)
            stretch = plan.steps_until_pause(cursor.step)
            plan.expect(batches, stretch, whole=replica.meets)
            for step in stretch:
                due = stepper.step(batches[step % plan.steps_per_epoch], step)
                if average is not None:
                    average.update()

                if job.after_step is not None:
                    job.after_step(comm, replica, strategy, step)
                if job.keep_weights:
                    journal.keep_weights()
                saves = config.checkpoint_every > 0 and (step + 1) % config.checkpoint_every == 0
                if due or saves or step == stretch[-1]:
                    stopped = journal.note(step + 1, watch)
                if saves or (stopped and config.checkpoint_every > 0):
                    journal.checkpoint()
                if stopped:
                    break
                if meter.seldom and watch.stop_asked():
                    raise Stopped(
                        f"stopped; workers of '{config.sync}' meet at the end of an epoch only: nothing is kept"
                    )

    strategy.finish(replica, group)
    if average is not None:
        average.put(rank)
    journal.evaluate(data.test, scoring)
    journal.take_best()
    replica.refresh()
    store_timeline(rank)
    return summarise(rank, journal, read_s=read_s, stopped=stopped, started=started)
