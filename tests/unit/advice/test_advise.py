"""Advice, on machines and tasks of which one knows what is best."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_machine import BATCH, ETHERNET, NUMEL, SAMPLES, calibration, constant, network

from manyhands.advice import advise as module
from manyhands.advice import prepare
from manyhands.advice.noise_scale import GradientNoise
from manyhands.advice.prepare import worker_counts
from manyhands.advice.reasons import next_bottleneck
from manyhands.advice.request import CheckedAdvice
from manyhands.advice.search import Book, batches, product, quotient
from manyhands.advice.train import KnownSteps, Recipe, StepsLaw, Trainer
from manyhands.errors import UserError
from manyhands.machine import facts
from manyhands.model.cluster import LinkSpec
from manyhands.record.advice import AdviceDir, AdviceRecord, TargetTraining
from manyhands.record.run import Others
from manyhands.record.simulation import Estimate

Advise = Callable[..., AdviceRecord]

FEWEST = 100
"""Steps of the largest batch."""
CRITICAL = 512.0
TARGET = 0.9
INSTANT = LinkSpec(latency_us=0, gigabit_per_s=1e9)
DREADFUL = LinkSpec(latency_us=1e5, gigabit_per_s=0.01)


class MadeUpTrainer:
    """Trains as the law says; local SGD takes so many times the steps."""

    penalty = 1.5
    critical = CRITICAL
    rows_meet = False

    def __init__(self, name: str, task: Any, target: float, observe: Any) -> None:
        self.name, self.target = name, target

    def can_follow(self, recipe: Recipe) -> bool:
        return recipe.sync != "average-once"

    def train(self, recipe: Recipe, seed: int, most_steps: int, until_s: float = math.inf) -> TargetTraining:
        steps = round(FEWEST * (1 + self.critical / recipe.batch_size))
        if recipe.sync != "allreduce":
            steps = round(steps * self.penalty)
        got = self.target <= 0.95 and steps <= most_steps
        return TargetTraining(
            sync=recipe.sync,
            workers=recipe.workers,
            batch_size=recipe.batch_size,
            lr=recipe.lr,
            warmup=recipe.warmup,
            seed=seed,
            steps=steps if got else None,
            made=steps if got else most_steps,
            epochs=10.0,
            accuracy=self.target if got else 0.963,
        )


@pytest.fixture
def advise(monkeypatch: pytest.MonkeyPatch) -> Advise:
    """Advise on a made-up task and machine."""

    def made_up(name: str, made: str, kept: Path | None) -> Any:
        found = network(name)
        found.config.lr, found.config.epochs, found.task = 0.01, 20, SimpleNamespace(optimizer="sgd")
        return found

    monkeypatch.setattr(prepare, "TaskNetwork", made_up)
    monkeypatch.setattr(prepare, "Trainer", MadeUpTrainer)
    monkeypatch.setattr(module, "Trainer", MadeUpTrainer)
    monkeypatch.setattr(module, "noise_scale", lambda task, **options: None)
    monkeypatch.setattr(module, "median_noise", lambda noise: GradientNoise(1.0, CRITICAL, CRITICAL, 400.0, 700.0))

    def run(target: float = TARGET, **options: Any) -> AdviceRecord:
        known = {"calibration": calibration(constant), "cluster": ETHERNET, "syncs": "allreduce", "max_workers": 16}
        return module.advise("mlp", target, **{**known, **options})

    return run


def test_a_network_that_costs_nothing_wants_all_workers(advise: Advise) -> None:
    found = advise(cluster=ETHERNET.model_copy(update={"between": INSTANT}), max_workers=64)
    first = found.best[0]
    assert (first.workers, first.batch_size) == (64, CRITICAL)
    assert "--max-workers is 64" in " ".join(first.reasons)
    assert [row.workers for row in found.best] == [64, 32, 16]


def test_a_dreadful_network_wants_one_worker(advise: Advise) -> None:
    found = advise(cluster=ETHERNET.model_copy(update={"between": DREADFUL}))
    first = found.best[0]
    assert (first.engine, first.workers) == ("serial", 1)
    assert "2 workers would at best take" in " ".join(first.reasons)
    assert "97 % of a step" in " ".join(first.reasons)


def test_figures_follow_from_steps_and_their_time(advise: Advise) -> None:
    found = advise()
    assert found.alone.steps.value == FEWEST * (1 + CRITICAL / BATCH)
    assert found.alone.time_s.value == pytest.approx(found.alone.steps.value * 7.65e-3)
    for row in found.best:
        assert row.steps_from == "training"
        assert row.steps.value == pytest.approx(FEWEST * (1 + CRITICAL / row.batch_size), rel=0.01)
        assert row.time_s.value == pytest.approx(row.steps.value * row.step_ms.value / 1e3)
        assert row.speed_up.value == pytest.approx(found.alone.time_s.value / row.time_s.value)
        assert row.efficiency.value == pytest.approx(row.speed_up.value / row.workers)
        assert row.cost is not None
        assert row.cost.value == pytest.approx(row.workers * 3.6 * row.time_s.value / 3600)
        assert row.time_s.low < row.time_s.value < row.time_s.high
    times = [row.time_s.value for row in found.best]
    assert times == sorted(times)
    assert len({(row.engine, row.workers) for row in found.best}) == 3


def test_the_command_says_all_that_was_predicted(advise: Advise) -> None:
    row = advise().best[0]
    assert row.command == (
        f"manyhands train mlp --engine mpi --workers {row.workers} --sync allreduce --batch-size {row.batch_size} "
        f"--lr {row.lr:g} --warmup {row.warmup:g} --steps {round(row.steps.value)} --blas-threads 1"
    )
    assert row.lr == pytest.approx(0.01 * (1 + CRITICAL / BATCH) / (1 + CRITICAL / row.batch_size), rel=0.01)


def test_a_cost_is_kept_to(advise: Advise) -> None:
    free = advise()
    dear = free.best[0].cost
    assert dear is not None
    bounds = [0.99 * dear.value, 0.6 * dear.value]
    chosen = [advise(max_cost=bound).best for bound in bounds]
    for rows, bound in zip(chosen, bounds, strict=True):
        assert all(row.cost is not None and row.cost.value <= bound for row in rows)
    times = [free.best[0].time_s.value, *(rows[0].time_s.value for rows in chosen)]
    assert times == sorted(times)
    assert times[0] < times[1]
    with pytest.raises(UserError, match=r"nothing reaches 90 % for 1e-06 USD; the cheapest takes 1 worker and costs"):
        advise(max_cost=1e-6)


def test_more_to_choose_from_is_never_worse(advise: Advise) -> None:
    narrow = advise(max_workers=4)
    wider = advise(max_workers=8), advise(max_workers=4, syncs="allreduce,overlap,sharded")
    for each in wider:
        assert each.best[0].time_s.value <= narrow.best[0].time_s.value
        assert each.considered > narrow.considered


def test_the_same_request_gives_the_same_advice(advise: Advise) -> None:
    first, again = (advise(syncs="allreduce,reduce-broadcast").best for _ in range(2))
    assert first == again


def test_what_loses_steps_is_advised_only_after_it_was_trained(advise: Advise, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = ETHERNET.model_copy(update={"between": LinkSpec(latency_us=2000, gigabit_per_s=1)})
    options: dict[str, Any] = {"cluster": slow, "syncs": "allreduce,local-sgd:period=8", "max_workers": 8}
    worth_it = advise(**options)
    assert worth_it.best[0].sync == "local-sgd:period=8"
    assert all(row.steps_from == "training" for row in worth_it.best)
    assert worth_it.best[0].samples_factor > 1.4
    monkeypatch.setattr(MadeUpTrainer, "penalty", 1.99)
    monkeypatch.setattr(MadeUpTrainer, "train", _only_exact(MadeUpTrainer.train))
    hopeless = advise(**options)
    assert {row.sync for row in hopeless.best} == {"allreduce"}
    assert "not in" in " ".join(hopeless.measured)


def _only_exact(train: Any) -> Any:
    def wrapped(
        self: MadeUpTrainer, recipe: Recipe, seed: int, most_steps: int, until_s: float = math.inf
    ) -> TargetTraining:
        found: TargetTraining = train(self, recipe, seed, most_steps, until_s)
        return found if recipe.sync == "allreduce" else found.model_copy(update={"steps": None})

    return wrapped


def test_without_time_the_noise_scale_alone_tells_the_steps(advise: Advise) -> None:
    found = advise(budget_s=1e-9, syncs="allreduce,local-sgd:period=8")
    assert len(found.trainings) == 1
    assert found.best[0].steps_from == "noise scale"
    assert {row.sync for row in found.best} == {"allreduce"}
    assert any("noise scale alone" in sentence for sentence in found.assumed)


def test_the_budget_ends_a_training_which_then_says_nothing(advise: Advise, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Recipe] = []
    whole = MadeUpTrainer.train

    def train(
        self: MadeUpTrainer, recipe: Recipe, seed: int, most_steps: int, until_s: float = math.inf
    ) -> TargetTraining:
        found: TargetTraining = whole(self, recipe, seed, most_steps, until_s)
        if recipe.batch_size == BATCH:
            return found
        assert until_s < math.inf
        ended.append(recipe)
        return found.model_copy(update={"steps": None, "made": 1})

    monkeypatch.setattr(MadeUpTrainer, "train", train)
    monkeypatch.setattr(CheckedAdvice, "in_time", property(lambda self: not ended))
    found = advise()
    assert len(ended) == 1
    assert {training.batch_size for training in found.trainings} == {BATCH}
    assert found.best[0].steps_from == "noise scale"


def test_ctrl_c_gives_the_advice_that_is_known(advise: Advise, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any) -> list[TargetTraining]:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "confirm", stop)
    found = advise()
    assert found.status == "interrupted"
    assert found.best[0].steps_from == "noise scale"


def test_this_host_has_its_own_cores_and_engines(advise: Advise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "cores", lambda: 2)
    found = advise(cluster=None, max_workers=0)
    assert {(row.engine, row.workers) for row in found.best} == {("threads", 2), ("mpi", 2), ("serial", 1)}
    assert found.cluster == "this host"
    assert all(row.cost is None for row in found.best)


def test_an_accuracy_that_is_not_reached(advise: Advise, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reached 96.3 % in 10.0 epochs; no advice can be given for 98 %"):
        advise(0.98, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_advice_is_kept(advise: Advise, tmp_path: Path) -> None:
    found = advise(out=tmp_path, max_workers=2)
    assert AdviceRecord.model_validate_json(AdviceDir(tmp_path / found.id).record.read_text()) == found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": 98}, "target-accuracy must be between 0 and 1, such as 0.98, got 98"),
        ({"target": 0}, "target-accuracy must be between 0 and 1"),
        ({"max_cost": 0}, "max-cost must be more than 0"),
        ({"max_cost": 1.0, "cluster": None}, "--max-cost needs a --cluster"),
        ({"max_cost": 1.0, "cluster": "ethernet-1g"}, "--max-cost needs a price"),
        ({"max_workers": -1}, "max-workers must be at least 1, got -1"),
        ({"budget_s": 0}, "budget must be more than 0"),
        ({"max_epochs": -1}, "max-epochs must be at least 1, got -1"),
        ({"syncs": "async-server"}, "cannot tell how many steps 'async-server' takes"),
        ({"syncs": "alreduce"}, "did you mean 'allreduce'"),
        ({"engines": "mpii"}, "did you mean 'mpi'"),
        ({"engines": "threads"}, "engine threads runs on one node"),
        ({"engines": ","}, "engines must name at least one"),
        ({"cluster": "ethernet-2g"}, "there is no cluster 'ethernet-2g'"),
        ({"calibration": Path("none.json")}, "this machine is not calibrated"),
    ],
)
def test_bad_requests(advise: Advise, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        advise(**options)


def test_numbers_of_workers() -> None:
    assert worker_counts(1) == [1]
    assert worker_counts(6) == [1, 2, 4, 6]
    assert worker_counts(32, 8) == [1, 2, 4, 8, 16, 32]
    assert worker_counts(36, 12) == [1, 2, 4, 8, 12, 24, 36]


@given(own=st.integers(1, 5000), scale=st.floats(0, 1e5), samples=st.integers(1, 100_000))
def test_batches_stay_within_the_critical_one(own: int, scale: float, samples: int) -> None:
    own = min(own, samples)
    found = batches(own, scale, samples)
    assert own in found
    assert found == sorted(set(found))
    assert all(1 <= size <= min(samples, max(own, scale)) for size in found)


LAW = StepsLaw(64, KnownSteps((900,)), GradientNoise(1.0, CRITICAL, CRITICAL, 300.0, None), False, 0.01)


@given(batch=st.integers(1, 10_000))
def test_the_law_of_steps(batch: int) -> None:
    """Steps fall and samples grow with the batch; the learning rate is in inverse proportion to the steps."""
    now, next_one = LAW.steps(batch), LAW.steps(batch + 1)
    assert now.value == pytest.approx(FEWEST * (1 + CRITICAL / batch))
    assert next_one.value < now.value
    assert (batch + 1) * next_one.value > batch * now.value
    assert now.low <= now.value <= now.high
    assert LAW.lr_at(batch) * now.value == pytest.approx(0.01 * 900, rel=0.01)


def test_an_optimiser_that_scales_gradients_wants_less_of_a_rate() -> None:
    gentle = StepsLaw(64, LAW.known, LAW.noise, True, 0.01)
    assert gentle.lr_at(512) == pytest.approx(0.01 * math.sqrt(LAW.lr_at(512) / 0.01), rel=0.01)
    assert gentle.steps(512) == LAW.steps(512)


def test_a_larger_rate_is_warmed_up() -> None:
    book = Book(LAW, SAMPLES)
    assert book.recipe("sharded", 8, 64) == Recipe("allreduce", 1, 64, 0.01, 0.0)
    large, small = book.recipe("local-sgd:period=8", 8, 512), book.recipe("allreduce", 8, 16)
    assert (large.sync, large.workers) == ("local-sgd:period=8", 8)
    assert large.warmup == pytest.approx(0.1 * 200 / 20, rel=0.05)
    assert small.warmup == 0
    assert small.lr < 0.01


estimates = st.builds(
    lambda value, below, above: Estimate(value=value, low=value * (1 - below), high=value * (1 + above)),
    st.floats(1e-3, 1e3),
    st.floats(0, 0.9),
    st.floats(0, 3),
)


@given(a=estimates, b=estimates)
def test_intervals_of_products(a: Estimate, b: Estimate) -> None:
    for found, value in ((product(a, b), a.value * b.value), (quotient(a, b), a.value / b.value)):
        assert found.value == pytest.approx(value)
        assert 0 <= found.low <= found.value <= found.high


def test_what_no_training_can_tell_is_refused_where_it_was_named(advise: Advise) -> None:
    with pytest.raises(UserError, match="training of 'mlp' can count the steps of 'average-once'; leave it out"):
        advise(syncs="allreduce,average-once")


def test_what_no_training_can_tell_is_left_out_where_it_was_not(
    advise: Advise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MadeUpTrainer, "can_follow", lambda self, recipe: recipe.sync == "allreduce")
    said: list[str] = []
    found = advise(syncs="", say=said.append)
    assert {row.sync for row in found.best} == {"allreduce"}
    assert any(sentence.startswith("local-sgd:period=8 is left out") for sentence in said)


def test_replicas_with_dropout_are_not_trained_side_by_side() -> None:
    from manyhands import tasks

    def can_follow(name: str, sync: str) -> bool:
        return Trainer(name, tasks.load(name), 0.7, lambda *progress: None).can_follow(Recipe(sync, 2, 64, 0.05, 0.0))

    assert can_follow("mlp", "local-sgd:period=8")
    assert can_follow("cnn", "allreduce")
    assert not can_follow("cnn", "local-sgd:period=8")


def test_what_there_is_no_memory_for_is_left_out_before_anything_is_trained(
    advise: Advise, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = 2 * 4 * NUMEL  # weights and gradients
    monkeypatch.setattr(facts, "available_bytes", lambda: 4 * each + 1)
    said: list[str] = []
    found = advise(syncs="allreduce,local-sgd:period=8", max_workers=16, say=said.append)
    assert max(row.workers for row in found.looked_at if row.sync == "allreduce") == 16
    assert max((each.workers for each in found.trainings), default=1) <= 4
    assert any(sentence.startswith("local-sgd:period=8 is left out with more than 4 workers") for sentence in said)
    monkeypatch.setattr(facts, "available_bytes", lambda: 2 * each - 1)
    with pytest.raises(UserError, match="no memory to train 2 replicas with 'local-sgd:period=8'"):
        advise(syncs="local-sgd:period=8")


def test_a_seed_that_does_not_get_there_is_seen(advise: Advise, monkeypatch: pytest.MonkeyPatch) -> None:
    train = MadeUpTrainer.train

    def fail_once(self: MadeUpTrainer, recipe: Recipe, seed: int, *more: Any) -> TargetTraining:
        found = train(self, recipe, seed, *more)
        own = (recipe.batch_size, seed) == (BATCH, 1)
        return found.model_copy(update={"steps": None, "accuracy": 0.87, "epochs": 100}) if own else found

    monkeypatch.setattr(MadeUpTrainer, "train", fail_once)
    found = advise()
    assert [each.steps is None for each in found.trainings[:2]] == [False, True]
    assert "did not get there with seed 1: it reached 87.0 % in 100 epochs" in found.doubts[0]
    assert found.alone.steps.value == FEWEST * (1 + CRITICAL / BATCH), "the seed that did get there tells"
    monkeypatch.setattr(MadeUpTrainer, "train", train)
    assert advise().doubts == []


def test_a_calibration_of_a_busy_machine_is_doubted(advise: Advise) -> None:
    busy = calibration(constant).model_copy(update={"others": Others(host="here", cores=1.5, of=2.0, wanted=2)})
    (doubt,) = advise(calibration=busy).doubts
    assert "during the calibration, so that times are too long" in doubt


def test_one_worker_is_named_where_nothing_is_sooner_for_sure(advise: Advise) -> None:
    row = advise().best[0]
    for low, sure in ((0.9, False), (1.1, True)):
        speed_up = Estimate(1.2, low, 1.5)
        said = next_bottleneck([row.model_copy(update={"speed_up": speed_up})], CRITICAL)
        assert any(sentence.startswith("One worker may be as soon there") for sentence in said) is not sure


def test_all_that_was_looked_at_is_kept(advise: Advise) -> None:
    found = advise()
    assert len(found.looked_at) == found.considered
    times = [row.time_s for row in found.looked_at]
    assert times == sorted(times)
    for row in found.best:
        (own,) = [
            each
            for each in found.looked_at
            if (each.engine, each.workers, each.batch_size) == (row.engine, row.workers, row.batch_size)
        ]
        assert (own.time_s, own.efficiency) == pytest.approx((row.time_s.value, row.efficiency.value))


def test_really_training_until_an_accuracy(tmp_path: Path) -> None:
    """A run that is given the steps that were found has the accuracy, with one worker and with two."""
    from manyhands import tasks, train

    heard: list[float] = []
    trainer = Trainer("mlp", tasks.load("mlp"), 0.7, lambda recipe, seed, epoch, accuracy: heard.append(accuracy))
    found = trainer.train(Recipe("allreduce", 1, 64, 0.05, 0.0), 0, 2000)
    assert found.steps is not None
    assert found.accuracy >= 0.7 > max(heard[:-1], default=0.0)
    options = {"batch_size": 64, "lr": 0.05, "steps": found.steps}
    assert train("mlp", engine="threads", workers=2, out=tmp_path, **options).test_accuracy == pytest.approx(
        found.accuracy, abs=2e-3
    )
    given_up = trainer.train(Recipe("local-sgd:period=8", 4, 64, 1e-6, 0.0), 0, 40)
    assert given_up.steps is None
    assert given_up.made == 40
