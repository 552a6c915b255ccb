"""Specs find their source, and paths are never taken for options."""

from pathlib import Path

import numpy as np
import pytest
import torch

from manyhands.data import load
from manyhands.errors import UserError

SMALL = "synthetic:samples=6,test=2,features=3"


def write_npz(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x_train=np.zeros((12, 3)), y_train=np.arange(12) % 2)
    return path


@pytest.mark.parametrize(
    "place",
    [
        "data.npz",
        "a=b/data.npz",
        "lr=0.1,size=64/data.npz",
        "lr=0.1,size=64.npz",
        "a:b/c d,e.npz",
        "train=5.npz",
    ],
)
def test_ordinary_paths_are_read(tmp_path: Path, place: str) -> None:
    path = write_npz(tmp_path / place)
    assert len(load(f"npz:{path}").train) == 10
    assert len(load(f"npz:{path},train=4").train) == 4
    both = load(f"npz:{path} , test=1, train=4")
    assert (len(both.train), len(both.test)) == (4, 1)


def test_home_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "data.npz")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for text in ("npz:data.npz", "npz:./data.npz", "npz:~/data.npz"):
        assert len(load(text).train) == 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mnits", "there is no data source 'mnits'; did you mean 'mnist'"),
        ("", "there is no data source ''"),
        ("mnist:trian=5", "did you mean 'train'"),
        ("mnist:train", "'train' in 'mnist:train' is not key=value"),
        ("mnist:train=many", "train of mnist must be a whole number, got 'many'"),
        ("npz", "npz needs a path: write npz:PATH"),
        ("npy: ", "npy needs a path"),
        ("idx:,train=5", "idx needs a path"),
        ("npz:gone.npz", "there is no file 'gone.npz'"),
        ("npz:~nobody-of-this-name/a.npz", "there is no file"),
        ("npz:a\0b", "there is no file"),
        ("npz:gone.npz,trian=5", "there is no option of npz named 'trian'; did you mean 'train'"),
        ("npz:gone.npz,train=5,train=6", "'train' is given twice"),
        ("npz:gone.npz,train=five", "train of npz must be a whole number, got 'five'"),
    ],
)
def test_bad_specs_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(text)


@pytest.mark.parametrize("limit", ["train=0", "train=11", "test=3"])
def test_limits_must_fit(tmp_path: Path, limit: str) -> None:
    with pytest.raises(UserError, match="of npz must be between 1 and"):
        load(f"npz:{write_npz(tmp_path / 'a.npz')},{limit}")


def test_replicate_repeats_the_training_rows_only() -> None:
    data = load(SMALL, replicate=3)
    assert (len(data.train), len(data.test)) == (18, 2)
    x, y = data.train.batch(slice(0, 18), torch.float32)
    assert x.equal(data.train.x.repeat(3, 1))
    assert y.equal(data.train.y.repeat(3))


@pytest.mark.parametrize("replicate", [0, -1])
def test_replicate_is_at_least_one(replicate: int) -> None:
    with pytest.raises(UserError, match=f"replicate must be at least 1, got {replicate}"):
        load(SMALL, replicate=replicate)


@pytest.mark.parametrize("size", [0, 27, 29, 84, 224])
def test_image_size_must_be_a_doubling(size: int) -> None:
    with pytest.raises(UserError, match=f"must be one of 28, 56, 112, got {size}"):
        load("synthetic:samples=1,test=1,shape=1x28x28", image_size=size)


@pytest.mark.parametrize("text", [SMALL, "synthetic:samples=1,test=1,shape=1x28x56"])
def test_image_size_needs_square_images(text: str) -> None:
    with pytest.raises(UserError, match="needs square images, but a sample of synthetic has the shape"):
        load(text, image_size=56)
