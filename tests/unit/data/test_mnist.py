"""The embedded digits are whole, and a damaged copy is not used."""

import gzip
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from manyhands.data import Dataset, load
from manyhands.data.mnist import load_mnist
from manyhands.errors import UserError

FOLDER = Path(str(files("manyhands.data.mnist")))


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in (*FOLDER.glob("*.gz"), *FOLDER.glob("*.raw")):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_digits_are_all_there(mnist: Dataset) -> None:
    assert (len(mnist.train), len(mnist.test), mnist.classes) == (60_000, 10_000, 10)
    assert mnist.shape == (1, 28, 28)
    assert mnist.train.x.dtype == torch.uint8
    assert mnist.train.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.test.y[:5].tolist() == [7, 2, 1, 0, 4]


def test_pixels_lie_between_zero_and_one(mnist: Dataset) -> None:
    x, _ = mnist.train.batch(slice(0, 10_000), torch.float32)
    assert (float(x.min()), float(x.max())) == (0, 1)
    assert abs(x.mean() - 0.1307) < 0.002


def test_limits_give_the_first_digits(mnist: Dataset) -> None:
    part = load("mnist:train=100,test=1")
    assert (len(part.train), len(part.test)) == (100, 1)
    assert part.train.x.equal(mnist.train.x[:100])


@pytest.mark.parametrize("size", [28, 56, 112])
def test_image_size_repeats_pixels(mnist: Dataset, size: int) -> None:
    data = load("mnist:train=2,test=2", image_size=size)
    assert data.shape == data.test.shape == (1, size, size)
    small, _ = mnist.train.batch(torch.tensor([1]), torch.float32)
    x, _ = data.train.batch(torch.tensor([1]), torch.float32)
    zoom = size // 28
    for row in range(zoom):
        for column in range(zoom):
            assert x[:, :, row::zoom, column::zoom].equal(small)


@pytest.mark.parametrize("option", ["train=0", "train=60001", "test=0", "test=10001", "test=-1"])
def test_limits_out_of_range_are_one_sentence(option: str) -> None:
    key, value = option.split("=")
    with pytest.raises(UserError, match=f"{key} of mnist must be between 1 and [16]0000, got {value}"):
        load(f"mnist:{option}")


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "not gzip":
        path.write_bytes(b"oops")
    else:
        raw = bytearray(gzip.decompress(path.read_bytes()))
        raw[-1] ^= 1
        path.write_bytes(gzip.compress(raw, compresslevel=0))


@pytest.mark.parametrize("how", ["missing", "cut", "not gzip", "one bit"])
def test_damaged_file_is_not_used(copy: Path, how: str) -> None:
    damage(copy / "train-labels-idx1-ubyte.gz", how)
    with pytest.raises(UserError, match="'train-labels-idx1-ubyte' of mnist is damaged; reinstall"):
        load_mnist(folder=copy)


@pytest.mark.parametrize("content", [None, b"", b"one-word", b"\xff\xfe"])
def test_damaged_list_of_digests_is_not_used(copy: Path, content: bytes | None) -> None:
    (copy / "SHA256SUMS.raw").unlink()
    if content is not None:
        (copy / "SHA256SUMS.raw").write_bytes(content)
    with pytest.raises(UserError, match="damaged; reinstall"):
        load_mnist(folder=copy)
