"""Made-up sweeps and runs, stored as real ones are: records, losses at each step, timelines."""

import json
import math
from pathlib import Path
from random import Random

from made_up import made_up_sweep

from manyhands.config import RunConfig
from manyhands.record.run import Quantiles, RankRecord, RunDir, RunRecord, Steady
from manyhands.record.sweep import Measure, SweepDir, SweepRecord

STEPS = 400


def store(folder: Path, record: SweepRecord) -> SweepDir:
    """Write a sweep and what its runs left."""
    sweep = SweepDir(folder)
    sweep.path.mkdir(parents=True)
    sweep.record.write_text(record.model_dump_json())
    sizes = {cell.key: cell.size for cell in record.cells}
    for measure in record.measures:
        if measure.run:
            run = RunDir(folder / measure.run)
            write_losses(run, measure.step_ms)
            if measure.repeat == 0:
                run.trace.write_text(trace(measure, sizes[measure.cell]))
    return sweep


def stored_sweep(folder: Path, **options: object) -> SweepDir:
    """Make up a sweep and write it."""
    return store(folder, made_up_sweep(**options))  # type: ignore[arg-type]


def write_losses(run: RunDir, step_ms: float, steps: int = STEPS) -> None:
    """Write the losses of a run."""
    run.path.mkdir(parents=True, exist_ok=True)
    lines = ({"step": i + 1, "loss": 0.3 + 2 * math.exp(-i / 90), "ms": step_ms} for i in range(steps))
    run.steps.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def trace(measure: Measure, ranks: int, steps: int = 4) -> str:
    """Return a timeline in which every rank comes to an exchange at another time, and all leave it together."""
    random, now = Random(0), 1000.0
    events: list[dict[str, object]] = []
    for rank in range(ranks):
        name = {"name": f"rank {rank} (worker, here)"}
        events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": name})
    for step in range(5, 5 + steps):
        came = [now + measure.compute_ms * random.uniform(0.8, 1.2) for _ in range(ranks)]
        left = max(came) + measure.comm_ms
        for rank in range(ranks):
            spans = [
                ("forward and backward", "compute", now, came[rank]),
                ("agree and update", "update", came[rank], left + measure.serial_ms),
            ]
            spans += [("all-reduce", "comm", came[rank], left)] if ranks > 1 else []
            for name_, kind, start, end in spans:
                about = {"name": name_, "cat": kind, "ph": "X", "pid": rank, "tid": 0, "args": {"step": step}}
                events.append({**about, "ts": 1e3 * start, "dur": 1e3 * (end - start)})
        now = left + measure.serial_ms
    return json.dumps({"traceEvents": events})


def stored_run(folder: Path, *, engine: str = "mpi", workers: int = 2, task: str = "mlp", host: str = "here") -> RunDir:
    """Make up a run and write it."""
    config = RunConfig(task=task, engine=engine, workers=workers)
    step = Steady(steps=95, step_ms=2.0, compute_ms=1.2, serial_ms=0.2, comm_ms=0.4, wait_ms=0.2)
    ranks = [
        RankRecord(rank=i, host=host, compute_s=1.4, serial_s=0.2, comm_s=0.4, wait_s=0.2, max_rss_bytes=310 << 20)
        for i in range(workers)
    ]
    record = RunRecord(
        id=folder.name,
        status="complete",
        task=task,
        engine=engine,
        sync="allreduce",
        workers=workers,
        threads=1,
        batch_size=64,
        epochs=1,
        steps=100,
        steps_per_epoch=10,
        resumed_from=0,
        seed=0,
        device="cpu",
        parameters=235_146,
        samples=6400,
        train_loss=[0.62],
        test_loss=0.35,
        test_accuracy=0.9,
        samples_per_s=32_000.0 / workers,
        epoch_s=[0.2],
        step_ms=Quantiles(median=2.0, p90=2.4),
        steady=step,
        compute_s=0.14,
        comm_s=0.04,
        wait_s=0.02,
        read_s=0.4,
        eval_s=0.05,
        total_s=0.8,
        bytes_sent=188_116_800,
        messages=200,
        weights_sha256="a0" * 32,
        ranks=ranks,
        hardware={"cpu": "A made-up processor", "cores": 2, "gpus": []},
        versions={"manyhands": "0.1.0"},
        config=config,
    )
    run = RunDir(folder)
    write_losses(run, 2.0, steps=100)
    run.toml.write_text(config.to_toml())
    run.record.write_text(record.model_dump_json())
    measure = Measure(cell="", repeat=0, compute_ms=1.2, serial_ms=0.2, comm_ms=0.4)
    run.trace.write_text(trace(measure, workers))
    return run
