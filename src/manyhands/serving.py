"""A server rank's part in a run: it holds weights and no data, and serves until the workers are done."""

import json
from typing import Any

from manyhands.beat import WARM_UP, TimeSplit
from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm
from manyhands.config import RunConfig
from manyhands.record import RunDir, write_atomically
from manyhands.replica import Replica
from manyhands.summary import gather_ranks, gather_steady
from manyhands.sync import Sync
from manyhands.timeline import store_timeline
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
    resumed: bool,
) -> dict[str, Any]:
    """Serve; leave the order of events, and this rank's times for the record."""
    spans, updates_per_step = traced.spans, 1 if strategy.lockstep else config.size

    def at(update: int) -> None:
        watch.at(update)
        spans.at(update // updates_per_step)

    replica.update.on_apply = at
    spans.open(WARM_UP)
    begun = comm.clock()
    strategy.serve(replica, group)
    split = TimeSplit(train_s=comm.clock() - begun, comm_s=traced.p2p_s)
    events = strategy.events()
    if events and not resumed:  # what came before a resume is not among them
        lines = "".join(json.dumps(event) + "\n" for event in events)
        write_atomically(run.events(comm.rank - config.size), lines)
    store_timeline(comm, run, spans, config.size)
    gather_ranks(comm, split, traced, strategy, config.size)
    gather_steady(comm, split, config.size)
    return {}
