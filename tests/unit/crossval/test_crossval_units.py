"""Which rows a fold has, and which worker trains it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhands.crossval.units import (
    FoldSettings,
    Sharing,
    Unit,
    assign,
    read_places,
    units_of,
    write_places,
)
from manyhands.data import Dataset, Split
from manyhands.data.folds import check_classes
from manyhands.errors import UserError


def labels(counts: list[int]) -> Tensor:
    """Return so many samples of each class, mixed."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(len(y)))]


def split_of(counts: list[int], copies: int = 1) -> Split:
    """Make samples whose only feature is their row."""
    y = labels(counts)
    return Split(torch.arange(len(y)).float().unsqueeze(1), y, copies=copies)


def units(split: Split, ask: FoldSettings, seed: int = 0) -> list[Unit]:
    return units_of(assign(split, ask, seed), ask)


@settings(max_examples=30)
@given(st.data(), st.integers(2, 6), st.integers(0, 3), st.integers(0, 2**40))
def test_folds_are_disjoint_complete_and_stratified(data: st.DataObject, folds: int, nodes: int, seed: int) -> None:
    ask = FoldSettings(folds=folds, nodes=nodes)
    counts = data.draw(st.lists(st.integers(ask.num_units, ask.num_units + 9), min_size=1, max_size=4))
    split = split_of(counts)
    found = units(split, ask, seed)
    assert len(found) == ask.num_units
    tested = torch.cat([unit.test for unit in found])
    assert sorted(tested.tolist()) == list(range(len(split))), "every sample is tested once"
    for unit in found:
        node = torch.cat([other.test for other in found if other.node == unit.node])
        both = torch.cat([unit.train, unit.test])
        assert sorted(both.tolist()) == sorted(node.tolist()), "a model sees its own node only"
        for label, count in enumerate(counts):
            here = int((split.y[unit.test] == label).sum())
            share = count / ask.num_units
            assert share - 2 < here < share + 2
    for node in range(max(1, nodes)):
        sizes = [len(unit.test) for unit in found if unit.node == node]
        assert max(sizes) - min(sizes) <= 1


def test_folds_are_scikit_learns_for_the_seed() -> None:
    from sklearn.model_selection import StratifiedKFold

    split = split_of([20, 31, 12])
    theirs = StratifiedKFold(5, shuffle=True, random_state=3).split(split.y, split.y)
    for unit, (train, test) in zip(units(split, FoldSettings(folds=5), seed=3), theirs, strict=True):
        assert unit.train.tolist() == train.tolist()
        assert unit.test.tolist() == test.tolist()


def test_the_seed_decides_the_folds() -> None:
    split, ask = split_of([30, 30]), FoldSettings(folds=3)
    assert assign(split, ask, 1).equal(assign(split, ask, 1))
    assert not assign(split, ask, 1).equal(assign(split, ask, 2))


def test_copies_of_a_sample_stay_together_and_are_tested_once() -> None:
    split = split_of([9, 9], copies=3)
    data = Dataset("rows", split, split.take(2), classes=2)
    for unit in units(split, FoldSettings(folds=3)):
        fold = unit.of(data)
        assert (len(fold.train), len(fold.test)) == (36, 6)
        trained, _ = fold.train.batch(torch.arange(len(fold.train)), torch.float32)
        tested, _ = fold.test.batch(slice(0, len(fold.test)), torch.float32)
        assert not set(trained.flatten().tolist()) & set(tested.flatten().tolist())


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (FoldSettings(folds=5), "class 1 has 4 training samples, too few for 5 folds"),
        (FoldSettings(folds=2, nodes=3), "class 1 has 4 training samples, too few for 3 nodes of 2 folds"),
    ],
)
def test_a_class_too_small_is_named(ask: FoldSettings, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_classes(split_of([50, 4, 0, 9]).y, ask.num_units, str(ask))


def test_as_many_folds_as_the_rarest_class_has_samples() -> None:
    check_classes(split_of([50, 4, 0, 9]).y, FoldSettings(folds=4).num_units, "4 folds")


@pytest.mark.parametrize("wrong", [{"folds": 1}, {"folds": 0}, {"folds": 2, "nodes": -1}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must be at least"):
        FoldSettings(**wrong)


def test_places_are_read_as_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    places = assign(split_of([10, 10]), FoldSettings(folds=2, nodes=2), 0)
    write_places(tmp_path / "folds.npy", places)
    assert read_places(tmp_path / "folds.npy").equal(places)
    assert [p.name for p in tmp_path.iterdir()] == ["folds.npy"]


@given(st.integers(1, 20), st.integers(1, 40))
def test_every_model_has_its_workers_and_every_worker_its_models(num_units: int, size: int) -> None:
    sharing = Sharing(num_units, size)
    trained_by = {u: [r for r in range(size) if u in sharing.mine(r)] for u in range(num_units)}
    assert all(trained_by.values())
    assert all(sharing.owner(u) == workers[0] for u, workers in trained_by.items())
    if sharing.in_groups:
        sizes = [len(workers) for workers in trained_by.values()]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) == sharing.largest_group
        assert all({sharing.group(r) for r in workers} == {u} for u, workers in trained_by.items())
    else:
        loads = [len(sharing.mine(r)) for r in range(size)]
        assert sum(loads) == num_units
        assert max(loads) - min(loads) <= 1
        assert sharing.largest_group == 1


@given(st.integers(1, 7), st.integers(1, 3), st.data())
def test_a_view_of_rows_is_the_rows_copied(rows: int, copies: int, data: st.DataObject) -> None:
    x = torch.arange(rows * 8, dtype=torch.uint8).reshape(rows, 2, 2, 2)
    whole = Split(x, torch.arange(rows) % 3, scale=1 / 255, zoom=2, copies=copies)
    some = st.lists(st.integers(0, rows - 1), max_size=6)
    chosen = torch.tensor(data.draw(some), dtype=torch.int64)
    view, copied = whole.rows(chosen), Split(x[chosen], whole.y[chosen], scale=1 / 255, zoom=2, copies=copies)
    assert view.x is whole.x
    assert len(view) == len(copied)
    assert view.shape == copied.shape
    start, stop = sorted(data.draw(st.integers(0, len(view))) for _ in range(2))
    for indices in (slice(start, stop), torch.arange(start, stop)):
        for got, expected in zip(view.batch(indices, torch.float32), copied.batch(indices, torch.float32), strict=True):
            assert got.equal(expected)
    if len(chosen):
        again = torch.tensor([len(chosen) - 1, 0])
        assert (
            view.rows(again)
            .batch(slice(0, 2), torch.float32)[0]
            .equal(copied.rows(again).batch(slice(0, 2), torch.float32)[0])
        )
    assert view.take(1).y.equal(copied.take(1).y)
    assert view.to("cpu").batch(slice(start, stop), torch.float32)[0].shape == (stop - start, *view.shape)
