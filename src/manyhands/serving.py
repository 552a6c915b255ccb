"""A server rank's part in a run: it holds weights and no data, and serves until the workers are done."""

import itertools
import json
from typing import Any

from manyhands.beat import TimeSplit
from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm
from manyhands.config import RunConfig
from manyhands.others import CoreMeter
from manyhands.record import RunDir, write_atomically
from manyhands.replica import Replica
from manyhands.summary import gather_ranks, gather_steady
from manyhands.sync import Sync
from manyhands.timeline import gather_texts, store_timeline
from manyhands.watch import Watch


def serve_rank(
    comm: Comm,
    config: RunConfig,
    run: RunDir,
    replica: Replica,
    strategy: Sync,
    traced: TracedComm,
    group: Comm,
    watch: Watch,
    *,
    first_step: int,
) -> dict[str, Any]:
    """Serve; leave the order of events, and this rank's times for the record, which is rank 0's."""
    spans, updates_per_step = traced.spans, 1 if strategy.lockstep else config.size

    made = itertools.count()

    def at(update: int) -> None:
        watch.at(update)
        spans.at(first_step + next(made) // updates_per_step)  # what is sent now answers that step

    replica.update.on_apply = at
    spans.at(first_step)
    begun, meter = comm.clock(), CoreMeter()
    strategy.serve(replica, group)
    split = TimeSplit(train_s=comm.clock() - begun, comm_s=traced.p2p_s)
    events = strategy.events()
    if events and first_step == 0:  # what came before a resume is not among them
        lines = "".join(json.dumps(event) + "\n" for event in events)
        write_atomically(run.events(comm.rank - config.size), lines)
    store_timeline(comm, run, spans, config.size)
    gather_ranks(comm, split, traced, strategy, config.size, meter)
    gather_steady(comm, split, config.size)
    record: dict[str, Any] = json.loads(gather_texts(comm, "")[0])
    return record
