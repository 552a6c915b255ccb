"""Predict settings with more workers than this machine has cores: by the simulator, or by scheduling measured folds."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

from manyhands.calibration.calibrate import calibrate
from manyhands.errors import UserError
from manyhands.launch.user_folder import calibration_path
from manyhands.record.calibration import read_calibration
from manyhands.record.papers import Prediction
from manyhands.record.sweep import Interval
from manyhands.reproduction import variants
from manyhands.reproduction.base import Paper, Setting
from manyhands.simulation.simulate import simulate

BUDGET_S = 45.0
"""Time of a calibration; a task whose steps are long takes what it needs."""
LONG_S = {"softmax_112": 200.0}
"""Estimated time of calibrations that take longer."""
ENGINES = {"threads": "threads", "mpi": "mpi", "ray": "mpi"}
"""Engine to calibrate for an engine of ours. OmpCluster's messages go by MPI, so Ray's head and workers are predicted
with it."""
HYBRID = "the simulator knows threads and MPI, not both together"
ONE_HOST = "one host with a core for each"
SIMULATED_PCT = 90.0
"""Confidence level of the simulator's intervals."""


class Calibrated(NamedTuple):
    """A task to calibrate with some engines, for predictions."""

    task: str
    engines: tuple[str, ...]

    @property
    def name(self) -> str:
        """A short name for people."""
        return f"calibration of {self.task.rpartition(':')[2].replace('_', ' ')}"

    @property
    def about_s(self) -> float:
        """Estimated time of the calibration."""
        return LONG_S.get(self.task.rpartition(":")[2], BUDGET_S + 10.0)


@final
@dataclass(frozen=True)
class Needed:
    """A setting to predict, and the network of its paper."""

    setting: Setting
    network: str

    @property
    def engine(self) -> str:
        """Engine of the simulation; empty where there is none."""
        return ENGINES.get(self.setting.options["engine"], "")

    @property
    def task(self) -> str:
        """Task to calibrate: the setting's, or a variant with its data."""
        variant = {
            ("softmax", 56): "softmax_56",
            ("softmax", 112): "softmax_112",
            ("dnn", 0): "dnn_tweets",
        }.get((self.setting.task, self.setting.options.get("image_size", 0)))
        return f"{Path(str(variants.__file__)).resolve()}:{variant}" if variant else self.setting.task


def needed(papers: Iterable[Paper], cores: int) -> list[Needed]:
    """Return the trainings of the papers' rows that this machine has too few cores for, without duplicates."""
    timed = ((paper.network, row.timed) for paper in papers for table in paper.tables for row in table.rows)
    crowded = [Needed(s, network) for network, s in timed if s and s.command == "train" and s.workers > cores]
    return list({need.setting.key: need for need in crowded}.values())


def calibrations(needs: Iterable[Needed]) -> list[Calibrated]:
    """Return the calibrations that predictions need, one for each task."""
    engines: dict[str, set[str]] = {}
    for need in needs:
        if need.engine:
            engines.setdefault(need.task, set()).add(need.engine)
    return [Calibrated(task, tuple(sorted(names))) for task, names in engines.items()]


def predict(
    calibrated: Calibrated, needs: Iterable[Needed], path: Path, say: Callable[[str], None]
) -> list[Prediction]:
    """Predict all settings of one task from the user's calibration or, where that lacks the task, from one at `path`.

    What fails is a prediction that says why.
    """
    mine = [need for need in needs if need.engine and need.task == calibrated.task]
    try:
        source = _calibration(calibrated, path, say)
        return [_simulated(need, source) for need in mine]
    except UserError as error:
        return [Prediction(setting=need.setting.key, failed=str(error)) for need in mine]


def not_simulated(needs: Iterable[Needed]) -> Iterator[Prediction]:
    """Yield, for settings that the simulator cannot predict, why not."""
    return (Prediction(setting=need.setting.key, failed=HYBRID) for need in needs if not need.engine)


def _calibration(calibrated: Calibrated, path: Path, say: Callable[[str], None]) -> Path:
    """Return the file that has the task's calibration; where none has, calibrate."""
    for known in (calibration_path(), path):
        try:
            for engine in calibrated.engines:
                read_calibration(known, calibrated.task, engine)
        except UserError:
            continue
        return known
    calibrate([calibrated.task], path=path, engines=calibrated.engines, budget_s=BUDGET_S, over_budget=True, say=say)
    return path


def _simulated(need: Needed, source: Path) -> Prediction:
    setting, options = need.setting, need.setting.options
    workers = int(options["workers"])
    sync = str(options.get("sync", "allreduce"))
    record = simulate(
        need.task,
        workers=[workers],
        engine=need.engine,
        syncs=[sync],
        cluster=need.network or None,
        calibration=source,
        batch_per_worker=setting.rows or None,
    )
    step_ms = record.rows[0].step_ms
    where = f"over {need.network}" if need.network else f"on {ONE_HOST}"
    return Prediction(
        setting=setting.key,
        how=f"simulated with {need.engine}, {sync}, {where}; calibrated {record.calibrated}",
        step_s=Interval(
            value=step_ms.value / 1e3, low=step_ms.low / 1e3, high=step_ms.high / 1e3, coverage_pct=SIMULATED_PCT
        ),
        alone_s=record.alone_ms.value / 1e3,
    )
