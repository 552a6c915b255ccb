"""One step: the strategy acts on the step's gradients, epochs end, and the clock is read between the parts."""

import itertools

import pytest
import torch

from manyhands import sync, tasks
from manyhands.comm.self_ import SelfComm
from manyhands.comm.spans import Spans
from manyhands.comm.traced import TracedComm
from manyhands.replica.meta import MetaReplica, Outline, Paces
from manyhands.request import resolve
from manyhands.sync import Sync
from manyhands.tasks.setup import load_data, make_replica
from manyhands.training.meter import StepMeter
from manyhands.training.plan import Plan
from manyhands.training.step import Stepper, compute_gradients

STEPS_PER_EPOCH = 3


class Calls:
    """Stands for a strategy, and notes what it is asked to do."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []

    def step(self, replica: object, comm: object, i: int) -> None:
        """Note the step."""
        self.made.append(("step", i))

    def end_epoch(self, replica: object, comm: object) -> None:
        """Note the end of an epoch."""
        self.made.append(("end of epoch", len(self.made)))


def test_a_step_is_split_where_its_gradients_are_ready() -> None:
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    comm, spans = SelfComm(), Spans(2)
    comm.clock = lambda: now  # type: ignore[method-assign]
    spans.open(0)
    outline = Outline(10, 10, torch.float32, ((10,),))
    replica = MetaReplica(outline, advance, Paces(lambda: 3.0, lambda share: 2.0))
    meter = StepMeter(comm, TracedComm(comm, spans), every=2)
    begun = list[int]()
    stepper = Stepper(
        replica, sync.make("allreduce"), meter.traced, meter, STEPS_PER_EPOCH, lambda *_: replica.forward_backward(),
        begun.append,
    )  # fmt: skip
    assert [stepper.step(slice(0, 0), step) for step in range(2)] == [False, True], "the second fills the meter"
    assert begun == [0, 1]
    assert meter.step_s == [5.0, 5.0]
    assert meter.shared_s == 6.0
    parts = {(span.kind, span.start_s, span.end_s) for span in spans.kept if span.kind != "comm"}
    assert parts == {("compute", 0, 3), ("update", 3, 5), ("compute", 5, 8), ("update", 8, 10)}


def test_the_strategy_is_told_where_an_epoch_ends() -> None:
    strategy, comm = Calls(), SelfComm()
    meter = StepMeter(comm, TracedComm(comm))
    replica = MetaReplica(Outline(1, 1, torch.float32, ((1,),)), lambda seconds: None, Paces(float, lambda share: 0.0))
    stepper = Stepper(replica, strategy, meter.traced, meter, STEPS_PER_EPOCH, lambda *_: torch.zeros(()))  # type: ignore[arg-type]
    for step in range(7):
        stepper.step(slice(0, 0), step)
    asked = [what for what, _ in strategy.made]
    epoch = ["step"] * STEPS_PER_EPOCH + ["end of epoch"]
    assert asked == [*epoch, *epoch, "step"]


@pytest.mark.parametrize("exact", [False, True])
def test_steps_are_those_of_the_schedule(exact: bool) -> None:
    """A stepper with `allreduce` on one rank is plain gradient descent at the rate that the schedule says."""
    task = tasks.load("mlp")
    config = resolve("mlp", {"batch_size": 8, "steps": 4, "warmup": 1e-3, "lr_decay": "linear", "exact": exact}, task)
    data = load_data(task, config)
    plan = Plan(config, data.train, 0, 1)
    by_step, by_hand = (make_replica(task, config, data, torch.device("cpu")) for _ in range(2))
    strategy: Sync = sync.make("allreduce")
    comm = SelfComm()
    meter = StepMeter(comm, TracedComm(comm))
    stepper = Stepper(
        by_step, strategy, meter.traced, meter, plan.steps_per_epoch,
        lambda batch, step: compute_gradients(by_step, plan, batch, step),
    )  # fmt: skip
    for step, batch in enumerate(itertools.islice(plan.batches(0), plan.steps)):
        stepper.step(batch, step)
        compute_gradients(by_hand, plan, batch, 0)
        with torch.no_grad():
            by_hand.params.sub_(config.lr * plan.schedule.scale(step) * by_hand.grads)
        torch.testing.assert_close(by_step.params, by_hand.params)
