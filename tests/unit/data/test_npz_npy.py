"""Arrays from .npz and .npy: good ones are read alike, bad ones are named in a sentence."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.data import Dataset, load
from manyhands.errors import UserError

Arrays = dict[str, Any]
Store = Callable[[Path, Arrays], str]


def as_npz(folder: Path, arrays: Arrays) -> str:
    np.savez(folder / "data.npz", **arrays)
    return f"npz:{folder / 'data.npz'}"


def as_small_npz(folder: Path, arrays: Arrays) -> str:
    np.savez_compressed(folder / "data.npz", **arrays)
    return f"npz:{folder / 'data.npz'}"


def as_npy(folder: Path, arrays: Arrays) -> str:
    for name, array in arrays.items():
        (folder / f"{name}.npy").unlink(missing_ok=True)  # It may still be mapped.
        np.save(folder / f"{name}.npy", array)
    return f"npy:{folder}"


@pytest.fixture(params=[as_npz, as_small_npz, as_npy])
def store(request: pytest.FixtureRequest) -> Store:
    chosen: Store = request.param
    return chosen


def good(**changed: Any) -> Arrays:
    arrays = {
        "x_train": np.arange(24, dtype=np.float32).reshape(6, 4),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.ones((2, 4), np.float32),
        "y_test": np.array([2, 0]),
    }
    return {name: array for name, array in {**arrays, **changed}.items() if array is not None}


def everything(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return data.train.batch(torch.arange(len(data.train)), torch.float64)


def test_arrays_are_read(tmp_path: Path, store: Store) -> None:
    data = load(store(tmp_path, good()))
    x, y = everything(data)
    assert (data.classes, data.shape, len(data.test)) == (3, (4,), 2)
    assert x.equal(torch.arange(24.0, dtype=torch.float64).reshape(6, 4))
    assert y.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("dtype", [*"?bhlHLefdg", "i4", "u4", ">i4", ">u2", ">f4", ">f8"])
def test_every_type_of_number_is_read(tmp_path: Path, store: Store, dtype: str) -> None:
    values = np.arange(24).reshape(6, 4) % 2
    arrays = good(x_train=values.astype(dtype), x_test=np.zeros((2, 4), dtype))
    assert everything(load(store(tmp_path, arrays)))[0].tolist() == values.tolist()


@pytest.mark.parametrize("dtype", ["?", "u1", ">i2", "u4", "u8", "f4", "f8"])
def test_labels_of_every_type_are_read(tmp_path: Path, store: Store, dtype: str) -> None:
    labels = np.array([0, 1, 1, 0, 1, 0])
    data = load(store(tmp_path, good(y_train=labels.astype(dtype), y_test=np.array([1, 0], dtype))))
    assert data.train.y.tolist() == labels.tolist()
    assert data.classes == 2


def test_bytes_are_scaled(tmp_path: Path, store: Store) -> None:
    x = np.full((6, 4), 255, np.uint8)
    assert everything(load(store(tmp_path, good(x_train=x, x_test=x[:2]))))[0].eq(1).all()


@pytest.mark.parametrize(("stored", "seen"), [((4,), (4,)), ((2, 3), (1, 2, 3)), ((3, 2, 2), (3, 2, 2))])
@pytest.mark.parametrize("order", ["C", "F"])
def test_shapes_and_memory_orders(
    tmp_path: Path, store: Store, stored: tuple[int, ...], seen: tuple[int, ...], order: Any
) -> None:
    x = np.arange(6 * np.prod(stored), dtype=np.float32).reshape(6, *stored)
    data = load(store(tmp_path, good(x_train=np.array(x, order=order), x_test=x[:2])))
    assert data.shape == seen
    assert everything(data)[0].numpy().ravel().tolist() == x.ravel().tolist()


@pytest.mark.parametrize(("rows", "held"), [(2, 1), (5, 1), (12, 2), (13, 2), (60, 10)])
def test_last_sixth_is_held_out_where_no_test_is_given(tmp_path: Path, store: Store, rows: int, held: int) -> None:
    x = np.arange(rows, dtype=np.float64)[:, None]
    data = load(store(tmp_path, {"x_train": x, "y_train": np.arange(rows) % 1}))
    assert data.train.x.flatten().tolist() == list(range(rows - held))
    assert data.test.x.flatten().tolist() == list(range(rows - held, rows))


def test_limits_keep_the_classes_of_all_rows(tmp_path: Path, store: Store) -> None:
    data = load(store(tmp_path, good()) + ",train=2,test=1")
    assert (len(data.train), len(data.test), data.classes) == (2, 1, 3)


def test_npy_is_mapped_and_never_written(tmp_path: Path) -> None:
    data = load(as_npy(tmp_path, good()))
    before = (tmp_path / "x_train.npy").read_bytes()
    data.train.x.zero_()
    assert (tmp_path / "x_train.npy").read_bytes() == before
    with (tmp_path / "x_train.npy").open("r+b") as stream:
        untouched = load(f"npy:{tmp_path}")
        stream.seek(-4, io.SEEK_END)
        stream.write(np.float32(99).tobytes())
    assert everything(untouched)[0][-1, -1] == 99


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x_train": None}, "has no x_train; it needs"),
        ({"x_train": None, "y_train": None}, "has no x_train and no y_train"),
        ({"y_test": None}, "has no y_test"),
        ({"x_test": None}, "has no x_test"),
        ({"y_train": np.zeros(5, int)}, "x_train of .* has 6 rows but y_train of .* has 5"),
        ({"x_test": np.zeros((3, 4))}, "x_test of .* has 3 rows but y_test of .* has 2"),
        ({"x_train": np.array([[1], "a"] * 3, dtype=object)}, "x_train.* cannot be read .*[Oo]bject"),
        ({"y_train": np.array(list("abcdef"))}, "y_train.* must hold numbers, but it is of type <U1"),
        ({"x_train": np.zeros((6, 4), complex)}, "x_train.* must hold numbers, .* complex128"),
        ({"x_train": np.zeros((6, 4), "f4,i4")}, "x_train.* must hold numbers"),
        ({"x_train": np.zeros((6, 4), "M8[s]")}, "x_train.* must hold numbers"),
        ({"y_train": np.array([0, 1, 0.5, 0, 1, 2])}, "y_train.* whole numbers, but row 2 is 0.5"),
        ({"y_train": np.array([0, 1, 2, np.nan, 1, 2])}, "y_train.* whole numbers, but row 3 is nan"),
        ({"y_train": np.array([0, 1, 2, np.inf, 1, 2])}, "y_train.* whole numbers, but row 3 is inf"),
        ({"y_train": np.zeros((6, 1), int)}, r"y_train.* one dimension, .* shape is \(6, 1\)"),
        ({"y_train": np.array(1)}, "y_train.* one dimension"),
        ({"x_train": np.zeros(6)}, r"x_train.* its shape is \(6,\)"),
        ({"x_train": np.array(1.0)}, r"x_train.* its shape is \(\)"),
        ({"x_train": np.zeros((6, 1, 1, 1, 1))}, r"x_train.* its shape is \(6, 1, 1, 1, 1\)"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, "x_train of .* is empty"),
        ({"x_train": np.zeros((6, 0))}, "x_train of .* is empty"),
        ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, int)}, "x_test of .* is empty"),
        ({"x_test": np.zeros((2, 5))}, r"x_train .* shape \(4,\), but one of x_test .* \(5,\)"),
        ({"x_test": np.zeros((2, 4), np.uint8)}, "x_train of .* is float32 and x_test of .* is uint8"),
        ({"y_train": np.array([0, 1, 2, -1, 1, 2])}, "y_train.* negative labels, but row 3 is -1"),
        ({"y_test": np.array([0, -7])}, "y_test.* negative labels, but row 1 is -7"),
        ({"y_test": np.array([2, 3])}, "row 1 of y_test .* is label 3, but .* 0 to 2"),
        ({"y_train": np.array([0, 1, 2, 10**12, 1, 2])}, "row 3 of y_train .* is label 1000000000000"),
        ({"y_train": np.array([0, 1, 2, 2**64 - 1, 1, 2], np.uint64)}, "row 3 "),
    ],
)
def test_bad_arrays_are_one_sentence(tmp_path: Path, store: Store, changed: Arrays, words: str) -> None:
    text = store(tmp_path, good(**changed))
    with pytest.raises(UserError, match=words) as caught:
        load(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"x_train": np.zeros((1, 4)), "y_train": np.zeros(1, int)},
        {"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)},
        {"y_train": np.zeros(5, int)},
        {"y_train": np.array(3)},
        {"x_train": np.array(3)},
    ],
)
def test_too_little_to_hold_out_is_one_sentence(tmp_path: Path, store: Store, changed: Arrays) -> None:
    text = store(tmp_path, good(x_test=None, y_test=None, **changed))
    with pytest.raises(UserError, match="one sixth is held out"):
        load(text)


@given(row=st.integers(0, 299_999), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_first_row_that_is_not_finite_is_named(tmp_path: Path, row: int, bad: float) -> None:
    x = np.zeros((300_000, 4), np.float32)
    x[row, 3] = bad
    x[-1, 0] = np.nan
    text = as_npy(tmp_path, good(x_train=x, y_train=np.zeros(300_000, int), y_test=np.zeros(2, int)))
    with pytest.raises(UserError, match=f"row {row} of the training inputs of npy holds a NaN or an infinity"):
        load(text)
    if row:
        assert len(load(f"{text},train={row}").train) == row


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_missing_path_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match=r"there is no (file|folder) '.*gone'"):
        load(f"{kind}:{tmp_path / 'gone'}")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x93NUMPY", b"PK\x03\x04", bytes(500)])
def test_what_is_no_array_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    as_npy(tmp_path, good())
    (tmp_path / "x_train.npy").write_bytes(content)
    (tmp_path / "data.npz").write_bytes(content)
    for text in (f"npy:{tmp_path}", f"npz:{tmp_path / 'data.npz'}"):
        with pytest.raises(UserError, match="cannot be read as an array of numbers"):
            load(text)


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz_never_changes_a_value(tmp_path: Path, save: Callable[..., None], data: st.DataObject) -> None:
    stream = io.BytesIO()
    save(stream, **good())
    (tmp_path / "data.npz").write_bytes(damaged(stream.getvalue(), data))
    with contextlib.suppress(UserError):
        x, y = everything(load(f"npz:{tmp_path / 'data.npz'}"))
        # The list of members has no checksum: a lost test set leaves its sixth of these rows held out.
        assert x.numpy().tolist() == good()["x_train"][: len(x)].tolist()
        assert y.numpy().tolist() == good()["y_train"][: len(y)].tolist()


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damaged_npy_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    text = as_npy(tmp_path, good())
    replace_file(tmp_path / "x_train.npy", damaged((tmp_path / "x_train.npy").read_bytes(), data))
    with contextlib.suppress(UserError):
        load(text)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_cut_npy_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    text = as_npy(tmp_path, good())
    content = (tmp_path / "x_train.npy").read_bytes()
    replace_file(tmp_path / "x_train.npy", content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(UserError, match="cannot be read as an array of numbers") as caught:
        load(text)
    assert "\n" not in str(caught.value)


def damaged(content: bytes, data: st.DataObject) -> bytes:
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        return content[:place]
    return content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :]


def replace_file(path: Path, content: bytes) -> None:
    # A file that is still mapped must not shrink: touching the lost pages would kill the process.
    path.unlink()
    path.write_bytes(content)
