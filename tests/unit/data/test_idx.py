"""IDX files: what is written is read back, and every damaged one is named in a sentence."""

import gzip
import math
import struct
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data import load
from manyhands.data.idx import load_idx_dir, read_idx
from manyhands.errors import UserError

FILES = {
    "train-images-idx3-ubyte": (4, 2, 2),
    "train-labels-idx1-ubyte": (4,),
    "t10k-images-idx3-ubyte": (2, 2, 2),
    "t10k-labels-idx1-ubyte": (2,),
}


def encode(values: bytes, *shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def write_all(folder: Path, **changed: bytes) -> Path:
    for name, shape in FILES.items():
        content = encode(bytes(range(math.prod(shape))), *shape)
        (folder / name).write_bytes(changed.get(name.replace("-", "_"), content))
    return folder


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.randoms())
@settings(deadline=None)
def test_what_is_written_is_read(shape: list[int], random: Random) -> None:
    values = random.randbytes(math.prod(shape))
    read = read_idx(encode(values, *shape))
    assert read.dtype == torch.uint8
    assert list(read.shape) == shape
    assert bytes(read.flatten().tolist()) == values


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_plain_and_compressed_files_are_equal(tmp_path: Path, rows: int) -> None:
    content = encode(bytes(range(rows * 6)), rows, 2, 3)
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    assert read_idx(tmp_path / "a").equal(read_idx(tmp_path / "a.gz"))


def test_plain_file_is_mapped_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(encode(b"\1\2", 2))
    with path.open("r+b") as stream:
        read = read_idx(path)
        stream.seek(8)
        stream.write(b"\7")
    assert read.tolist() == [7, 2]
    read.zero_()
    assert path.read_bytes() == encode(b"\7\2", 2)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short: its header takes 4 bytes, but 0 were found"),
        (b"\0\0\x08", "cut short: its header takes 4 bytes, but 3 were found"),
        (encode(b"", 1, 2, 3)[:11], "cut short: its header takes 16 bytes, but 11 were found"),
        (encode(b"12345", 2, 3), "cut short: its header asks for 18 bytes, but 17 were found"),
        (encode(b"1234567", 2, 3), "too long: its header asks for 18 bytes, but 19 were found"),
        (encode(b"", 2**32 - 1, 2**32 - 1, 2**32 - 1), "asks for 79228162458924105385300197391 bytes"),
        (b"\x89PNG and so on", "not an IDX file: it begins with 89504e47"),
        (b"\0\0\x08\0", "not an IDX file: it begins with 00000800"),
        (b"\0\0\x0d\1" + bytes(8), "IDX type 0x0d, but only bytes"),
    ],
)
def test_damaged_file_is_one_sentence(tmp_path: Path, content: bytes, words: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(UserError) as caught:
        read_idx(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(deadline=None)
def test_any_cut_or_any_excess_is_noticed(data: st.DataObject) -> None:
    content = encode(bytes(12), 3, 4)
    short = content[: data.draw(st.integers(0, len(content) - 1))]
    long = content + data.draw(st.binary(min_size=1, max_size=9))
    for damaged in (short, long):
        with pytest.raises(UserError):
            read_idx(damaged)


BROKEN = {"empty": b"", "plain": b"plain", "cut": gzip.compress(encode(b"12", 2))[:-9]}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_broken_gzip_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.gz"):
        read_idx(tmp_path / "a.gz")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone' cannot be read: No such file"):
        read_idx(tmp_path / "gone")


def test_folder_is_loaded(tmp_path: Path) -> None:
    data = load(f"idx:{write_all(tmp_path)}")
    assert (data.name, data.classes, data.shape) == ("idx", 4, (1, 2, 2))
    x, y = data.train.batch(torch.tensor([3]), torch.float32)
    assert x.equal(torch.arange(12, 16).reshape(1, 1, 2, 2).float().mul(1 / 255))
    assert y.tolist() == [3]


def test_folder_may_be_compressed_and_limited(tmp_path: Path) -> None:
    for path in list(write_all(tmp_path).iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    data = load(f"idx:{tmp_path},train=3,test=1")
    assert (len(data.train), len(data.test), data.classes) == (3, 1, 4)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (write_all(tmp_path) / name).unlink()
    with pytest.raises(UserError, match=f"there is no file '.*{name}'"):
        load_idx_dir(tmp_path)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder '.*gone'"):
        load(f"idx:{tmp_path / 'gone'}")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t10k_labels_idx1_ubyte", encode(b"\0\4", 2), "row 1 of .*t10k-labels.* is label 4, but .* 0 to 3"),
        ("train_labels_idx1_ubyte", encode(b"\0\1\2", 3), "has 4 rows but .*train-labels.* has 3"),
        ("train_labels_idx1_ubyte", encode(b"\0\1\2\3", 4, 1), "train-labels.* must have one dimension"),
        ("train_images_idx3_ubyte", encode(b"", 0, 2, 2), "train-images.* is empty"),
        ("train_images_idx3_ubyte", encode(b"1234", 4), r"train-images.* its shape is \(4,\)"),
        ("train_images_idx3_ubyte", encode(b"1234", 4, 1, 1), r"shape \(1, 1, 1\), but one of .*\(1, 2, 2\)"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_idx_dir(write_all(tmp_path, **{name: content}))
