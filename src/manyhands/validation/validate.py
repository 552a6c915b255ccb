"""Predict step times, write them down, run the same configurations, and compare."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from manyhands import launch, sync, tasks
from manyhands.errors import check
from manyhands.launch.environment import outer_world
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.machine.load import worst
from manyhands.measurement.measure import measure
from manyhands.record.calibration import calibrate_command, read_calibration
from manyhands.record.simulation import (
    LEDGER,
    SimulationRecord,
    SimulationRow,
    Validation,
    ValidationDir,
    ValidationRecord,
)
from manyhands.record.store import append_lines, stem_of, write_record
from manyhands.record.sweep import Measure
from manyhands.request import absolute, resolve
from manyhands.simulation.devices import engine_on
from manyhands.simulation.present import probe_for
from manyhands.simulation.request import SUCH_HOSTS, read_counts, read_engines, read_syncs
from manyhands.simulation.simulate import Observer, simulate
from manyhands.spec import with_field_docs
from manyhands.sync.base import check_features
from manyhands.tasks.load import check_not_importing
from manyhands.training.plan import AT_END

REPEATS = 5
"""The fewest runs of which a median says something."""
RUN_S = 2.0
"""Seconds that the steps of a run should take, as far as `STEPS` allows."""
STEPS, PERIODS = (60, 2000), 40
"""The fewest and the most steps of a run; and the fewest exchanges, where not every step has one, since the steps that
count need not begin where a period does."""
TIMEOUT_S = 120.0
"""Seconds that a run may take beyond ten times its predicted time."""

Status = Literal["complete", "interrupted"]


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class ValidationRequest:
    """What a validation is asked for: the options of `manyhands validate`."""

    task: str
    """Built-in task, or FILE.py:VARIABLE."""
    workers: str | Sequence[int]
    """How many workers, such as `1,2,4`."""
    device: str = "cpu"
    """Where workers compute: `cpu`, or `cuda` for a GPU each."""
    engines: str | Sequence[str] = ""
    """Engines; without any, those that the calibration has."""
    syncs: str | Sequence[str] = "allreduce"
    """Strategies, such as `allreduce,local-sgd:period=8`."""
    calibration: Path | None = None
    """Measured times; without it, the user's own calibration file."""
    batch_size: int | str | None = None
    """Global batch; without it, the task's."""
    batch_per_worker: int | None = None
    """Rows of each worker, instead of a global batch."""
    repeats: int = REPEATS
    """Runs of each configuration."""
    steps: int = 0
    """Steps of each run; 0 to choose."""
    seed: int = 0
    """Decides the random times of events."""
    out: Path = Path("validations")
    """Folder of all validations."""
    command: str = ""
    """Command line that validates the same again."""

    def __post_init__(self) -> None:
        least = f"repeats must be at least {REPEATS}, or their median says little, got {self.repeats}"
        check(self.repeats >= REPEATS, least)
        check(self.steps >= 0, f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True)
class PredictedCase:
    """One configuration, and the prediction for it."""

    engine: str
    row: SimulationRow
    predicted: SimulationRecord
    steps: int

    @property
    def key(self) -> str:
        """A name that no other case of the validation has."""
        return f"{self.engine} {self.row.workers} {self.row.sync}"

    @property
    def options(self) -> dict[str, Any]:
        """Options of its runs."""
        on_gpu = self.predicted.device != "cpu"
        as_calibrated = {"device": self.predicted.device} if on_gpu else {"blas_threads": 1}
        return {
            "engine": "serial" if on_gpu and self.row.workers == 1 else self.engine,  # one GPU has no nccl
            "workers": self.row.workers,
            "sync": self.row.sync,
            "batch_size": self.row.batch_size,
            "steps": self.steps,
            **AT_END,
            **as_calibrated,
        }


@dataclass(frozen=True)
class ValidationPulse:
    """Progress of a validation, once all is predicted."""

    case: PredictedCase
    done: int
    """Runs that have ended."""
    total: int
    measure: Measure | None = None
    """The run that has just ended; None when a run starts."""


def validate(
    task: str,
    workers: str | Sequence[int],
    *,
    observe: Callable[[ValidationPulse], None] = lambda pulse: None,
    observe_prediction: Observer = lambda pulse: None,
    say: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> ValidationRecord:
    """Predict every engine, strategy and number of workers on this host; then run each several times, in turn.

    >>> validate("mlp", [1, 2], engines="threads", syncs="allreduce,local-sgd:period=8")  # doctest: +SKIP

    task: What to train.
    workers: How many workers, such as `1,2,4`.
    observe: Called with a `ValidationPulse` before and after each run.
    observe_prediction: Called with a `SimulationPulse` after each prediction.
    say: Called with sentences that a user should read.
    options: The other fields of a `ValidationRequest`: engines, syncs, calibration, batch_size, repeats, steps, …
    """
    check_not_importing()
    check(outer_world() is None, "validate starts its own workers; run it without mpiexec, srun or torchrun")
    request = ValidationRequest(task=task, workers=workers, **options)
    counts, specs = read_counts(workers, "workers"), read_syncs(request.syncs)
    engines = read_engines(request.engines) if request.engines else _calibrated(task, request)
    _check_gpus(request.device, max(counts))
    for engine, spec, n in product(engines, specs, counts):
        _check_runs(task, engine_on(request.device, engine), spec, n)
    same = ("device", "calibration", "batch_size", "batch_per_worker", "seed", "command")
    given = {"workers": counts, "syncs": specs, **{name: getattr(request, name) for name in same}}
    with ValidationDir.kept_if_used(request.out, stem_of(task)) as folder:
        predictions = {}
        path = request.calibration or calibration_path(request.device)
        named = request.calibration is not None
        known = read_calibration(path, absolute(task), named=named, device=request.device)
        probe = probe_for(known)  # once for all engines
        for engine in engines:
            tell = say if engine == engines[0] else lambda sentence: None  # warnings of the machine, once
            predicted = simulate(task, engine=engine, observe=observe_prediction, say=tell, probe=probe, **given)
            if predicted.status == "interrupted":
                raise KeyboardInterrupt
            predictions[engine] = predicted
        for engine, predicted in predictions.items():  # all, or none where one cannot be predicted
            write_record(folder.path / f"prediction-{engine}.json", predicted)
        cases = [
            PredictedCase(engine, row, predicted, request.steps or _steps(row))
            for engine, predicted in predictions.items()
            for row in predicted.rows
        ]
        measures, status = _measure_all(task, cases, request.repeats, folder.path, observe)
        others = worst(run.others for run in measures)
        if others is not None and others.disturbed:
            say(f"{others} in the worst of the runs: such times are too long to hold predictions against")
        record = _record(folder.path.name, request.command, cases, measures, status)
        folder.write(record)
        if status == "complete":
            append_lines(request.out / LEDGER, record.rows)
    return record


def _steps(row: SimulationRow) -> int:
    period = sync.make(row.sync).period
    fewest = STEPS[0] if period == 1 else PERIODS * period
    return int(np.clip(RUN_S * 1e3 / row.step_ms.value, fewest, STEPS[1]))


def _calibrated(task: str, request: ValidationRequest) -> list[str]:
    """Return the engines that were calibrated with a task."""
    tasks.load(task)
    given, device = request.calibration, request.device
    engine_on(device)
    known = read_calibration(given or calibration_path(device), absolute(task), named=given is not None, device=device)
    engines = known.engines(absolute(task))
    command = calibrate_command(task, device)
    check(bool(engines), f"no engine is calibrated with task '{task}'; run '{command}'")
    return engines


def _check_gpus(device: str, workers: int) -> None:
    """Refuse to validate more workers than there are GPUs here, since a prediction gives each a GPU to itself."""
    gpus = torch.cuda.device_count() if device != "cpu" else workers
    check(
        workers <= gpus,
        f"validate runs what it predicts, and {workers} workers need a GPU each, but torch sees {gpus or 'none'} here; "
        "'manyhands simulate' predicts without running",
    )


def _check_runs(task: str, engine: str, spec: str, workers: int) -> None:
    """Refuse a configuration that cannot be run, before anything is predicted."""
    launcher = launch.make(engine)
    check_features(sync.make(spec), launcher.features, engine)
    launcher.check(resolve(task, {"engine": engine, "workers": workers, "sync": spec}))


def _measure_all(
    task: str, cases: Sequence[PredictedCase], repeats: int, folder: Path, observe: Callable[[ValidationPulse], None]
) -> tuple[list[Measure], Status]:
    """Run every case several times: forth and back, so that none always comes after the same."""
    measures: list[Measure] = []
    total = repeats * len(cases)
    try:
        for repeat in range(repeats):
            for case in cases if repeat % 2 == 0 else reversed(cases):
                observe(ValidationPulse(case, len(measures), total))
                timeout_s = TIMEOUT_S + 10 * case.steps * case.row.step_ms.value / 1e3
                run = measure(task, case.options, folder / "runs", timeout_s=timeout_s, cell=case.key, repeat=repeat)
                _check_hosts(case, run)
                measures.append(run)
                observe(ValidationPulse(case, len(measures), total, run))
    except KeyboardInterrupt:
        return measures, "interrupted"
    return measures, "complete"


def _check_hosts(case: PredictedCase, run: Measure) -> None:
    """Refuse to compare predictions for several hosts with ranks that share one."""
    between_hosts = case.predicted.cluster == SUCH_HOSTS and case.row.workers + case.row.servers > 1
    check(
        run.hosts > 1 or bool(run.failed) or not between_hosts,
        "the calibration is of links between hosts, but mpiexec started all ranks on this one; name several, as in "
        "HYDRA_HOST_FILE, or give a calibration of this host",
    )


def _record(
    id_: str, command: str, cases: Sequence[PredictedCase], measures: Sequence[Measure], status: Status
) -> ValidationRecord:
    runs = {case.key: [run for run in measures if run.cell == case.key] for case in cases}
    good = {key for key, measured in runs.items() if not all(run.failed for run in measured)}
    rows = [compared(id_, case, runs[case.key]) for case in cases if case.key in good]
    telling = [row for row in rows if not row.oversubscribed]
    return ValidationRecord(
        id=id_,
        status=status,
        task=cases[0].predicted.task,
        command=command,
        rows=rows,
        failed={key: measured[0].failed for key, measured in runs.items() if measured and key not in good},
        median_error_pct=statistics.median(abs(row.error_pct) for row in telling) if telling else None,
        held=sum(row.held for row in telling),
        of=sum(len(row.measured_ms) for row in telling),
    )


def compared(id_: str, case: PredictedCase, runs: Sequence[Measure]) -> Validation:
    """Compare a prediction with the runs that did not fail, of which there is at least one."""
    row, predicted = case.row, case.predicted
    measured = [run.step_ms for run in runs if not run.failed]
    hosts = max(run.hosts for run in runs if not run.failed)
    median = statistics.median(measured)
    return Validation(
        id=id_,
        task=predicted.task,
        engine=case.engine,
        device=predicted.device,
        hosts=hosts,
        workers=row.workers,
        servers=row.servers,
        sync=row.sync,
        batch_size=row.batch_size,
        predicted=predicted.made,
        measured=time.strftime("%Y-%m-%d %H:%M:%S"),
        method=row.method,
        predicted_ms=row.step_ms,
        measured_ms=measured,
        median_ms=median,
        error_pct=100 * (row.step_ms.value / median - 1),
        oversubscribed=predicted.device == "cpu" and row.workers + row.servers > hosts * facts.cores(),
        steps=case.steps,
        failed=[run.failed for run in runs if run.failed],
        machine=predicted.machine,
        calibrated=predicted.calibrated,
        circumstances=predicted.circumstances,
        versions=facts.versions(),
    )
