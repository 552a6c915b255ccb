"""What a run writes on its way: losses, weights, checkpoints, evaluations, and its progress on the terminal."""

import json
import math
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple, final

from torch import Tensor

from manyhands.data import AnySplit
from manyhands.errors import Diverged, check
from manyhands.machine.load import CoreMeter
from manyhands.record.files import flush, write_atomically, writing
from manyhands.record.run import EvaluationRecord, Pulse, RunDir
from manyhands.sync.base import settled
from manyhands.training.averaging import Average
from manyhands.training.checkpoint import Cursor, read_further, state_of_rank, write_checkpoint
from manyhands.training.evaluate import Figures, Scoring, evaluate
from manyhands.training.job import RankContext
from manyhands.training.meter import StepMeter, TimeSplit
from manyhands.training.monitor import Monitor, figure_of
from manyhands.training.plan import Plan
from manyhands.training.watch import Watch

BEST = "best"
"""Name of the best weights in a checkpoint."""


@final
class Journal:
    """Every worker keeps one, so that all of them know the same; rank 0 alone writes files."""

    def __init__(
        self,
        rank: RankContext,
        plan: Plan,
        cursor: Cursor,
        meter: StepMeter,
        monitor: Monitor | None = None,
        average: Average | None = None,
    ) -> None:
        self._rank, self._run, self.plan, self.cursor, self.meter = rank, rank.job.run, plan, cursor, meter
        self._monitor, self._average = monitor, average
        self.history = [EvaluationRecord(**evaluation) for evaluation in cursor.history]
        self.result: EvaluationRecord | None = self.history[-1] if self.history else None
        """The evaluation of the weights that the run would leave if it ended now."""
        self._best: Tensor | None = None
        self._writes = plan.rank == 0
        self.start = cursor.step
        plan.schedule.seen[:] = [figure_of(evaluation, plan.config.monitor) for evaluation in self.history]
        self.epoch_s: list[float] = []
        self.eval_s = 0.0
        self.core_meter = CoreMeter()
        if self._writes:
            _keep_lines(self._run, cursor.step, {evaluation.step for evaluation in self.history})
        if rank.job.resume:
            self._restore(Path(rank.job.resume))

    def note(self, step: int, watch: Watch) -> bool:
        """Flush the meter and write the losses up to `step`; return whether to stop."""
        first = self.cursor.step
        losses, stop = self.meter.flush(first, watch.stop_asked())
        rows, criterion = [self.plan.rows_of(first + i) for i in range(len(losses))], self._rank.replica.criterion
        losses = [criterion.reported(loss, count) for loss, count in zip(losses, rows, strict=True)]
        for loss, count in zip(losses, rows, strict=True):
            self.cursor.loss_sum += loss * count
        self.cursor.step = step
        if self.plan.ends_epoch(step - 1):
            self.epoch_s.append(self.meter.split.train_s - sum(self.epoch_s))
            if step % self.plan.steps_per_epoch == 0:
                self.cursor.epoch_losses.append(self.cursor.loss_sum / len(self.plan.split))
                self.cursor.loss_sum = 0.0
        if self._writes:
            self._write_steps(first, losses)
            loss = sum(losses) / max(1, len(losses))
            watch.pulse(pulse_of(self.plan, step, loss, self.result, self.meter.split, self.start))
        return stop and step < self.plan.steps

    def train_loss(self) -> list[float]:
        """Return the mean loss of each epoch, an unfinished last one included."""
        done = self.cursor.step % self.plan.steps_per_epoch * self.plan.batch_size
        rest = [self.cursor.loss_sum / done] if done else []
        return [*self.cursor.epoch_losses, *rest]

    def samples(self) -> int:
        """Return the number of samples trained on, without those before a resume."""
        return self.plan.samples_until(self.cursor.step) - self.plan.samples_until(self.start)

    def evaluate(self, split: AnySplit, scoring: Scoring) -> None:
        """Evaluate the weights on `split`, unless they were already; note the figures, and the best weights."""
        step = self.cursor.step
        if self.history and self.history[-1].step == step:
            return
        begun = time.perf_counter()
        figures = evaluate(self._rank.replica.module, split, scoring, self._rank.workers)
        self.eval_s += time.perf_counter() - begun
        _check_finite(figures, step)
        epoch = step / self.plan.steps_per_epoch
        self.result = EvaluationRecord(
            step=step, epoch=epoch, test_loss=figures.loss, test_accuracy=figures.accuracy, metrics=figures.metrics
        )
        self.history.append(self.result)
        self.cursor.history.append(self.result.model_dump())
        self.plan.schedule.saw(figure_of(self.result, self.plan.config.monitor))
        if self._monitor and self._monitor.keeps_best and self._monitor.best(self.history) is self.result:
            self._best = self._rank.replica.params.clone()
        if self._writes:
            self._append([evaluation_line(self.result)])

    @property
    def stopped_early(self) -> bool:
        """Whether the run ends before its last step, since its figures no longer become better."""
        over = self._monitor is not None and self._monitor.is_over(self.history)
        return over and self.cursor.step < self.plan.steps

    @property
    def best_step(self) -> int | None:
        """The step of the evaluation whose weights are kept; None where the last ones are."""
        return self.result.step if self.result and self._monitor and self._monitor.keeps_best else None

    def take_best(self) -> None:
        """Give the replica the weights of the best evaluation, where these are to be kept."""
        if self._best is not None and self._monitor is not None:
            self._rank.replica.params.copy_(self._best)
            self.result = self._monitor.best(self.history)

    def checkpoint(self) -> None:
        """Write a checkpoint with the state of every rank; the pause does not count as training."""
        rank, replica, sync, config = self._rank, self._rank.replica, self._rank.strategy, self.plan.config
        state = state_of_rank(replica, sync) | (self._average.of_rank(rank) if self._average else {})
        per_rank = {name: rank.workers.all_gather(t) for name, t in state.items()}
        further = self._average.shared(rank) if self._average else {}
        if self._best is not None:
            further[BEST] = self._best
        with settled(sync, replica, rank.comm):
            moments = sync.moments(replica, rank.comm)
            if not sync.lockstep:
                rank.workers.barrier()  # no rank goes on before rank 0 has the state of one moment
            if self._writes:
                if not replica.params.isfinite().all():
                    raise Diverged(f"a weight became NaN or infinite at step {self.cursor.step}; try a smaller --lr")
                with writing(self._run.steps):
                    flush(self._run.steps)  # or a loss of power might leave fewer steps than the checkpoint has made
                folder, task, keep = self._run.checkpoints, config.task, config.keep
                tensors = {"per_rank": per_rank, "further": further}
                write_checkpoint(folder, replica, self.cursor, task, keep, moments=moments, **tensors)
        self.meter.start()

    def keep_weights(self) -> None:
        """Append the weights after this step to a file, for `verify`."""
        if self._writes:
            with writing(self._run.weights), open(self._run.weights, "ab") as f:
                f.write(self._rank.replica.params.detach().cpu().numpy().tobytes())

    def _restore(self, checkpoint: Path) -> None:
        tensors = read_further(checkpoint, self.plan.rank)
        if self._average:
            self._average.restore(tensors)
        if BEST in tensors:
            self._best = tensors[BEST].to(self._rank.replica.params.device)

    def _write_steps(self, first: int, losses: list[float]) -> None:
        seconds = self.meter.step_s[first - self.start :]
        self._append(
            f'{{"step": {first + i + 1}, "loss": {loss!r}, "ms": {s * 1e3:.4f}}}'
            for i, (loss, s) in enumerate(zip(losses, seconds, strict=True))
        )

    def _append(self, lines: Iterable[str]) -> None:
        with writing(self._run.steps), open(self._run.steps, "a") as f:
            f.writelines(f"{line}\n" for line in lines)


def pulse_of(
    plan: Plan, step: int, loss: float, tested: EvaluationRecord | None, split: TimeSplit, start: int = 0
) -> Pulse:
    """Return the progress of a run after `step` steps; those since `start` took the times of `split`.

    `tested` is the last evaluation.
    """
    done, samples = plan.samples_until(step), plan.samples_until(plan.steps)
    rate = (done - plan.samples_until(start)) / split.train_s if split.train_s else 0.0  # virtual time may stand still
    return Pulse(
        step=step,
        steps=plan.steps,
        epoch=(step - 1) // plan.steps_per_epoch + 1,
        epochs=plan.epochs,
        loss=loss,
        accuracy=tested.test_accuracy if tested else None,
        metrics=tested.metrics if tested else {},
        samples_per_s=rate,
        eta_s=(samples - done) / max(rate, 1e-9),
        compute_s=split.compute_s,
        data_s=split.gather_s,
        comm_s=split.comm_s,
        wait_s=split.wait_s,
    )


def evaluation_line(evaluation: EvaluationRecord) -> str:
    """Return the line of an evaluation in the file of steps; a step's has no `evaluation` in it."""
    figures = evaluation.model_dump(include={"test_loss", "test_accuracy", "metrics"})
    return json.dumps({"evaluation": evaluation.step, **figures})


def _check_finite(figures: Figures, step: int) -> None:
    """Refuse figures that are no numbers: a record cannot hold them, and none is better or worse than another."""
    if not math.isfinite(figures.loss):
        raise Diverged(f"the test loss became {figures.loss} after step {step}; try a smaller --lr")
    for name, value in figures.metrics.items():
        check(math.isfinite(value), f"the metric '{name}' of the test data is {value} after step {step}, not a number")


def _keep_lines(run: RunDir, count: int, evaluations: Collection[int] = ()) -> None:
    """Keep the lines of the first `count` steps, which came before the checkpoint that the run goes on from, and of
    the evaluations after the steps `evaluations`.

    Later steps are made again; missing ones are said, and stay missing.
    """
    if not run.steps.is_file():
        with writing(run.steps):
            run.steps.touch()
        if count == 0:
            return
    lines = [(_place_of(line), line) for line in run.steps.read_bytes().split(b"\n")]
    kept = {
        place: line
        for place, line in lines
        if (place.step in evaluations if place.is_evaluation else 0 < place.step <= count)
    }
    write_atomically(run.steps, b"".join(kept[place] + b"\n" for place in sorted(kept)))
    missing = count - sum(not place.is_evaluation for place in kept)
    if missing:
        says = f"{missing} of the {count} steps before the checkpoint"
        print(f"manyhands: '{run.steps}' lacks {says}; the loss curve has a gap there", file=sys.stderr)


class _Place(NamedTuple):
    """Where a line belongs: at a step, an evaluation behind it."""

    step: int
    is_evaluation: bool = False


def _place_of(line: bytes) -> _Place:
    """Return the place of a line; step 0 where it was cut off."""
    try:
        values = json.loads(line)
        if "evaluation" in values:
            return _Place(int(values["evaluation"]) if math.isfinite(values["test_loss"]) else 0, True)
        return _Place(int(values["step"]) if math.isfinite(values["loss"]) and math.isfinite(values["ms"]) else 0)
    except (ValueError, TypeError, KeyError, RecursionError):
        return _Place(0)
