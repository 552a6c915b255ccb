"""What a task may give as its data, and what is said of data that cannot be taken."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import manyhands
from manyhands import SampleSplit, Split, Task
from manyhands.data import as_dataset
from manyhands.data.checks import unsteady
from manyhands.errors import UserError
from manyhands.machine import facts

X, Y, CLASSES = np.arange(36.0).reshape(12, 3), np.arange(12.0), np.repeat([0, 1, 2], 4)
FRAME = pd.DataFrame({"u": Y, "v": CLASSES, "name": ["a"] * 12})
PAIRS = TensorDataset(torch.tensor(X), torch.tensor(CLASSES))


class Pictures(Dataset):  # type: ignore[type-arg]
    """A dataset as torchvision's: `targets` and names of classes."""

    targets, classes = (0, 1, 2, 0), ("a", "b", "c", "d")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((2, 2), i) + torch.rand(2, 2) + np.random.rand(), self.targets[i]


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[Tensor, float]]:
        yield from ((torch.full((2,), float(i)), float(i)) for i in range(self.rows))


TAKEN: dict[str, tuple[Any, type, int, int, int]] = {
    "classes, sorted": ((X, CLASSES), Split, 10, 2, 3),
    "numbers": ((X, Y), Split, 10, 2, 0),
    "no targets": ((X, None), Split, 10, 2, 0),
    "lists": ((X.tolist(), CLASSES.tolist()), Split, 10, 2, 3),
    "two pairs": (((X, Y), (X[:5], Y[:5])), Split, 12, 5, 0),
    "two inputs": (((X, X), Y), Split, 10, 2, 0),
    "named inputs": (({"a": X, "b": CLASSES}, Y), Split, 10, 2, 0),
    "frames": ((FRAME[["u", "v"]], FRAME["v"]), Split, 10, 2, 3),
    "splits": ((Split(X, Y), Split(X, Y)), Split, 12, 12, 0),
    "tensors": ((PAIRS, PAIRS), Split, 12, 12, 3),
    "parts": (random_split(PAIRS, [8, 4]), Split, 8, 4, 3),
    "loaders": ((DataLoader(PAIRS, 4, shuffle=True), DataLoader(PAIRS, 4)), Split, 12, 12, 3),
    "pictures": ((Pictures(), Subset(Pictures(), [1, 3])), SampleSplit, 4, 2, 4),
    "joined": ((ConcatDataset([Pictures(), Pictures()]), Pictures()), SampleSplit, 8, 4, 3),
    "streams": ((Stream(5), Stream(2)), SampleSplit, 5, 2, 0),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_taken(case: str) -> None:
    value, kind, train, test, classes = TAKEN[case]
    data = as_dataset(value, "mine")
    assert isinstance(data.train, kind)
    assert isinstance(data.test, kind)
    assert (len(data.train), len(data.test), data.classes) == (train, test, classes)
    assert (len(data.notes) == 1) == (case == "loaders")


def test_a_sampler_that_picks_rows_picks_them_and_one_that_orders_them_is_ignored() -> None:
    picks = DataLoader(PAIRS, 4, sampler=SubsetRandomSampler([1, 9]))
    others = DataLoader(PAIRS, 4, sampler=SubsetRandomSampler([0, 2, 4]))
    data = as_dataset((picks, others), "mine")
    assert isinstance(data.train, Split)
    assert (len(data.train), len(data.test)) == (2, 3)
    assert data.train.batch(slice(0, 2), torch.float64)[0].equal(PAIRS.tensors[0][[1, 9]])
    orders = DataLoader(PAIRS, 4, sampler=RandomSampler(PAIRS)), DataLoader(PAIRS, sampler=_shared())
    data = as_dataset(orders, "mine")
    assert (len(data.train), len(data.test)) == (12, 12)


def _shared() -> DistributedSampler[Any]:
    return DistributedSampler(PAIRS, num_replicas=2, rank=0)


def test_bunches_are_taken() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    for loaded in (datasets.load_iris(), datasets.load_iris(as_frame=True), datasets.load_iris(return_X_y=True)):
        data = as_dataset(loaded, "iris")
        assert (len(data.train), len(data.test), data.classes, data.shape) == (125, 25, 3, (4,))
    assert as_dataset(datasets.load_diabetes(), "diabetes").classes == 0


def test_held_out_rows_are_of_all_classes_or_drawn() -> None:
    data = as_dataset((np.arange(60.0), np.repeat([0, 1, 5], 20)), "mine")
    assert data.test.labels is not None
    assert data.test.labels.bincount().tolist() == [4, 3, 0, 0, 0, 3] or len(data.test) == 10
    assert sorted(data.test.labels.unique().tolist()) == [0, 1, 5]
    data = as_dataset((X, Y), "mine")
    kept, held = (part.batch(slice(0, 12), torch.float64)[1].tolist() for part in (data.train, data.test))
    assert sorted(kept + held) == Y.tolist()
    assert sorted(held) != [10.0, 11.0], "rows may be sorted by their target"


def test_whole_numbers_stay_whole_where_they_are_stored_so() -> None:
    tokens = torch.arange(6).view(3, 2)
    for split, kind in (
        (Split(tokens), torch.float32),
        (Split(tokens, as_stored=True), torch.int64),
        (Split({"ids": tokens}), torch.int64),
        (as_dataset((TensorDataset(tokens, tokens),) * 2, "mine").train, torch.int64),
        (as_dataset((tokens, tokens), "mine").train, torch.int64),
        (as_dataset((tokens.numpy(), tokens), "mine").train, torch.float32),
        (as_dataset((tokens.to(torch.uint8), tokens), "mine").train, torch.float32),
    ):
        x, _ = split.batch(slice(0, 2), torch.float32)
        assert (x["ids"] if isinstance(x, dict) else x).dtype == kind


def test_views_of_nests_are_their_rows() -> None:
    split = Split({"a": torch.tensor(X), "b": torch.tensor(CLASSES)}, (torch.tensor(Y), torch.tensor(X)), copies=2)
    view = split.rows(torch.tensor([7, 2, 5])).take(2)
    assert len(view) == 4
    x, (y, _) = view.batch(torch.tensor([3, 0]), torch.float64)
    assert y.tolist() == [2.0, 7.0]
    assert x["a"].tolist() == X[[2, 7]].tolist()
    assert x["b"].tolist() == CLASSES[[2, 7]].tolist()
    assert split.shape == {"a": (3,), "b": ()}


def test_what_a_sample_draws_depends_on_seed_epoch_and_number() -> None:
    split = SampleSplit(Pictures(), seed=3)
    state = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    whole, _ = split.batch(slice(0, 4), torch.float64, 1)
    alone, _ = split.batch(torch.tensor([2]), torch.float64, 1)
    assert alone[0].equal(whole[2])
    assert split.rows(torch.tensor([3, 2])).batch(torch.tensor([1]), torch.float64, 1)[0].equal(alone)
    for other in (split.batch(torch.tensor([2]), torch.float64, 2)[0], SampleSplit(Pictures()).read([2], 1)[0]):
        assert not other.double().equal(alone)
    assert torch.get_rng_state().equal(state[0])
    assert np.random.get_state()[1].tolist() == state[1]  # type: ignore[index, union-attr]


class Uneven(Pictures):
    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.zeros(2 + (i == 3)), self.targets[i]


class Broken(Pictures):
    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if i == 2:
            raise OSError("truncated file")
        return super().__getitem__(i)


class Untrue(Pictures):
    targets = (0, 1, 2, 1)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.zeros(2), 0


NAN = np.array([0.0, np.nan] * 6)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lengths": (lambda: (X, Y[:5]), "the inputs in the data of mine have 12 rows, but the targets .* have 5"),
    "text": (lambda: (FRAME, Y), "column 'name' of the inputs in the data of mine holds text"),
    "names": (lambda: (X, FRAME["name"]), "column 'name' of the targets in the data of mine holds text"),
    "ragged": (lambda: ([[1, 2], [3]], [1, 2]), "are lists of different lengths, from 1 to 2 values; pad"),
    "texts": (lambda: ([["a"], ["b"]], [1, 2]), r"must hold numbers, but the first row is \['a'\]"),
    "dates": (lambda: (np.full(12, "2020-01-01", "M8[D]"), Y), "the inputs in the data of mine must hold numbers"),
    "sparse": (lambda: (torch.eye(12).to_sparse(), Y), "the inputs in the data of mine must not be sparse"),
    "alone": (lambda: PAIRS, r"got a TensorDataset; split it, such as by torch.utils.data.random_split"),
    "four": (lambda: (X, X, Y, Y), r"got 4 values; of train_test_split give \(\(X_train, y_train\)"),
    "number": (lambda: 3, "the data of mine must be a manyhands.Dataset, a pair .* got an int"),
    "weighted": (
        lambda: (DataLoader(PAIRS, sampler=WeightedRandomSampler([1.0] * 12, 12)), PAIRS),
        "the training data of mine come from a DataLoader whose WeightedRandomSampler chooses the samples",
    ),
    "with replacement": (
        lambda: (DataLoader(PAIRS, sampler=RandomSampler(PAIRS, replacement=True)), PAIRS),
        "RandomSampler chooses the samples",
    ),
    "own batches": (lambda: (DataLoader(PAIRS, batch_sampler=[[0, 1]]), PAIRS), "whose list chooses the samples"),
    "half": (lambda: (PAIRS, 3), "got a TensorDataset and an int"),
    "one row": (lambda: (X[:1], Y[:1]), "has 1 rows, but needs at least two"),
    "nan": (lambda: ((X, NAN), (X, Y)), "row 1 of the training targets of mine holds a NaN"),
    "nan inside": (lambda: ({"a": X, "b": NAN}, Y), "row 1 of the training inputs of mine, part 'b', holds a NaN"),
    "empty": (lambda: (Subset(Pictures(), []), Pictures()), "the training split of mine is empty"),
    "uneven": (
        lambda: (Subset(Uneven(), [2, 3]), Uneven()),
        r"sample 1 of the training data of mine is \(of shape \(3,\), int\), but sample 0 is \(of shape \(2,\), int\)",
    ),
    "broken": (lambda: (Broken(), Pictures()), "sample 2 of the training data of mine cannot be read: OSError: trunc"),
    "batches": (lambda: (DataLoader(PAIRS, batch_size=None), PAIRS), "a DataLoader with batch_size=None"),
    "untrue": (lambda: (Untrue(), Untrue()), "sample 2 .* has the target 0, but the dataset's labels say 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, says = REFUSED[case]
    with pytest.raises(UserError, match=says) as failed:
        manyhands.train(Task(model=nn.Linear(3, 3), data=make, loss="mse", name="mine"))
    assert "\n" not in str(failed.value)


def test_an_endless_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "available_bytes", lambda: 100_000)
    with pytest.raises(UserError, match=r"its first .* samples.* an iterable dataset must end"):
        as_dataset((Stream(sys.maxsize), Stream(2)), "mine")


def test_a_sample_that_draws_from_elsewhere_is_told() -> None:
    class Elsewhere(Pictures):
        generator = np.random.default_rng()

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return torch.tensor(self.generator.random(2)), self.targets[i]

    (told,) = unsteady(as_dataset((Elsewhere(), Pictures()), "mine"))
    assert "sample 0 of the training data of mine is another each time it is read" in told
    assert unsteady(as_dataset((Pictures(), Pictures()), "mine")) == []


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda output, target: output - target, r"the loss of 'mine' returned a tensor of shape \(2, 1\)"),
        (lambda output, target: 3.0, "the loss of 'mine' returned a float, not a tensor"),
        ("cross-entropy", "the loss .cross-entropy. of .mine. needs classes, but the targets of mine are fractions"),
    ],
)
def test_a_loss_of_other_targets_is_tried(loss: Any, says: str) -> None:
    targets = Y if loss == "cross-entropy" else Y.reshape(-1, 1)
    task = Task(model=nn.Linear(3, 1), data=lambda: (X, targets), loss=loss, name="mine")
    with pytest.raises(UserError, match=says):
        manyhands.train(task)


class Named(Pictures):
    targets = ("a", "b", "c", "d")  # type: ignore[assignment]


class Untold(Pictures):
    targets = None  # type: ignore[assignment]

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.zeros(3), i


def test_targets_that_a_loss_of_classes_cannot_take_are_told() -> None:
    for data, says in (
        (Named(), "takes one tensor of targets, but those of mine are texts, such as 'a'; give their numbers"),
        (Untold(), "has 1 outputs, but a sample is of class 1; mine does not tell its classes, .* SampleSplit"),
    ):
        splits = manyhands.Dataset("mine", SampleSplit(data), SampleSplit(data), 0)
        with pytest.raises(UserError, match=says):
            manyhands.train(Task(model=nn.Sequential(nn.Flatten(), nn.LazyLinear(1)), data=splits, name="mine"))


@pytest.mark.parametrize("value", [(X, Y.reshape(-1, 1)), (PAIRS, PAIRS), (Stream(9), Stream(2))])
def test_folds_of_other_targets_are_shuffled(tmp_path: Any, value: Any) -> None:
    inputs = 2 if isinstance(value[0], Stream) else 3
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 1))
    task = Task(model=model, data=value, loss=lambda out, y: (out.sum(1) - y.view(len(out), -1)[:, 0]).square().mean())
    record = manyhands.cross_validate(task, folds=2, out=tmp_path, dtype="float64", baseline=False)
    assert len(record.folds) == 2
