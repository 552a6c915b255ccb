"""Train a strategy as n nodes would, in the time that was predicted for them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.errors import check
from manyhands.record.run import Pulse
from manyhands.record.simulation import Estimate, SimulationRow, TrainedRow
from manyhands.simulation.predict import MOST_RANKS, Predictor
from manyhands.simulation.request import WorkerCount
from manyhands.sync import Sync
from manyhands.virtual.train import Cache, prepare, train_virtually


@dataclass(frozen=True)
class RowTraining:
    """How rows are trained, once their steps are predicted."""

    predictor: Predictor
    task: str
    options: dict[str, Any]
    """Options of `manyhands train`: epochs, learning rate, and others that decide the weights."""
    target_accuracy: float | None
    _cache: Cache = field(default_factory=dict)

    def check(self, strategies: Sequence[Sync], points: Sequence[WorkerCount]) -> list[str]:
        """Raise a `UserError` if the most workers cannot be trained; return warnings about the trained weights."""
        target, most = self.target_accuracy, max(points, key=lambda point: point.workers)
        check(
            target is None or 0 < target <= 1, f"target-accuracy must be above 0 and at most 1, as 0.97, got {target}"
        )
        allowed = f"--train takes at most {MOST_RANKS:,} workers"
        check(most.workers <= MOST_RANKS, f"{allowed}, got {most.workers:,}; name fewer")
        options = self._options(most)
        runs = [prepare(self.task, most.workers, sync=strategy.text, **options) for strategy in strategies]
        return list(dict.fromkeys(sentence for run in runs for sentence in run.ready.warnings))

    def run(
        self,
        strategy: Sync,
        point: WorkerCount,
        row: SimulationRow,
        folder: Path | None,
        observe: Callable[[Pulse], None],
    ) -> TrainedRow:
        """Train `strategy` on the workers of `point`; store the run in a folder of its own below `folder`."""
        scene, machine = self.predictor.stage(strategy, point)
        name = "" if folder is None else f"trained/{re.sub('[^a-z0-9.]+', '-', row.sync.lower())}-{point.workers}"
        record = train_virtually(
            self.task,
            point.workers,
            sync=strategy.text,
            machine=machine,
            scene=scene,
            out=folder and folder / name,
            observe=observe,
            cache=self._cache,
            **self._options(point),
        )
        reached_s = None if self.target_accuracy is None else record.time_to(self.target_accuracy)
        target_s = None if reached_s is None else _with_bounds(reached_s, point, row)
        return TrainedRow(
            **row.model_dump(include={"by", "nodes", "workers", "servers", "sync"}),
            batch_size=record.batch_size,
            lr=record.config.lr,
            epochs=record.epochs,
            steps=record.steps,
            method=record.method,
            test_accuracy=record.test_accuracy,
            test_loss=record.test_loss,
            time_s=_with_bounds(record.time_s, point, row),
            target_s=target_s,
            target_cost=target_s.scaled(row.cost.value / row.epoch_s.value) if target_s and row.cost else None,
            points=record.points,
            staleness=record.staleness,
            wall_s=record.wall_s,
            weights_sha256=record.weights_sha256,
            folder=name,
        )

    def _options(self, point: WorkerCount) -> dict[str, Any]:
        return {**self.options, "batch_size": point.batch_size, "seed": self.predictor.seed}


def _with_bounds(seconds: float, point: WorkerCount, row: SimulationRow) -> Estimate:
    """Return `seconds` with the failures and the relative interval of an epoch."""
    sound_s = point.steps_per_epoch * row.step_ms.value / 1e3
    return row.epoch_s.scaled(seconds / sound_s)
