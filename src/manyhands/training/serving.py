"""A server rank's part in a run: it holds weights but no data, and serves until the workers are done."""

import itertools
import json
from typing import Any

from manyhands.comm.texts import gather_texts
from manyhands.machine.load import CoreMeter
from manyhands.record.files import write_atomically
from manyhands.training.job import RankContext
from manyhands.training.meter import TimeSplit
from manyhands.training.summary import gather_ranks, store_timeline
from manyhands.training.watch import Watch


def serve_rank(rank: RankContext, watch: Watch, *, first_step: int) -> dict[str, Any]:
    """Serve until the workers are done; write this server's updates to a file, and return the run's record."""
    comm, config, strategy, spans = rank.comm, rank.job.config, rank.strategy, rank.traced.spans
    updates_per_step = 1 if strategy.lockstep else config.size
    updates = itertools.count()

    def at(update: int) -> None:
        watch.at(update)
        spans.at(first_step + next(updates) // updates_per_step)  # messages sent from now on answer that step

    rank.replica.update.on_apply = at
    spans.at(first_step)
    begun, core_meter = comm.clock(), CoreMeter()
    strategy.serve(rank.replica, rank.group)
    split = TimeSplit(train_s=comm.clock() - begun, comm_s=rank.traced.p2p_s)
    events = strategy.events()
    if events and first_step == 0:  # a resumed run lacks the events before
        lines = "".join(json.dumps(event) + "\n" for event in events)
        write_atomically(rank.job.run.events(comm.rank - config.size), lines)
    store_timeline(rank)
    gather_ranks(rank, split, split, core_meter)
    record: dict[str, Any] = json.loads(gather_texts(comm, "")[0])
    return record
