"""Over all ranks, the pieces of a step cover each row of the global batch once, and weigh 1 together."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.config import make_config
from manyhands.data import Split
from manyhands.training.plan import Plan

SETTINGS = st.fixed_dictionaries(
    {
        "samples": st.integers(1, 60),
        "copies": st.integers(1, 3),
        "batch_size": st.one_of(st.just("full"), st.integers(1, 70)),
        "micro_batch": st.integers(0, 9),
        "seed": st.integers(0, 2**63 - 1),
        "exact": st.booleans(),
        "size": st.integers(1, 8),
        "epochs": st.integers(1, 3),
        "steps": st.integers(0, 40),
        "eval_every": st.integers(1, 3),
    }
)


def _plans(values: dict) -> list[Plan]:  # type: ignore[type-arg]
    values = dict(values)
    samples, copies, size = values.pop("samples"), values.pop("copies"), values.pop("size")
    rows = torch.arange(samples)
    split = Split(rows.double().unsqueeze(1), rows, copies=copies)
    config = make_config({"task": "mlp", "dtype": "float64", "workers": size, **values})
    return [Plan(config, split, rank, size) for rank in range(size)]


@given(SETTINGS, st.data())
def test_each_row_of_a_batch_is_computed_once_and_all_weigh_one(values: dict, data: st.DataObject) -> None:  # type: ignore[type-arg]
    plans = _plans(values)
    step = data.draw(st.integers(0, plans[0].steps - 1))
    batch = plans[0].batches(step // plans[0].steps_per_epoch)[step % plans[0].steps_per_epoch]
    rows = list(range(plans[0].rows_of(step)))
    expected, _ = plans[0].split.batch(batch, torch.float64)
    places, labels, weights, keys = [], [], [], set()
    for plan in plans:
        lanes = plan.lanes(batch, step)
        assert len(lanes) >= 1
        for lane in lanes:
            pieces = list(lane)
            assert pieces, "a lane has at least one piece"
            for piece, weight in pieces:
                assert len(piece.x) == len(piece.y)
                assert len(piece.x) == max(1, piece.rows), "a row stands for the shape of an empty piece"
                assert piece.rows <= (values["micro_batch"] or len(rows))
                here = list(range(piece.first, piece.first + piece.rows))
                assert piece.x.flatten()[: piece.rows].tolist() == expected.flatten()[here].tolist()
                assert weight == len(here) / len(rows)
                places += here
                labels += piece.y[: piece.rows].tolist()
                weights.append(weight)
                keys.add(piece.key)
    assert places == rows, "each once, and in the order of the ranks"
    assert labels == expected.flatten().long().tolist()
    assert abs(sum(weights) - 1) < 1e-12
    assert len(keys) == 1, "the key of random layers is the step's, whoever computes"


@given(SETTINGS)
def test_an_exact_batch_is_cut_into_the_same_lanes_for_every_number_of_workers(values: dict) -> None:  # type: ignore[type-arg]
    cuts = []
    for size in (1, values["size"]):
        plans = _plans({**values, "exact": True, "size": size})
        batch = plans[0].batches(0)[0]
        cuts.append([[(p.first, p.rows) for p, _ in lane] for plan in plans for lane in plan.lanes(batch, 0)])
        assert len(cuts[-1]) == 8
    assert cuts[0] == cuts[1]


@given(SETTINGS)
def test_an_epoch_holds_each_sample_once(values: dict) -> None:  # type: ignore[type-arg]
    plan = _plans(values)[0]
    rows = torch.arange(len(plan.split))
    for epoch in range(2):
        batches = plan.batches(epoch)
        assert len(batches) == plan.steps_per_epoch
        assert sorted(torch.cat([rows[b] for b in batches]).tolist()) == rows.tolist()
        for i, b in enumerate(batches):
            assert len(rows[b]) == plan.rows_of(epoch * plan.steps_per_epoch + i)


@given(SETTINGS)
def test_the_steps_add_up(values: dict) -> None:  # type: ignore[type-arg]
    plan = _plans(values)[0]
    assert plan.steps == (values["steps"] or values["epochs"] * plan.steps_per_epoch)
    walked, step = [], 0
    while step < plan.steps:
        part = plan.steps_until_pause(step)
        assert len(part) >= 1
        assert plan.ends_epoch(part[-1])
        assert not any(plan.ends_epoch(s) for s in part[:-1])
        walked += part
        step = part.stop
    assert walked == list(range(plan.steps))
    assert plan.epochs == sum(plan.ends_epoch(s) for s in range(plan.steps))
    seen = 0
    for s in range(plan.steps):
        assert plan.samples_until(s) == seen
        seen += plan.rows_of(s)
    assert plan.samples_until(plan.steps) == seen


@given(SETTINGS)
def test_evaluations_fall_between_epochs(values: dict) -> None:  # type: ignore[type-arg]
    plan = _plans(values)[0]
    due = [s for s in range(1, plan.steps + 1) if plan.wants_evaluation(s)]
    period = plan.steps_per_epoch * values["eval_every"]
    assert due == list(range(period, plan.steps, period))


@given(st.integers(0, 2**62), st.integers(0, 1000))
def test_each_step_and_seed_has_its_own_key(seed: int, step: int) -> None:
    def key(seed: int, step: int) -> int:
        plan = _plans(
            {"samples": 5, "copies": 1, "batch_size": 5, "micro_batch": 0, "seed": seed, "exact": False, "size": 1}
        )[0]
        return next(plan.lanes(plan.batches(0)[0], step)[0])[0].key

    assert len({key(seed, step), key(seed, step + 1), key(seed + 1, step)}) == 3


OWN_SPLITS = st.fixed_dictionaries(
    {
        "samples": st.integers(1, 60),
        "copies": st.integers(1, 2),
        "batch_size": st.one_of(st.just("full"), st.integers(1, 70)),
        "micro_batch": st.integers(0, 5),
        "seed": st.integers(0, 2**63 - 1),
        "size": st.integers(1, 7),
        "epochs": st.just(3),
    }
)


def _seen(plan: Plan, epoch: int) -> list[list[int]]:
    """Return the samples that a rank computes in each step of an epoch, each copy of one by its own number."""
    found = []
    for batch in plan.batches(epoch):
        rows = torch.arange(len(plan.split))[batch]
        pieces = [p for lane in plan.lanes(batch, 0) for p, _ in lane]
        found.append([int(rows[p.first + i]) for p in pieces for i in range(p.rows)])
    return found


@settings(max_examples=40)
@given(OWN_SPLITS)
def test_with_a_split_of_its_own_a_rank_sees_the_same_samples_in_every_epoch(values: dict) -> None:  # type: ignore[type-arg]
    ordinary = _plans(values)
    plans = [Plan(p.config, p.split, p.rank, p.size, own_split=True) for p in ordinary]
    splits = [sorted(row for step in _seen(plan, 0) for row in step) for plan in plans]
    assert sorted(row for split in splits for row in split) == list(range(len(plans[0].split))), "each sample once"
    for plan, usual, split in zip(plans, ordinary, splits, strict=True):
        for epoch in range(3):
            seen = _seen(plan, epoch)
            assert sorted(row for step in seen for row in step) == split
            assert [len(step) for step in seen] == [len(step) for step in _seen(usual, epoch)]
            assert len(seen) == plan.steps_per_epoch


def test_a_split_of_its_own_is_seen_in_another_order_in_every_epoch() -> None:
    values = {"samples": 50, "copies": 1, "batch_size": 10, "micro_batch": 0, "seed": 3, "size": 2, "epochs": 3}
    for plan in _plans(values):
        own = Plan(plan.config, plan.split, plan.rank, plan.size, own_split=True)
        orders = [[row for step in _seen(own, epoch) for row in step] for epoch in range(3)]
        assert len({tuple(order) for order in orders}) == 3
        assert orders == [[row for step in _seen(own, epoch) for row in step] for epoch in range(3)], "and by the seed"
        usual = [{row for step in _seen(plan, epoch) for row in step} for epoch in range(3)]
        assert usual[0] != usual[1], "which an ordinary plan does not do"
