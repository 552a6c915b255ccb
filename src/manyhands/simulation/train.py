"""Train each strategy as so many nodes would, in the time that was predicted for them."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from manyhands import sync
from manyhands.errors import ManyhandsError, check
from manyhands.record import Pulse
from manyhands.record.simulation import Estimate, SimulationRow, TrainedRow
from manyhands.record.virtual import VirtualRecord
from manyhands.simulation.predict import MOST_RANKS, Predictor
from manyhands.simulation.request import WorkerCount
from manyhands.virtual.train import Known, prepare, train_virtually

FOLDER = "trained"


@dataclass(frozen=True)
class RowTraining:
    """What is to be trained, once its steps are predicted."""

    predictor: Predictor
    task: str
    options: dict[str, Any]
    """Of `manyhands train`: epochs, learning rate, and what else decides a run's answer."""
    target_accuracy: float | None
    _known: Known = field(default_factory=dict)

    def check(self, specs: Sequence[str], points: Sequence[WorkerCount]) -> list[str]:
        """Refuse what cannot be trained, before anything is; the most workers are the most likely to be too many.

        Return what is to be said of the answers, where they are not those of one worker.
        """
        target, most = self.target_accuracy, max(points, key=lambda point: point.workers)
        check(
            target is None or 0 < target <= 1, f"target-accuracy must be above 0 and at most 1, as 0.97, got {target}"
        )
        check(
            most.workers <= MOST_RANKS,
            f"--train takes at most {MOST_RANKS:,} workers, got {most.workers:,}; name fewer",
        )
        ready = [prepare(self.task, most.workers, sync=spec, **self._options(most)).ready for spec in specs]
        return list(dict.fromkeys(sentence for each in ready for sentence in each.warnings))

    def run(
        self, point: WorkerCount, row: SimulationRow, folder: Path | None, observe: Callable[[Pulse], None]
    ) -> TrainedRow:
        """Train one strategy on so many workers; what is kept goes into a folder of its own."""
        scene, machine = self.predictor.stage(sync.make(row.sync), point)
        own = "" if folder is None else f"{FOLDER}/{re.sub('[^a-z0-9.]+', '-', row.sync.lower())}-{point.workers}"
        found = train_virtually(
            self.task,
            point.workers,
            sync=row.sync,
            machine=machine,
            scene=scene,
            out=folder and folder / own,
            observe=observe,
            known=self._known,
            **self._options(point),
        )
        return _trained_row(found, point, row, self.target_accuracy, own)

    def _options(self, point: WorkerCount) -> dict[str, Any]:
        return {**self.options, "batch_size": point.batch_size, "seed": self.predictor.seed}


def train_each(
    training: RowTraining,
    rows: Sequence[tuple[WorkerCount, SimulationRow]],
    folder: Path | None,
    observe: Callable[[int, SimulationRow, Pulse], None],
) -> Iterator[TrainedRow | tuple[str, str]]:
    """Train row after row; of one that fails, yield what it was and why."""
    for i, (point, row) in enumerate(rows):
        try:
            yield training.run(point, row, folder, partial(observe, i, row))
        except ManyhandsError as error:
            yield f"{row.sync} on {row.number:,}", str(error)


def _trained_row(
    found: VirtualRecord, point: WorkerCount, row: SimulationRow, target_accuracy: float | None, folder: str
) -> TrainedRow:
    reached_s = None if target_accuracy is None else found.time_to(target_accuracy)
    target_s = None if reached_s is None else _with_bounds(reached_s, point, row)
    return TrainedRow(
        by=row.by,
        nodes=row.nodes,
        workers=row.workers,
        servers=row.servers,
        sync=row.sync,
        batch_size=found.batch_size,
        lr=found.config.lr,
        epochs=found.epochs,
        steps=found.steps,
        method=found.method,
        test_accuracy=found.test_accuracy,
        test_loss=found.test_loss,
        time_s=_with_bounds(found.time_s, point, row),
        target_s=target_s,
        target_cost=None
        if target_s is None or row.cost is None
        else target_s.scaled(row.cost.value / row.epoch_s.value),
        points=found.points,
        staleness=found.staleness,
        wall_s=found.wall_s,
        weights_sha256=found.weights_sha256,
        folder=folder,
    )


def _with_bounds(seconds: float, point: WorkerCount, row: SimulationRow) -> Estimate:
    """Add what failures cost, and be as sure of it as of an epoch."""
    epoch, sound_s = row.epoch_s, point.steps_per_epoch * row.step_ms.value / 1e3
    return epoch.scaled(seconds / sound_s)
