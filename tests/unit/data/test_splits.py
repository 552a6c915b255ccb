"""A batch is the rows that its indices name, converted, scaled and zoomed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhands.data.split import Dataset, Split
from manyhands.errors import UserError


def images(rows: int = 5, **options: float) -> Split:
    x = torch.arange(rows * 6, dtype=torch.uint8).reshape(rows, 1, 2, 3)
    return Split(x, torch.arange(rows) % 3, scale=1 / 255, **options)  # type: ignore[arg-type]


def storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


@given(st.data(), st.integers(1, 7), st.integers(1, 3), st.sampled_from([1, 2, 4]))
@settings(deadline=None)
def test_batch_is_the_rows_one_by_one(data: st.DataObject, rows: int, copies: int, zoom: int) -> None:
    split = images(rows, copies=copies, zoom=zoom)
    chosen = data.draw(st.lists(st.integers(0, len(split) - 1), max_size=9))
    x, y = split.batch(torch.tensor(chosen, dtype=torch.int64), torch.float64)
    assert x.shape == (len(chosen), *split.shape)
    assert x.is_contiguous()
    assert y.tolist() == [int(split.y[i % rows]) for i in chosen]
    for got, i in zip(x, chosen, strict=True):
        for h in range(split.shape[1]):
            for w in range(split.shape[2]):
                assert got[0, h, w] == split.x[i % rows, 0, h // zoom, w // zoom].double() * (1 / 255)


@given(st.integers(0, 8), st.integers(1, 3), st.sampled_from([1, 2]), st.data())
@settings(deadline=None)
def test_slice_equals_its_indices(rows: int, copies: int, zoom: int, data: st.DataObject) -> None:
    split = images(rows, copies=copies, zoom=zoom)
    start, stop = (data.draw(st.integers(0, len(split))) for _ in range(2))
    x, y = split.batch(slice(start, stop), torch.float32)
    expected_x, expected_y = split.batch(torch.arange(start, max(start, stop)), torch.float32)
    assert x.equal(expected_x)
    assert y.equal(expected_y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_asked_dtype_is_given_whatever_the_default(dtype: torch.dtype, default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        x, y = images().batch(torch.tensor([4]), dtype)
    finally:
        torch.set_default_dtype(before)
    assert (x.dtype, y.dtype) == (dtype, torch.int64)
    assert x.double().sub(torch.arange(24, 30).reshape(1, 1, 2, 3) / 255).abs().max() < 1e-3


def test_empty_batches_keep_their_shape() -> None:
    for empty in (torch.empty(0, dtype=torch.int64), slice(2, 2), slice(3, 1)):
        x, y = images(zoom=2, copies=3).batch(empty, torch.float32)
        assert x.shape == (0, 1, 4, 6)
        assert y.shape == (0,)


def test_index_list_gives_a_fresh_tensor_and_slice_a_view() -> None:
    split = Split(torch.randn(6, 4), torch.arange(6), copies=2)
    gathered, labels = split.batch(torch.arange(6), torch.float32)
    assert storage(gathered) != storage(split.x)
    assert storage(labels) != storage(split.y)
    for within_one_copy in (slice(0, 6), slice(7, 12)):
        view, _ = split.batch(within_one_copy, torch.float32)
        assert storage(view) == storage(split.x)


@pytest.mark.parametrize("indices", [slice(0, 6), torch.arange(6)])
def test_scaling_leaves_the_stored_rows_alone(indices: slice | Tensor) -> None:
    split = Split(torch.ones(6, 4), torch.arange(6), scale=0.5)
    x, _ = split.batch(indices, torch.float32)
    assert x.eq(0.5).all()
    assert split.x.eq(1).all()


def test_rows_in_column_order_come_out_contiguous() -> None:
    split = Split(torch.randn(4, 6).T, torch.arange(6))
    for indices in (slice(1, 5), torch.arange(1, 5)):
        x, _ = split.batch(indices, torch.float32)
        assert x.is_contiguous()
        assert x.equal(split.x[1:5])


def test_take_and_to_keep_the_rest() -> None:
    split = images(5, zoom=2, copies=3)
    part = split.take(2)
    assert len(part) == 6
    assert part.x.equal(split.x[:2])
    moved = split.to("meta")
    assert moved.x.device.type == moved.y.device.type == "meta"
    for other in (part, moved):
        assert (other.scale, other.zoom, other.copies) == (split.scale, 2, 3)


def test_copies_take_no_memory() -> None:
    split = images(5, copies=1_000_000)
    assert len(split) == 5_000_000
    assert split.batch(torch.tensor([4_999_999]), torch.float32)[0].equal(
        split.batch(torch.tensor([4]), torch.float32)[0]
    )


def test_dataset_has_the_shape_of_its_samples() -> None:
    split = images(zoom=2)
    data = Dataset("d", split, split, classes=3)
    assert data.shape == (1, 4, 6)
    assert data.to("meta").test.x.device.type == "meta"


def test_arrays_in_the_place_of_a_name_are_no_wall_of_numbers() -> None:
    x, y = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
    with pytest.raises(UserError, match=r"must be a text, got an? ndarray; give manyhands\.Dataset\(name, Split"):
        Dataset(x, y, x, y)  # type: ignore[arg-type]
