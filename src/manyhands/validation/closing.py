"""End a calibration with real runs: predict them from its measurements, run them, and keep both.

`simulate`, `validate` and `advise` correct their predictions by the difference (`model/runs/correction.py`).
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from manyhands import launch, sync
from manyhands.calibration.calibrate import Progress
from manyhands.calibration.calibrate import calibrate as measure_machine
from manyhands.calibration.gpu.calibrate import calibrate_gpu
from manyhands.errors import ManyhandsError, UserError, check
from manyhands.machine import facts
from manyhands.measurement.measure import figures, measure
from manyhands.record.calibration import Calibration, ClosingRun
from manyhands.run import train
from manyhands.simulation.simulate import simulate
from manyhands.sync.base import check_features
from manyhands.training.plan import AT_END

RUN_S, STEPS = 1.5, (20, 3000)
"""Time that the steps of a run should take, and the fewest and the most of them."""
ROUNDS = 6
"""Most runs of each configuration."""
START_S = 5.0
"""Assumed time to start a run of several processes, until one has been started."""
TIMEOUT_S = 120.0
"""Seconds that a run on a GPU may take."""
STRATEGIES = ("allreduce", "parameter-server")
"""Strategies of the runs: one by collective calls, one with a server."""

Observe = Callable[[Progress], None]


@dataclass
class _Case:
    """A configuration to run."""

    device: str
    task: str
    engine: str
    sync: str
    workers: int
    servers: int
    batch_size: int
    predicted_ms: float
    takes_s: float
    """Duration of a run, as predicted or as the last one took."""
    measured_ms: list[float] = field(default_factory=list)
    failed: str = ""
    """Why a run failed, after which there is no other."""

    @property
    def name(self) -> str:
        """Name it for people."""
        return f"{Path(self.task).name}, a run of {self.engine} ×{self.workers} {self.sync}"

    def run(self) -> None:
        """Train for some steps, and keep the time of a step."""
        begun_s = time.perf_counter()
        names = ("device", "engine", "workers", "sync", "batch_size")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        steps = int(np.clip(RUN_S * 1e3 / self.predicted_ms, *STEPS))
        options |= {"steps": steps, **AT_END, **({"blas_threads": 1} if self.device == "cpu" else {})}
        with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
            if self.device == "cpu":
                self.measured_ms.append(_step_ms(self.task, options, folder))
            else:  # in a process of its own, since GPUs differ from process to process
                run = measure(self.task, options, Path(folder), timeout_s=TIMEOUT_S)
                check(not run.failed, run.failed)
                self.measured_ms.append(run.step_ms)
        self.takes_s = time.perf_counter() - begun_s

    def closing(self) -> ClosingRun:
        """Return prediction and runs."""
        return ClosingRun(**{name: getattr(self, name) for name in ClosingRun.model_fields})


def _step_ms(task: str, options: dict[str, Any], folder: str) -> float:
    """Train with these options in this process, but for the ranks of MPI; return the time of a step."""
    record = train(task, **options, out=folder)
    if record.status == "interrupted":
        raise KeyboardInterrupt
    return figures(record).step_ms


def calibrate(task_names: Sequence[str], *, device: str = "cpu", **options: Any) -> Calibration:
    """Measure tasks, run them for real, and add both to the machine's file; options as of `calibration.calibrate`, or
    of `calibration.gpu.calibrate` where the device is cuda.

    >>> calibrate(["mlp"], path=Path("here.json"))  # doctest: +SKIP
    """
    if device == "cuda":
        return calibrate_gpu(task_names, close=close_loop, **options)
    return measure_machine(task_names, close=close_loop, **options)


def close_loop(
    calibration: Calibration, seconds: float, observe: Observe, say: Callable[[str], None]
) -> list[ClosingRun]:
    """Run every task with every engine of a calibration in turn, for about `seconds`; return predictions and runs.

    A run that fails, or that the time is too short for, is left out, and said: what was measured before is kept.
    """
    until_s = time.perf_counter() + seconds
    cases: list[_Case] = []
    try:
        cases = [case for task in calibration.tasks for case in _cases(calibration, task)]
    except ManyhandsError as error:
        say(f"there are no real runs, since they cannot be predicted: {error}")
    for i in range(ROUNDS):
        for case in cases if i % 2 == 0 else reversed(cases):
            left_s = until_s - time.perf_counter()
            if case.failed or case.takes_s > left_s:
                continue
            observe(Progress(case.name, 1 - left_s / seconds))
            try:
                case.run()
            except ManyhandsError as error:
                case.failed = str(error)
                say(f"{case.name}, failed: {error}; such predictions are not corrected")
    without = [case.name for case in cases if not case.measured_ms and not case.failed]
    if without:
        others = f" and {len(without) - 1} more" if len(without) > 1 else ""
        say(f"no time was left for {without[0]}{others}: such predictions are not corrected; give a longer --budget")
    return [case.closing() for case in cases if case.measured_ms]


def _cases(calibration: Calibration, task: str) -> Iterator[_Case]:
    """Yield what to run of one task: one worker, and of each engine as many as were measured, on a core each.

    Of GPUs, one: calls between several are measured where there are several, and predicted by a formula elsewhere.
    """
    engines, room = calibration.engines(task), facts.cores()
    if calibration.device != "cpu":
        yield from _predicted(calibration, task, engines[0], "allreduce", [1])
        return
    for engine in engines:
        comm = calibration.comms[engine]
        counts = sorted({2, comm.ranks})
        if engine == engines[0]:
            yield from _predicted(calibration, task, engine, "allreduce", [1])
        for spec in STRATEGIES:
            servers = sync.make(spec).num_servers()
            fit = [n for n in counts if n + servers <= (comm.ranks if comm.apart else room)]
            if _runs(engine, spec):
                yield from _predicted(calibration, task, engine, spec, fit if fit or not servers else [1])


def _predicted(calibration: Calibration, task: str, engine: str, spec: str, workers: list[int]) -> Iterator[_Case]:
    about: dict[str, Any] = {"syncs": spec, "engine": engine, "device": calibration.device}
    record = simulate(task, workers=workers, calibration=calibration, probe=False, **about)
    if record.status == "interrupted":
        raise KeyboardInterrupt
    for row in record.rows:
        one = row.workers + row.servers == 1
        start_s = 0.5 if calibration.device == "cpu" and (one or engine == "threads") else START_S
        yield _Case(
            device=calibration.device,
            task=task,
            engine="serial" if one else engine,
            sync=row.sync,
            workers=row.workers,
            servers=row.servers,
            batch_size=row.batch_size,
            predicted_ms=row.step_ms.value,
            takes_s=start_s + max(RUN_S, STEPS[0] * row.step_ms.value / 1e3),
        )


def _runs(engine: str, spec: str) -> bool:
    """Tell whether an engine has what a strategy needs."""
    try:
        check_features(sync.make(spec), launch.make(engine).features, engine)
    except UserError:
        return False
    return True
