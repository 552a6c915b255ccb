"""What a run writes on its way: losses, weights, checkpoints, evaluations, and its progress on the terminal."""

import json
import math
import sys
import time
from typing import final

from manyhands.data import Split
from manyhands.errors import Diverged
from manyhands.machine.load import CoreMeter
from manyhands.record.files import flush, write_atomically, writing
from manyhands.record.run import Pulse, RunDir
from manyhands.replica.criterion import Loss
from manyhands.sync.base import settled
from manyhands.training.checkpoint import Cursor, state_of_rank, write_checkpoint
from manyhands.training.evaluate import evaluate
from manyhands.training.job import RankContext
from manyhands.training.meter import StepMeter, TimeSplit
from manyhands.training.plan import Plan
from manyhands.training.watch import Watch


@final
class Journal:
    """Every worker keeps one, so that all of them know the same; rank 0 alone writes files."""

    def __init__(self, rank: RankContext, plan: Plan, cursor: Cursor, meter: StepMeter) -> None:
        self._rank, self._run, self.plan, self.cursor, self.meter = rank, rank.job.run, plan, cursor, meter
        self._writes = plan.rank == 0
        self.start = cursor.step
        plan.schedule.seen[:] = cursor.seen
        self.epoch_s: list[float] = []
        self.eval_s = 0.0
        self.test_loss, self.test_accuracy = float("nan"), float("nan")
        self._evaluated_at = -1
        self.core_meter = CoreMeter()
        if self._writes:
            _keep_lines(self._run, cursor.step)

    def note(self, step: int, watch: Watch) -> bool:
        """Flush the meter and write the losses up to `step`; return whether to stop."""
        first = self.cursor.step
        losses, stop = self.meter.flush(first, watch.stop_asked())
        for i, loss in enumerate(losses):
            self.cursor.loss_sum += loss * self.plan.rows_of(first + i)
        self.cursor.step = step
        if self.plan.ends_epoch(step - 1):
            self.epoch_s.append(self.meter.split.train_s - sum(self.epoch_s))
            if step % self.plan.steps_per_epoch == 0:
                self.cursor.epoch_losses.append(self.cursor.loss_sum / len(self.plan.split))
                self.cursor.loss_sum = 0.0
        if self._writes:
            self._write_steps(first, losses)
            loss, accuracy = sum(losses) / max(1, len(losses)), self.test_accuracy if self._evaluated_at >= 0 else None
            watch.pulse(pulse_of(self.plan, step, loss, accuracy, self.meter.split, self.start))
        return stop and step < self.plan.steps

    def train_loss(self) -> list[float]:
        """Return the mean loss of each epoch, an unfinished last one included."""
        done = self.cursor.step % self.plan.steps_per_epoch * self.plan.batch_size
        rest = [self.cursor.loss_sum / done] if done else []
        return [*self.cursor.epoch_losses, *rest]

    def samples(self) -> int:
        """Return the number of samples trained on, without those before a resume."""
        return self.plan.samples_until(self.cursor.step) - self.plan.samples_until(self.start)

    def evaluate(self, split: Split, loss: Loss) -> None:
        """Evaluate the weights on `split`, unless they were evaluated already."""
        if self._evaluated_at == self.cursor.step:
            return
        begun = time.perf_counter()
        module, workers, top = self._rank.replica.module, self._rank.workers, self.plan.config.top
        self.test_loss, self.test_accuracy = evaluate(module, split, loss, workers, top)
        self.eval_s += time.perf_counter() - begun
        if not math.isfinite(self.test_loss):
            raise Diverged(f"the test loss became {self.test_loss} after step {self.cursor.step}; try a smaller --lr")
        self._evaluated_at = self.cursor.step
        self.plan.schedule.saw(self.test_loss)
        self.cursor.seen = list(self.plan.schedule.seen)

    def checkpoint(self) -> None:
        """Write a checkpoint with the state of every rank; the pause does not count as training."""
        rank, replica, sync, config = self._rank, self._rank.replica, self._rank.strategy, self.plan.config
        per_rank = {name: rank.workers.all_gather(t) for name, t in state_of_rank(replica, sync).items()}
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
                write_checkpoint(folder, replica, self.cursor, task, keep, moments=moments, per_rank=per_rank)
        self.meter.start()

    def keep_weights(self) -> None:
        """Append the weights after this step to a file, for `verify`."""
        if self._writes:
            with writing(self._run.weights), open(self._run.weights, "ab") as f:
                f.write(self._rank.replica.params.detach().cpu().numpy().tobytes())

    def _write_steps(self, first: int, losses: list[float]) -> None:
        seconds = self.meter.step_s[first - self.start :]
        with writing(self._run.steps), open(self._run.steps, "a") as f:
            for i, (loss, s) in enumerate(zip(losses, seconds, strict=True)):
                f.write(f'{{"step": {first + i + 1}, "loss": {loss!r}, "ms": {s * 1e3:.4f}}}\n')


def pulse_of(plan: Plan, step: int, loss: float, accuracy: float | None, split: TimeSplit, start: int = 0) -> Pulse:
    """Return the progress of a run after `step` steps; those since `start` took the times of `split`."""
    done, samples = plan.samples_until(step), plan.samples_until(plan.steps)
    rate = (done - plan.samples_until(start)) / split.train_s if split.train_s else 0.0  # virtual time may stand still
    return Pulse(
        step=step,
        steps=plan.steps,
        epoch=(step - 1) // plan.steps_per_epoch + 1,
        epochs=plan.epochs,
        loss=loss,
        accuracy=accuracy,
        samples_per_s=rate,
        eta_s=(samples - done) / max(rate, 1e-9),
        compute_s=split.compute_s,
        comm_s=split.comm_s,
        wait_s=split.wait_s,
    )


def _keep_lines(run: RunDir, count: int) -> None:
    """Keep the lines of the first `count` steps, which came before the checkpoint that the run goes on from.

    Later steps are made again; missing ones are said, and stay missing.
    """
    if not run.steps.is_file():
        with writing(run.steps):
            run.steps.touch()
        if count == 0:
            return
    kept = {step: line for line in run.steps.read_bytes().split(b"\n") if 0 < (step := _step_of(line)) <= count}
    write_atomically(run.steps, b"".join(kept[step] + b"\n" for step in sorted(kept)))
    if len(kept) < count:
        missing = f"{count - len(kept)} of the {count} steps before the checkpoint"
        print(f"manyhands: '{run.steps}' lacks {missing}; the loss curve has a gap there", file=sys.stderr)


def _step_of(line: bytes) -> int:
    """Return the number of the step in a line, or 0 where the line was cut off."""
    try:
        values = json.loads(line)
        return int(values["step"]) if math.isfinite(values["loss"]) and math.isfinite(values["ms"]) else 0
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
