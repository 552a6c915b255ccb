"""Made-up advice, to draw pages of."""

from pathlib import Path

from predicted import VERSIONS, estimate

from manyhands.record.advice import AdviceDir, AdvicePoint, AdviceRecord, AdviceRow

ALONE_S = 8.0


def made_up_point(workers: int, batch_size: int, sync: str = "allreduce", *, trained: bool = False) -> AdvicePoint:
    """Make up one way: twice the batch takes half the steps, and workers halve their efficiency with each doubling."""
    time_s = ALONE_S * 64 / batch_size / workers**0.5
    return AdvicePoint(
        engine="mpi" if workers > 1 else "serial",
        sync=sync,
        workers=workers,
        batch_size=batch_size,
        steps=1000 * 64 / batch_size,
        step_ms=1.5,
        time_s=time_s,
        efficiency=ALONE_S / time_s / workers,
        cost=0.1 * time_s * workers,
        trained=trained,
    )


def made_up_row(way: AdvicePoint) -> AdviceRow:
    """Make up the same in full."""
    return AdviceRow(
        engine=way.engine,
        sync=way.sync,
        workers=way.workers,
        nodes=way.workers,
        batch_size=way.batch_size,
        lr=0.01,
        warmup=0.0,
        steps=estimate(way.steps, 0.2),
        steps_from="training" if way.trained else "noise scale",
        samples_factor=1.0,
        step_ms=estimate(way.step_ms, 0.1),
        compute_ms=1.0,
        serial_ms=0.1,
        comm_ms=0.3,
        wait_ms=0.1,
        time_s=estimate(way.time_s, 0.3),
        speed_up=estimate(ALONE_S / way.time_s, 0.3),
        efficiency=estimate(way.efficiency, 0.3),
        cost=None if way.cost is None else estimate(way.cost, 0.3),
        reasons=[f"A reason for {way.workers}."],
        command=f"manyhands train mlp --engine {way.engine} --workers {way.workers}",
    )


def made_up_advice(task: str = "mlp", *, best: int = 3, **more: object) -> AdviceRecord:
    """Make up a whole piece of advice on a cluster that has a price."""
    alone = made_up_point(1, 64, trained=True)
    others = [
        made_up_point(n, size, sync)
        for n in (2, 4, 8)
        for size in (64, 256)
        for sync in ("allreduce", "local-sgd:period=8")
    ]
    looked_at = sorted([alone, made_up_point(1, 256), *others], key=lambda way: way.time_s)
    record = AdviceRecord(
        id="20250301-120000-mlp-a1b2",
        task=task,
        command="manyhands advise mlp --target-accuracy 0.9",
        made="2025-03-01 12:00:00",
        wall_s=100.0,
        target_accuracy=0.9,
        cluster="ethernet-10g",
        currency="EUR",
        considered=len(looked_at),
        looked_at=looked_at,
        alone=made_up_row(alone),
        best=[made_up_row(way) for way in looked_at[:best]],
        critical_batch=500.0,
        critical_low=300.0,
        critical_high=900.0,
        noise="The noise scale is about 500.",
        next=["Communication is next."],
        measured=["trained as one worker"],
        assumed=["the times are of training alone"],
        trainings=[],
        machine="here: 4 cores of A made-up processor",
        calibrated="2025-03-01 11:30:00",
        versions=VERSIONS,
    )
    return record.model_copy(update=more)


def stored_advice(folder: Path, record: AdviceRecord) -> AdviceDir:
    """Keep advice in a folder."""
    folder.mkdir(parents=True)
    found = AdviceDir(folder)
    found.record.write_text(record.model_dump_json())
    return found
