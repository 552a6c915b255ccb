"""Predict step times, write them down, run the same, and say how far off the predictions were."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from manyhands import facts, launch, sync, tasks
from manyhands.errors import UserError, check
from manyhands.lab.cells import NEVER
from manyhands.lab.folders import kept_if_used
from manyhands.lab.measure import measure
from manyhands.lab.sim_asked import SUCH_HOSTS, read_counts, read_syncs
from manyhands.lab.sim_events import period_of
from manyhands.lab.simulate import Observer, simulate
from manyhands.launch.environment import outer_world
from manyhands.launch.places import calibration_path
from manyhands.others import worst
from manyhands.record import Measure, write_atomically
from manyhands.record.calibration import read_calibration
from manyhands.record.files import alone_in
from manyhands.record.simulation import LEDGER, SimulationRecord, SimulationRow, Validation, ValidationRecord
from manyhands.request import absolute, resolve
from manyhands.sync.base import check_features
from manyhands.tasks.load import check_not_importing

REPEATS = 5
"""The fewest runs of which a median says something."""
RUN_S = 2.0
"""How long the steps of a run should take, within reason."""
STEPS, PERIODS = (60, 2000), 40
"""The fewest and the most steps of a run; and the fewest exchanges, where not every step has one, since the steps that
count need not begin where a period does."""
TIMEOUT_S = 120.0
"""How long a run may take beside ten times its predicted time."""


@dataclass(frozen=True)
class Case:
    """One configuration, and what is predicted for it."""

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
        """What its runs are given."""
        return {
            "engine": self.engine,
            "workers": self.row.workers,
            "sync": self.row.sync,
            "batch_size": self.row.batch_size,
            "blas_threads": 1,  # as it was calibrated
            "steps": self.steps,
            "eval_every": NEVER,
        }


@dataclass(frozen=True)
class ValidationPulse:
    """How far a validation is, once all is predicted."""

    case: Case
    done: int
    """Runs that have ended."""
    total: int
    measure: Measure | None = None
    """What has just been measured; None when a run starts."""


def validate(
    task: str,
    workers: str | Sequence[int],
    *,
    engines: str | Sequence[str] = "",
    syncs: str | Sequence[str] = "allreduce",
    calibration: Path | None = None,
    batch_size: int | str | None = None,
    batch_per_worker: int | None = None,
    repeats: int = REPEATS,
    steps: int = 0,
    seed: int = 0,
    out: Path = Path("validations"),
    command: str = "",
    observe: Callable[[ValidationPulse], None] = lambda pulse: None,
    observe_prediction: Observer = lambda pulse: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> ValidationRecord:
    """Predict every engine, strategy and number of workers on this host; then run each several times, in turn.

    Without engines, those that the calibration has are meant.

    >>> validate("mlp", [1, 2], engines="threads", syncs="allreduce,local-sgd:period=8")  # doctest: +SKIP
    """
    check_not_importing()
    check(outer_world() is None, "validate starts its own workers; run it without mpiexec, srun or torchrun")
    check(repeats >= REPEATS, f"repeats must be at least {REPEATS}, or their median says little, got {repeats}")
    check(steps >= 0, f"steps must be at least 1, got {steps}")
    counts, specs = read_counts(workers, "workers"), read_syncs(syncs)
    chosen = _read_engines(engines) if engines else _calibrated(task, calibration)
    for engine, spec, n in product(chosen, specs, counts):
        _check_runs(task, engine, spec, n)
    given = {"calibration": calibration, "batch_size": batch_size, "batch_per_worker": batch_per_worker, "seed": seed}
    options = {**given, "workers": counts, "syncs": specs, "command": command, "observe": observe_prediction}
    with kept_if_used(out, task) as folder:
        predictions = _predict(task, chosen, options, say)
        for found in predictions:
            write_atomically(folder / f"prediction-{found.engine}.json", found.model_dump_json(indent=2) + "\n")
        cases = [Case(found.engine, row, found, steps or _steps(row)) for found in predictions for row in found.rows]
        measures, status = _measure_all(task, cases, repeats, folder, observe)
        others = worst(run.others for run in measures)
        if others is not None and others.disturbed:
            say(f"{others} in the worst of the runs: such times are too long to hold predictions against")
        record = _record(folder.name, command, cases, measures, status)
        write_atomically(folder / "validation.json", record.model_dump_json(indent=2) + "\n")
        if status == "complete":
            _add(out / LEDGER, record.rows)
    return record


def _predict(
    task: str, engines: Sequence[str], options: dict[str, Any], say: Callable[[str], None]
) -> list[SimulationRecord]:
    """Predict every engine; what there is to say of the machine is said once."""
    found = []
    for engine in engines:
        told = say if engine == engines[0] else lambda sentence: None
        prediction = simulate(task, engine=engine, say=told, **options)
        if prediction.status == "interrupted":
            raise KeyboardInterrupt
        found.append(prediction)
    return found


def _add(ledger: Path, rows: Sequence[Validation]) -> None:
    """Add to the ledger; what a validation that was killed left of a line is cut off first."""
    try:
        with alone_in(ledger.parent), open(ledger, "ab+") as file:  # or another's new lines might be cut off
            file.seek(0)
            whole, newline, _ = file.read().rpartition(b"\n")
            file.truncate(len(whole) + len(newline))
            file.writelines(f"{row.model_dump_json()}\n".encode() for row in rows)
    except OSError as error:
        raise UserError(f"cannot write to '{ledger}': {error.strerror}") from None


def _steps(row: SimulationRow) -> int:
    period = period_of(sync.make(row.sync))
    fewest = STEPS[0] if period == 1 else PERIODS * period
    return int(np.clip(RUN_S * 1e3 / row.step_ms.value, fewest, STEPS[1]))


def _read_engines(text: str | Sequence[str]) -> list[str]:
    names = [each.strip() for each in (text.split(",") if isinstance(text, str) else text)]
    found = list(dict.fromkeys(name for name in names if name))
    check(bool(found), "engines must name at least one, such as threads,mpi")
    return found


def _calibrated(task: str, given: Path | None) -> list[str]:
    """Return the engines that the calibration has with this task."""
    tasks.load(task)
    known = read_calibration(given or calibration_path(), absolute(task), named=given is not None)
    found = known.engines(absolute(task))
    check(bool(found), f"no engine is calibrated with task '{task}'; run 'manyhands calibrate {task}'")
    return found


def _check_runs(task: str, engine: str, spec: str, workers: int) -> None:
    """Refuse what could not be run, before anything is predicted."""
    launcher = launch.make(engine)
    check_features(sync.make(spec), launcher.features, engine)
    launcher.check(resolve(task, {"engine": engine, "workers": workers, "sync": spec}))


def _measure_all(
    task: str, cases: Sequence[Case], repeats: int, folder: Path, observe: Callable[[ValidationPulse], None]
) -> tuple[list[Measure], Literal["complete", "interrupted"]]:
    """Run every case several times: forth and back, so that none always comes after the same."""
    found: list[Measure] = []
    total = repeats * len(cases)
    try:
        for i, (repeat, case) in enumerate(_in_turn(cases, repeats)):
            observe(ValidationPulse(case, i, total))
            timeout_s = TIMEOUT_S + 10 * case.steps * case.row.step_ms.value / 1e3
            run = measure(task, case.options, folder / "runs", timeout_s=timeout_s, cell=case.key, repeat=repeat)
            _check_hosts(case, run)
            found.append(run)
            observe(ValidationPulse(case, i + 1, total, run))
    except KeyboardInterrupt:
        return found, "interrupted"
    return found, "complete"


def _check_hosts(case: Case, run: Measure) -> None:
    """Refuse to hold predictions for several hosts against ranks that share one."""
    between_hosts = case.predicted.cluster == SUCH_HOSTS and case.row.workers + case.row.servers > 1
    check(
        run.hosts > 1 or bool(run.failed) or not between_hosts,
        "the calibration is of links between hosts, but mpiexec started all ranks on this one; name several, as in "
        "HYDRA_HOST_FILE, or give a calibration of this host",
    )


def _in_turn(cases: Sequence[Case], repeats: int) -> Iterator[tuple[int, Case]]:
    for repeat in range(repeats):
        for case in cases if repeat % 2 == 0 else reversed(cases):
            yield repeat, case


def _record(
    id_: str,
    command: str,
    cases: Sequence[Case],
    measures: Sequence[Measure],
    status: Literal["complete", "interrupted"],
) -> ValidationRecord:
    runs = {case.key: [run for run in measures if run.cell == case.key] for case in cases}
    good = {key: [run for run in found if not run.failed] for key, found in runs.items()}
    rows = [compared(id_, case, runs[case.key]) for case in cases if good[case.key]]
    failed = {key: found[0].failed for key, found in runs.items() if found and not good[key]}
    telling = [row for row in rows if not row.oversubscribed]
    return ValidationRecord(
        id=id_,
        status=status,
        task=cases[0].predicted.task,
        command=command,
        rows=rows,
        failed=failed,
        median_error_pct=statistics.median(abs(row.error_pct) for row in telling) if telling else None,
        held=sum(row.held for row in telling),
        of=len(telling),
    )


def compared(id_: str, case: Case, runs: Sequence[Measure]) -> Validation:
    """Hold a prediction against the runs that went well, of which there is at least one."""
    row, found = case.row, case.predicted
    measured = [run.step_ms for run in runs if not run.failed]
    hosts = max(run.hosts for run in runs if not run.failed)
    median = statistics.median(measured)
    return Validation(
        id=id_,
        task=found.task,
        engine=case.engine,
        hosts=hosts,
        workers=row.workers,
        servers=row.servers,
        sync=row.sync,
        batch_size=row.batch_size,
        predicted=found.made,
        measured=time.strftime("%Y-%m-%d %H:%M:%S"),
        method=row.method,
        predicted_ms=row.step_ms,
        measured_ms=measured,
        median_ms=median,
        error_pct=100 * (row.step_ms.value / median - 1),
        held=row.step_ms.holds(median),
        oversubscribed=row.workers + row.servers > hosts * facts.cores(),
        steps=case.steps,
        failed=[run.failed for run in runs if run.failed],
        machine=found.machine,
        calibrated=found.calibrated,
        versions=facts.versions(),
    )
