"""Made-up validations and simulations, stored as real ones are."""

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

from manyhands.record.simulation import (
    Estimate,
    SimulationDir,
    SimulationRecord,
    SimulationRow,
    TrainedRow,
    Validation,
    ValidationDir,
    ValidationRecord,
)
from manyhands.record.virtual import VirtualPoint

STEP_MS = {"mlp": 2.1, "softmax": 0.31, "cnn": 64.0, "dnn": 9.0}
SYNCS = ("allreduce", "reduce-broadcast", "parameter-server", "local-sgd:period=8")
CORES = 4
VERSIONS = {"manyhands": "0.1.0", "torch": "2.9.1"}


def estimate(value: float, share: float) -> Estimate:
    """Put bounds around a value."""
    return Estimate(value=value, low=value * (1 - share), high=value * (1 + share))


def made_up_validation(
    *,
    task: str = "mlp",
    engine: str = "mpi",
    workers: int = 2,
    sync: str = "allreduce",
    measured_ms: float = 2.0,
    error_pct: float = 3.0,
    noise_pct: float = 1.0,
    share: float = 0.06,
    id: str = "20250301-120000-mlp-a1b2",
) -> Validation:
    """Make up one prediction that is off by so many percent, with an interval of this share to both sides."""
    predicted = estimate(measured_ms * (1 + error_pct / 100), share)
    spread = [measured_ms * (1 + each * noise_pct / 100) for each in (-2, 0, 2)]  # quartiles at ±1
    return Validation(
        id=id,
        task=task,
        engine=engine,
        workers=workers,
        servers=int(sync == "parameter-server"),
        sync=sync,
        batch_size=64,
        predicted="2025-03-01 12:00:00",
        measured="2025-03-01 12:04:30",
        method="events",
        predicted_ms=predicted,
        measured_ms=spread,
        median_ms=measured_ms,
        error_pct=error_pct,
        oversubscribed=workers + (sync == "parameter-server") > CORES,
        steps=400,
        machine="here: 4 cores of A made-up processor",
        calibrated="2025-03-01 11:30:00",
        versions=VERSIONS,
    )


def made_up_validations(
    tasks: Sequence[str] = ("softmax", "mlp", "cnn"),
    engines: Sequence[str] = ("threads", "mpi"),
    syncs: Sequence[str] = SYNCS,
    workers: Sequence[int] = (1, 2, 4),
) -> list[Validation]:
    """Make up predictions that are mostly as good as they should be; the odd one is not."""
    random, found = Random(7), []
    for task in tasks:
        for engine in engines:
            for sync in syncs:
                for n in workers:
                    costs = {"allreduce": 0.15, "local-sgd:period=8": 0.03}.get(sync, 0.3)
                    ms = STEP_MS[task] / n + costs * math.log2(n + 1) * (1.3 if engine == "mpi" else 1.0)
                    shared = n + (sync == "parameter-server") > CORES
                    error = random.gauss(0.8, 3.2) + (26 if shared else 0)
                    found.append(
                        made_up_validation(
                            task=task,
                            engine=engine,
                            workers=n,
                            sync=sync,
                            measured_ms=ms * random.uniform(0.95, 1.05),
                            error_pct=error,
                            noise_pct=abs(random.gauss(1.5, 0.8)) + 0.2,
                            share=random.uniform(0.045, 0.085),
                        )
                    )
    return found


def stored_ledger(folder: Path, rows: Sequence[Validation]) -> Path:
    """Write the file of all validations; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / "validations.jsonl"
    ledger.write_text("".join(f"{row.model_dump_json()}\n" for row in rows))
    return ledger


def stored_validation(folder: Path, rows: Sequence[Validation], **more: object) -> ValidationDir:
    """Write one validation."""
    telling = [row for row in rows if not row.oversubscribed]
    record = ValidationRecord(
        id=folder.name,
        task="mlp",
        command="manyhands validate mlp --workers 1,2,4",
        rows=list(rows),
        held=sum(row.held for row in telling),
        of=sum(len(row.measured_ms) for row in telling),
        **more,  # type: ignore[arg-type]
    )
    found = ValidationDir(folder)
    folder.mkdir(parents=True)
    found.record.write_text(record.model_dump_json())
    return found


def made_up_simulation(
    nodes: Sequence[int] = tuple(2**i for i in range(11)),
    syncs: Sequence[str] = ("allreduce", "reduce-broadcast", "local-sgd:period=8", "parameter-server"),
    *,
    currency: str = "USD",
    formula_from: int = 512,
    task: str = "cnn",
    **more: object,
) -> SimulationRecord:
    """Make up a simulation in which each strategy has its own limit."""
    rows = [
        _simulated(sync, n, currency, "closed form" if n >= formula_from else "events") for sync in syncs for n in nodes
    ]
    about: dict[str, object] = {
        "id": "20250301-120000-cnn-a1b2",
        "task": task,
        "command": "manyhands simulate cnn --nodes 1,2,4,...,1024 --cluster ethernet-10g",
        "made": "2025-03-01 12:00:00",
        "wall_s": 12.5,
        "engine": "mpi",
        "cluster": "ethernet-10g",
        "seed": 0,
        "steps": 0,
        "parameters": 690_590,
        "weight_bytes": 2_762_360,
        "samples": 60_000,
        "currency": currency,
        "alone_ms": estimate(64.0, 0.02),
        "alone_batch": 128,
        "rows": rows,
        "machine": "here: 4 cores of A made-up processor",
        "calibrated": "2025-03-01 11:30:00",
        "versions": VERSIONS,
    }
    return SimulationRecord.model_validate({**about, **more})


def _simulated(sync: str, n: int, currency: str, method: str) -> SimulationRow:
    compute, update = 63.4, 0.6
    comm = {
        "allreduce": 0.9 * math.log2(n) if n > 1 else 0.0,
        "reduce-broadcast": 2.4 * math.log2(n) if n > 1 else 0.0,
        "local-sgd:period=8": 0.12 * math.log2(n) if n > 1 else 0.0,
    }.get(sync, 2.3 * n if n > 1 else 0.3)
    wait = 0.7 * math.log2(n)
    step = compute + update + comm + wait
    speed, share = n * 64.0 / step, 0.02 + 0.008 * math.log2(n)
    epoch = 60_000 / (128 * n) * step / 1e3
    return SimulationRow(
        nodes=n,
        workers=n,
        servers=int(sync == "parameter-server"),
        sync=sync,
        batch_size=128 * n,
        method=method,  # type: ignore[arg-type]
        step_ms=estimate(step, share),
        compute_ms=compute,
        serial_ms=update,
        comm_ms=comm,
        wait_ms=wait,
        epoch_s=estimate(epoch, share),
        speed_up=estimate(speed, share),
        efficiency=estimate(speed / n, share),
        cost=estimate(epoch * n * 0.34 / 3600, share) if currency else None,
    )


def stored_simulation(folder: Path, record: SimulationRecord) -> SimulationDir:
    """Write a simulation."""
    found = SimulationDir(folder)
    folder.mkdir(parents=True)
    found.record.write_text(record.model_dump_json())
    return found


def made_up_training(sync: str, nodes: int, target: float | None = None, epochs: int = 10) -> TrainedRow:
    """Make up a training that learns the slower the less its nodes agree."""
    row = _simulated(sync, nodes, "USD", "events")
    steps = 60_000 // row.batch_size
    worse = 0.004 * math.log2(nodes) * (2.5 if sync.startswith("local") else 1.0)
    points = []
    for epoch in range(1, epochs + 1):
        accuracy = 0.988 - worse - 0.2 * math.exp(-epoch / (1.2 + 20 * worse))
        at = {"step": epoch * steps, "epoch": float(epoch), "time_s": epoch * row.epoch_s.value}
        loss = 2.2 * math.exp(-epoch / 2) + 0.05 + worse
        points.append(VirtualPoint.model_validate({**at, "loss": loss, "test_loss": loss + 0.02, "accuracy": accuracy}))
    reached = next((point for point in points if target is not None and point.accuracy >= target), None)
    return TrainedRow(
        nodes=nodes,
        workers=nodes,
        sync=sync,
        batch_size=row.batch_size,
        lr=0.001 * nodes,
        epochs=epochs,
        steps=epochs * steps,
        method="one-worker",
        test_accuracy=points[-1].accuracy,
        test_loss=points[-1].test_loss,
        time_s=estimate(points[-1].time_s, 0.04),
        target_s=estimate(reached.time_s, 0.04) if reached else None,
        target_cost=estimate(reached.time_s * nodes * 0.34 / 3600, 0.04) if reached else None,
        points=points,
        wall_s=3.0,
        weights_sha256="a0" * 32,
        folder=f"trained/{sync}-{nodes}",
    )


def made_up_trainings(
    syncs: Sequence[str] = ("allreduce", "local-sgd:period=8"),
    nodes: Sequence[int] = (1, 8, 64),
    target: float | None = None,
) -> list[TrainedRow]:
    """Make up trainings of some strategies on some numbers of nodes."""
    return [made_up_training(sync, n, target) for sync in syncs for n in nodes]
