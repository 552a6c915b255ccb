"""Made-up sweeps, whose causes of lost time are known because each is a number given here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from manyhands.record.sweep import Cell, Finding, Measure, SweepRecord
from manyhands.scaling.analysis.analyse import analyse

BATCH = 64
SAMPLES = 60_000
NOTHING: dict[str, Any] = {
    "start_ms": 0.0,
    "serial_ms": 0.0,
    "comm_ms": 0.0,
    "wait_share": 0.0,
    "sharing": 0.0,
    "noise": 0.0,
}
"""Costs of workers that lose nothing."""
CAUSED_BY: dict[str, dict[str, float]] = {
    "comm": {"comm_ms": 0.2},
    "wait": {"wait_share": 0.1},
    "serial": {"serial_ms": 0.2},
    "small-batch": {"start_ms": 0.3},
    "oversubscription": {"cores": 2},
    "memory": {"sharing": 0.1},
}
"""Of each cause, the costs that have no other."""


def made_up_sweep(
    kind: Literal["strong", "weak"] = "strong",
    workers: Sequence[int] = (1, 2, 4, 8),
    engines: Sequence[str] = ("threads", "mpi"),
    syncs: Sequence[str] = ("allreduce",),
    *,
    batch_sizes: Sequence[int] = (BATCH,),
    image_sizes: Sequence[int] = (0,),
    repeats: int = 5,
    noise: float = 0.02,
    cores: int = 8,
    failing: Mapping[str, str] | None = None,
    status: Literal["complete", "interrupted"] = "complete",
    **costs: float,
) -> SweepRecord:
    """Return a sweep as it would be measured.

    `failing` tells why the runs failed whose `CELL'S KEY repeat NUMBER` holds a text, such as `mpi 4` or `repeat 0`.
    """
    cells = made_up_cells(kind, workers, engines, syncs, batch_sizes=batch_sizes, image_sizes=image_sizes)
    measures = made_up_measures(cells, repeats=repeats, noise=noise, failing=failing, cores=cores, **costs)
    found = analyse(kind, cells, measures, cores)
    return SweepRecord(
        id=f"20250301-120000-{kind}-mlp-a1b2",
        kind=kind,
        status=status,
        task="mlp",
        command=f"manyhands scale {kind} mlp --workers {','.join(map(str, workers))} --engines {','.join(engines)}",
        started="2025-03-01 12:00:00",
        wall_s=93.4,
        repeats=repeats,
        steps=200,
        cells=cells,
        measures=measures,
        rows=found.rows,
        fits=found.fits,
        findings=found.findings,
        hardware={
            "host": "made-up",
            "cpu": "A made-up processor",
            "cores": cores,
            "memory_gib": 15.6,
            "gpus": [],
            "system": "Linux 6.1",
        },
        versions={"manyhands": "0.1.0", "python": "3.12.1", "torch": "2.6.0"},
    )


def made_up_cells(
    kind: str,
    workers: Sequence[int],
    engines: Sequence[str],
    syncs: Sequence[str] = ("allreduce",),
    *,
    batch_sizes: Sequence[int] = (BATCH,),
    image_sizes: Sequence[int] = (0,),
) -> list[Cell]:
    """Return the cells of a sweep: baselines, cells of several workers and, of a strong one, their probes."""
    found: dict[str, Cell] = {}

    def add(**settings: Any) -> None:
        cell = Cell(**settings)
        found.setdefault(cell.key, cell)

    for image_size in image_sizes:
        for batch in batch_sizes:
            add(role="baseline", engine="serial", workers=1, batch_size=batch, image_size=image_size)
            for n in (n for n in workers if n > 1):
                whole = batch * n if kind == "weak" else batch
                if kind == "strong":
                    alone = math.ceil(batch / n)
                    add(role="probe", engine="serial", workers=1, batch_size=alone, image_size=image_size)
                for engine in engines:
                    for sync in syncs:
                        threads = 2 if engine == "hybrid" and n % 2 == 0 else 1
                        at = {"engine": engine, "workers": n // threads, "threads": threads, "sync": sync}
                        add(**at, batch_size=whole, image_size=image_size)
    return list(found.values())


def made_up_measures(
    cells: Sequence[Cell],
    *,
    repeats: int = 5,
    noise: float = 0.02,
    failing: Mapping[str, str] | None = None,
    seed: int = 0,
    **costs: float,
) -> list[Measure]:
    """Return runs of the cells, repeat by repeat, with relative noise on each part of a step."""
    random = np.random.default_rng(seed)
    found = []
    for repeat in range(repeats):
        for cell in cells:
            noises = 1 + noise * random.standard_normal(4)
            why = next((why for part, why in (failing or {}).items() if part in f"{cell.key} repeat {repeat}"), "")
            good = made_up_measure(cell, repeat, noises, **costs)
            found.append(Measure(cell=cell.key, repeat=repeat, failed=why) if why else good)
    return found


def made_up_measure(
    cell: Cell,
    repeat: int = 0,
    noises: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    *,
    sample_ms: float = 0.05,
    start_ms: float = 0.15,
    serial_ms: float = 0.1,
    comm_ms: float = 0.08,
    wait_share: float = 0.05,
    sharing: float = 0.03,
    cores: int = 8,
) -> Measure:
    """Return one run.

    Computing costs `start_ms` and `sample_ms` for each sample, the share `sharing` more for each worker beside, and
    more again where workers take turns on the cores; an exchange costs `comm_ms` × log2 n.
    """
    n = cell.size
    batch = cell.batch_size if isinstance(cell.batch_size, int) else SAMPLES * cell.replicate
    computing = (start_ms + sample_ms * batch / n) * (1 + sharing * (n - 1)) * max(1.0, n / cores)
    seldom = 8 if "local-sgd" in cell.sync else 1
    costs = {
        "compute_ms": computing,
        "serial_ms": serial_ms,
        "comm_ms": comm_ms * math.log2(n) / seldom,
        "wait_ms": wait_share * computing * (n > 1) / seldom,
    }
    parts = {name: cost * noise for (name, cost), noise in zip(costs.items(), noises, strict=True)}
    step_ms = sum(parts.values())
    return Measure(
        cell=cell.key,
        repeat=repeat,
        run=f"runs/{cell.role}-{cell.engine}{n}-{repeat}",
        batch_size=batch,
        steps=200,
        steps_per_epoch=math.ceil(SAMPLES * cell.replicate / batch),
        step_ms=step_ms,
        **parts,
        read_s=0.4,
        eval_s=0.05,
        total_s=1.1 + 0.2 * step_ms,
        bytes_per_step=2.0 * (n - 1) * 940_584 / seldom,
        messages_per_step=(n if n > 1 else 0) / seldom,
        train_loss=0.62,
        test_loss=0.35,
        test_accuracy=0.9 if seldom == 1 else 0.89,
        max_rss_bytes=310 << 20,
        energy_j=40 * (1.1 + 0.2 * step_ms),
    )


def finding_of(record: SweepRecord, part: str) -> Finding:
    """Return the finding of the one row whose cell's key holds this text."""
    (finding,) = [finding for finding in record.findings if part in finding.row]
    return finding
