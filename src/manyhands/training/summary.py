"""What a run leaves, gathered from all ranks: its record, and the timeline of some steps."""

import json
import resource
import socket
import sys
import time
from typing import Any, Literal

import numpy as np
import torch

from manyhands.comm import Comm
from manyhands.comm.spans import RankSpans, Span, Spans, chrome_trace
from manyhands.comm.texts import gather_texts
from manyhands.data import SampleSplit
from manyhands.errors import CannotWrite, ManyhandsError
from manyhands.machine import facts
from manyhands.machine.load import CoreMeter, others_of
from manyhands.record.files import flush, write_atomically, writing
from manyhands.record.run import Others, Quantiles, RankRecord, RankSteps, RunDir, RunRecord, Steady
from manyhands.replica import Replica
from manyhands.training.checkpoint import weights_sha256, write_weights
from manyhands.training.job import RankContext
from manyhands.training.journal import Journal
from manyhands.training.meter import TimeSplit


def summarise(rank: RankContext, journal: Journal, *, read_s: float, stopped: bool, started: float) -> dict[str, Any]:
    """Gather every rank's times, store the record and the weights on rank 0, and return the record."""
    comm, config, run, replica, meter = rank.comm, rank.job.config, rank.job.run, rank.replica, journal.meter
    ranks, steady, sent, others = gather_ranks(
        rank, meter.split, meter.steady, journal.core_meter, _rank_steps(rank, journal)
    )
    at_work = ranks[: config.size]
    milliseconds = np.array(meter.step_s or [0.0]) * 1e3
    train_s = meter.split.train_s
    result = journal.result
    assert result is not None, "the final weights are tested"
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
        test_loss=result.test_loss,
        test_accuracy=result.test_accuracy,
        metrics=result.metrics,
        history=journal.history,
        best_step=journal.best_step,
        stopped_early=journal.stopped_early and not stopped,
        samples_per_s=journal.samples() / train_s if train_s else 0.0,
        epoch_s=journal.epoch_s,
        step_ms=Quantiles(median=float(np.median(milliseconds)), p90=float(np.quantile(milliseconds, 0.9))),
        steady=steady,
        compute_s=sum(r.compute_s for r in at_work) / len(at_work),
        data_s=sum(r.data_s for r in at_work) / len(at_work),
        by_sample=isinstance(journal.plan.split, SampleSplit),
        comm_s=sum(r.comm_s for r in at_work) / len(at_work),
        wait_s=sum(r.wait_s for r in at_work) / len(at_work),
        read_s=read_s,
        eval_s=journal.eval_s,
        total_s=time.perf_counter() - started,
        bytes_sent=sent[0],
        messages=sent[1],
        weights_sha256=weights_sha256(replica.module),
        warnings=list(rank.job.warnings),
        blas_threads=torch.get_num_threads(),
        others=others,
        ranks=ranks,
        hardware=facts.hardware(),
        versions=facts.versions(),
        config=config,
    )
    if comm.rank == 0:
        _store(run, record, replica)
    if rank.strategy.num_servers():
        gather_texts(comm, record.model_dump_json() if comm.rank == 0 else "")  # for the servers
    return record.model_dump(mode="json")


def _store(run: RunDir, record: RunRecord, replica: Replica) -> None:
    """Write the weights and the record; the record also where the weights cannot be written."""
    try:
        write_weights(run.model, replica.module.state_dict())
    except CannotWrite as error:
        record.weights_missing = str(error)
    with writing(run.steps):
        flush(run.steps)
    run.write(record)
    if record.weights_missing:
        raise ManyhandsError(f"{record.weights_missing}; the record is kept, without weights")


def gather_ranks(
    rank: RankContext, split: TimeSplit, steady: TimeSplit, core_meter: CoreMeter, steps: RankSteps | None = None
) -> tuple[list[RankRecord], Steady, list[int], Others | None]:
    """Return every rank's times, a step after the warm-up, [bytes sent, messages] of all ranks, and the use of the
    cores by other programs.

    `split` has this rank's times, `steady` those after the warm-up, which count on workers only, as do `steps`.
    """
    comm, size = rank.comm, rank.job.config.size
    record = RankRecord(
        rank=comm.rank,
        role=_role(rank, comm.rank),
        host=socket.gethostname(),
        compute_s=split.compute_s,
        data_s=split.gather_s,
        serial_s=split.serial_s,
        comm_s=split.comm_s,
        wait_s=split.wait_s,
        max_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        notes=rank.strategy.notes(),
        steady=steps,
    )
    use = core_meter.read(torch.get_num_threads()).to_json()
    figures = (record.model_dump(), steady.per_step(), [rank.traced.bytes_sent, rank.traced.messages], use)
    texts = gather_texts(comm, json.dumps(figures))
    records, splits, sent, uses = zip(*map(json.loads, texts), strict=True)
    parts_ms = np.mean(1e3 * np.array(splits[:size]), axis=0).tolist()
    names = ("compute_ms", "serial_ms", "comm_ms", "wait_ms")
    gather_ms = float(np.mean([values["steady"]["gather_ms"] for values in records[:size]]))
    step = Steady(
        steps=steady.steps, step_ms=sum(parts_ms), gather_ms=gather_ms, **dict(zip(names, parts_ms, strict=True))
    )
    return [RankRecord(**values) for values in records], step, np.sum(sent, axis=0).tolist(), others_of(uses)


def _rank_steps(rank: RankContext, journal: Journal) -> RankSteps:
    """Return this worker's steps after the warm-up."""
    meter, steady = journal.meter, journal.meter.steady
    passes_ms, steps = 1e3 * np.array(meter.steady_passes_s or [0.0]), max(1, steady.steps)
    compute_s, serial_s, *_ = steady.per_step()
    return RankSteps(
        rank=rank.comm.rank,
        host=socket.gethostname(),
        rows=journal.plan.rows,
        compute_ms=1e3 * compute_s,
        median_ms=float(np.median(passes_ms)),
        sd_ms=float(np.std(passes_ms)),
        gather_ms=1e3 * steady.gather_s / steps,
        serial_ms=1e3 * serial_s,
        starved_ms=1e3 * steady.starved_s / steps,
        last=steady.lasts / steady.exchanges if steady.exchanges and rank.strategy.lockstep else 0.0,
    )


def align(comm: Comm, spans: Spans) -> None:
    """Note each rank's clock at the same moment, if a timeline is wanted."""
    if spans.num_steps:
        comm.barrier()
        spans.zero_s = comm.clock()


def store_timeline(rank: RankContext) -> None:
    """Write the spans of all ranks as a Chrome trace on rank 0, if a timeline is wanted."""
    comm, spans = rank.comm, rank.traced.spans
    if not spans.num_steps:
        return
    kept = RankSpans(comm.rank, _role(rank, comm.rank), socket.gethostname(), spans.kept, spans.zero_s)
    texts = gather_texts(comm, json.dumps(kept))
    if comm.rank == 0:
        try:
            write_atomically(rank.job.run.trace, chrome_trace([_rank_spans(text) for text in texts]))
        except CannotWrite as error:  # without a timeline the record can still be written
            print(f"manyhands: {error}", file=sys.stderr)


def _role(rank: RankContext, number: int) -> Literal["worker", "server"]:
    return "worker" if number < rank.job.config.size else "server"


def _rank_spans(text: str) -> RankSpans:
    parsed = RankSpans(*json.loads(text))
    return parsed._replace(spans=[Span(*span) for span in parsed.spans])
