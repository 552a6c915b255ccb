"""The record of a run, put together from what every rank knows."""

import json
import resource
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from manyhands import facts
from manyhands.beat import TimeSplit
from manyhands.checkpoint import weights_sha256
from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm
from manyhands.config import RunConfig
from manyhands.errors import CannotWrite, ManyhandsError
from manyhands.journal import Journal
from manyhands.others import CoreMeter, others_of
from manyhands.record import Others, Quantiles, RankRecord, RunDir, RunRecord, Steady, write_atomically
from manyhands.record.files import flush, writing
from manyhands.replica import Replica
from manyhands.sync import Sync
from manyhands.timeline import gather_texts


def summarise(
    comm: Comm,
    config: RunConfig,
    run: RunDir,
    replica: Replica,
    journal: Journal,
    traced: TracedComm,
    strategy: Sync,
    *,
    read_s: float,
    stopped: bool,
    started: float,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Gather every rank's times; let rank 0 store the record and the weights; return the record."""
    ranks, sent, others = gather_ranks(comm, journal.beat.split, traced, strategy, config.size, journal.core_meter)
    steady = gather_steady(comm, journal.beat.steady, config.size)
    at_work = ranks[: config.size]
    milliseconds = np.array(journal.beat.step_s or [0.0]) * 1e3
    train_s = journal.beat.split.train_s
    record = RunRecord(
        id=run.path.name,
        status="interrupted" if stopped else "complete",
        task=config.task,
        engine=config.engine,
        sync=config.sync,
        workers=config.workers,
        threads=config.threads,
        batch_size=journal.plan.batch_size,
        epochs=len(journal.train_loss()),
        steps=journal.cursor.step,
        steps_per_epoch=journal.plan.steps_per_epoch,
        resumed_from=journal.start,
        seed=config.seed,
        device=replica.params.device.type,
        parameters=sum(p.numel() for p in replica.module.parameters()),
        samples=journal.samples(),
        train_loss=journal.train_loss(),
        test_loss=journal.test_loss,
        test_accuracy=journal.test_accuracy,
        samples_per_s=journal.samples() / train_s if train_s else 0.0,
        epoch_s=journal.epoch_s,
        step_ms=Quantiles(median=float(np.median(milliseconds)), p90=float(np.quantile(milliseconds, 0.9))),
        steady=steady,
        compute_s=sum(r.compute_s for r in at_work) / len(at_work),
        comm_s=sum(r.comm_s for r in at_work) / len(at_work),
        wait_s=sum(r.wait_s for r in at_work) / len(at_work),
        read_s=read_s,
        eval_s=journal.eval_s,
        total_s=time.perf_counter() - started,
        bytes_sent=int(sent[0]),
        messages=int(sent[1]),
        weights_sha256=weights_sha256(replica.module),
        warnings=list(warnings),
        blas_threads=torch.get_num_threads(),
        others=others,
        ranks=ranks,
        hardware=facts.hardware(),
        versions=facts.versions(),
        config=config,
    )
    if comm.rank == 0:
        _store(run, record, replica)
    if strategy.num_servers():
        gather_texts(comm, record.model_dump_json() if comm.rank == 0 else "")  # for the servers, which made none
    return record.model_dump(mode="json")


def _store(run: RunDir, record: RunRecord, replica: Replica) -> None:
    """Write the weights and the record; the record is kept where only the weights cannot be written."""
    try:
        write_weights(run, replica.module)
    except CannotWrite as error:
        record.weights_missing = str(error)
    with writing(run.steps):
        flush(run.steps)
    write_atomically(run.record, record.model_dump_json(indent=2) + "\n")
    if record.weights_missing:
        raise ManyhandsError(f"{record.weights_missing}; the record is kept, without weights")


def write_weights(run: RunDir, module: nn.Module) -> None:
    """Write a network's weights into a run's folder."""
    weights = {n: t.detach().cpu().contiguous().clone() for n, t in module.state_dict().items()}
    write_atomically(run.model, save(weights))


def gather_ranks(
    comm: Comm, split: TimeSplit, traced: TracedComm, strategy: Sync, workers: int, meter: CoreMeter
) -> tuple[list[RankRecord], list[int], Others | None]:
    """Return every rank's times, servers included, the sums of bytes sent and messages, and what others used."""
    others = others_of(gather_texts(comm, meter.read(torch.get_num_threads()).to_json()))
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own = [split.compute_s, split.serial_s, split.comm_s, split.wait_s, float(rss)]
    rows = comm.all_gather(torch.tensor(own, dtype=torch.float64)).tolist()
    hosts = gather_texts(comm, socket.gethostname())
    notes = gather_texts(comm, json.dumps(strategy.notes()))
    sent = torch.tensor([traced.bytes_sent, traced.messages], dtype=torch.int64)
    comm.all_reduce_(sent)
    ranks = [
        RankRecord(
            rank=rank,
            role="worker" if rank < workers else "server",
            host=hosts[rank],
            compute_s=row[0],
            serial_s=row[1],
            comm_s=row[2],
            wait_s=row[3],
            max_rss_bytes=int(row[4]),
            notes=json.loads(notes[rank]),
        )
        for rank, row in enumerate(rows)
    ]
    return ranks, sent.tolist(), others


def gather_steady(comm: Comm, split: TimeSplit, workers: int) -> Steady:
    """Return the mean over the workers of a step of the warmed-up run; servers take part with anything."""
    own = [split.compute_s - split.serial_s, split.serial_s, split.comm_s, split.wait_s]
    rows = comm.all_gather(torch.tensor(own, dtype=torch.float64) * 1e3 / max(1, split.steps))
    parts = rows[:workers].mean(0).tolist()
    names = ("compute_ms", "serial_ms", "comm_ms", "wait_ms")
    return Steady(steps=split.steps, step_ms=sum(parts), **dict(zip(names, parts, strict=True)))
