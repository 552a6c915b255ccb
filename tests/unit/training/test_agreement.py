"""Ranks with different data or models are refused before step one, by name; what a task draws is the same on all."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands import cross_validate, data
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.data import Dataset, Split
from manyhands.errors import UserError
from manyhands.replica import Replica, build
from manyhands.training.agreement import ROWS, check_same_data, check_same_model, digest_of_data
from manyhands.verification.verify import verify

pytestmark = pytest.mark.timeout(180)

UNLIKE = Path(__file__).with_name("unlike.py")
HOST = socket.gethostname()


def made(rows: int = 100, width: int = 3, classes: int = 4) -> Dataset:
    x = torch.arange(rows * width, dtype=torch.float32).view(rows, width)
    y = torch.arange(rows) % classes
    return Dataset("made", Split(x, y), Split(x + 1, y), classes)


def changed(whole: Dataset, part: str, row: int) -> Dataset:
    """Return the same data but for one value of one row."""
    split: Split = getattr(whole, part)
    x = split.x.clone()
    x[row, -1] += 1
    return replace(whole, **{part: replace(split, x=x)})


def test_the_same_data_passes_whatever_it_is(ranks) -> None:  # type: ignore[no-untyped-def]
    odd = [
        made(rows=1),
        made(rows=ROWS - 1),
        made(rows=ROWS + 1),
        data.load("mnist:train=300,test=30"),
        made(rows=2),
        Dataset("half", Split(torch.ones(9, 5000).bfloat16(), torch.zeros(9).long()), made(2, 5000).test, 1),
        Dataset("none", Split(torch.ones(0, 3), torch.zeros(0).long()), made().test, 1),
    ]
    for one in odd:
        ranks(lambda comm, one=one: check_same_data(comm, one, ""), 3)
        views = [one, replace(one, train=one.train.rows(torch.arange(len(one.train.y))))]
        ranks(lambda comm, views=views: check_same_data(comm, views[comm.rank], ""), 2)


@settings(max_examples=15)
@given(
    rows=st.integers(1, 300),
    part=st.sampled_from(["train", "test"]),
    where=st.sampled_from(["first", "last", "all"]),
)
def test_a_digest_tells_rows_apart(rows: int, part: str, where: str) -> None:
    whole = made(rows)
    if where == "all":
        split: Split = getattr(whole, part)
        other = replace(whole, **{part: replace(split, x=split.x + 0.5)})
    else:
        other = changed(whole, part, 0 if where == "first" else rows - 1)
    differing = [name for name, mark in digest_of_data(whole).items() if digest_of_data(other)[name] != mark]
    word = {"train": "training", "test": "test"}[part]
    row = {"first": 0, "last": rows - 1, "all": 0}[where]
    assert differing[-1 if where == "last" else 0] == f"row {row} of the {word} inputs"


@settings(max_examples=15)
@given(rows=st.integers(2, 5000), label=st.integers(0, 4999))
def test_a_digest_tells_every_label(rows: int, label: int) -> None:
    whole = made(rows)
    y = whole.train.y.clone()
    y[label % rows] += 1
    before, after = digest_of_data(whole), digest_of_data(replace(whole, train=replace(whole.train, y=y)))
    assert {name for name in before if before[name] != after[name]} == {"the training labels"}


def test_a_memory_map_is_not_read_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "holes"
    with open(file, "wb") as f:
        os.truncate(f.fileno(), 1 << 40)  # a terabyte of nothing: reading all of it would not end
    mapped = np.memmap(file, np.uint8, mode="r").reshape(1 << 16, 1 << 24)
    y = torch.zeros(1 << 16, dtype=torch.int64)
    large = Split(mapped, y)  # type: ignore[arg-type]
    assert len(digest_of_data(Dataset("large", large, large, 1))) == 1 + 2 * (4 + ROWS)


SAYS = {
    "length": (made(90), "the number of training samples is 90, not 100"),
    "width": (made(width=4), r"the shape of a training sample is \(4,\), not \(3,\)"),
    "classes": (replace(made(), classes=5), "the number of classes is 5, not 4"),
    "labels": (replace(made(), train=replace(made().train, y=made().train.y.flip(0))), "the training labels differ;"),
    "row": (changed(made(), "train", 99), "row 99 of the training inputs differs;"),
    "hint": (
        changed(made(), "train", 0),
        "row 0 of the training inputs differs; every rank must have the same, so seed .*, and sort what comes out of a",
    ),
    "test": (changed(made(), "test", 0), "row 0 of the test inputs differs;"),
}


@pytest.mark.parametrize("case", SAYS)
def test_who_differs_and_in_what_is_said(ranks, case: str) -> None:  # type: ignore[no-untyped-def]
    other, says = SAYS[case]

    def work(comm: Comm) -> None:
        check_same_data(comm, other if comm.rank in (1, 2, 4) else made(), "")

    named = rf"ranks 1-2, 4 on {HOST} have other data than rank 0 on {HOST}: {says}"
    with pytest.raises(UserError, match=named):
        ranks(work, 7)
    with pytest.raises(UserError, match=f"^rank 0 on {HOST} has other data than rank 1 on"):
        ranks(lambda comm: check_same_data(comm, made() if comm.rank else other, "npz:x.npz"), 3)


def replica(weight: float, frozen: float) -> Replica:
    layers = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    for parameter in layers[1].parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        layers[0].weight.fill_(weight)
        layers[1].weight.fill_(frozen)
        layers[1].bias.zero_()
    sample = torch.ones(2, 3)
    sgd = torch.optim.SGD
    cpu = torch.device("cpu")
    return build(layers, sample, "cross-entropy", lambda p: sgd(p, lr=0.1), device=cpu, dtype=torch.float32, fuse=False)


def test_only_weights_that_are_exchanged_may_differ(ranks) -> None:  # type: ignore[no-untyped-def]
    ranks(lambda comm: check_same_model(comm, replica(comm.rank, 1), exchanged=True), 2)
    with pytest.raises(UserError, match=r"other initial weights .*: the model's '0.weight' differs"):
        ranks(lambda comm: check_same_model(comm, replica(comm.rank, 1), exchanged=False), 2)
    with pytest.raises(UserError, match=r"other initial weights .*: the model's '1.weight' differs"):
        ranks(lambda comm: check_same_model(comm, replica(1, comm.rank), exchanged=True), 2)


ENGINES = ({"engine": "mpi", "workers": 2}, {"engine": "torch", "workers": 2})


@pytest.mark.parametrize("name", ["seeded", "at_import"])
def test_what_a_task_draws_is_the_same_on_every_rank_and_engine(train, name: str) -> None:  # type: ignore[no-untyped-def]
    hashes = {
        train(f"{UNLIKE}:{name}", exact=True, **engine).weights_sha256
        for engine in ({}, {"engine": "threads", "workers": 2}, ENGINES[name == "at_import"])
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("unlike_data", {"engine": "mpi", "workers": 2, "sync": "parameter-server"}, "ranks 1-2 on .* other data"),
        ("unlike_model", {"engine": "torch", "workers": 2}, "the model's 'projection' differs"),
        ("unlike_model", {"engine": "threads", "workers": 2}, "the model's 'projection' differs"),
    ],
)
def test_what_cannot_be_seeded_is_refused(train, name: str, options: dict[str, object], says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=rf"{says}.*; every rank must .* np.random.default_rng\(0\)"):
        train(f"{UNLIKE}:{name}", **options)


def test_folds_are_of_one_dataset(tmp_path: Path) -> None:
    options = {"folds": 2, "engine": "mpi", "workers": 2, "out": tmp_path}
    with pytest.raises(UserError, match="has other data than rank 0"):
        cross_validate(f"{UNLIKE}:unlike_data", **options)


@pytest.mark.parametrize(("name", "what"), [("unlike_data", "data"), ("unlike_model", "initial weights")])
def test_verify_refuses_what_is_different_in_every_run(name: str, what: str) -> None:
    config = make_config({"task": f"{UNLIKE}:{name}", "engine": "threads", "workers": 2, "batch_size": 10})
    with pytest.raises(UserError, match=f"the task makes other {what} each time"):
        verify(config, steps=2)
