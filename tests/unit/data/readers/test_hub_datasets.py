"""Datasets of Hugging Face: their rows are taken through Arrow, without the package that made them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from real_data import encoded, picture

from manyhands.data import Dataset, as_dataset
from manyhands.errors import UserError

N = 18


class ClassLabel:
    """What `datasets` says of a column of classes."""

    def __init__(self) -> None:
        self.names = ["no", "yes", "maybe"]


class Image:
    """What `datasets` says of a column of images."""


class Hub:
    """A stand-in for `datasets.Dataset`, with as much of it as is used."""

    def __init__(self, table: pa.Table, features: dict[str, Any], form: dict[str, Any] | None = None) -> None:
        self.data, self.features = table, features
        self.format = form or {"type": None, "columns": table.column_names}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: Any) -> Any:
        if self.format["type"] == "arrow":
            return self.data.slice(key, 1) if isinstance(key, int) else self.data
        assert self.format["type"] == "custom", "rows are read as Arrow"
        return self.format["call"]({name: column[key] for name, column in self.data.to_pydict().items()})

    def with_format(self, kind: str) -> "Hub":
        return Hub(self.data, self.features, {"type": kind, "columns": self.data.column_names})

    def select_columns(self, names: list[str]) -> "Hub":
        return Hub(self.data.select(names), {name: self.features[name] for name in names}, self.format)


def hub(first: int = 0, **more: Any) -> Hub:
    columns = {"x": [[float(i), 1.0] for i in range(first, first + N)], "n": list(range(first, first + N)), **more}
    columns.setdefault("label", [i % 3 for i in range(N)])
    features = {name: ClassLabel() if name == "label" else None for name in columns}
    if "image" in columns:
        features["image"] = Image()  # type: ignore[assignment]
    return Hub(pa.table(columns), features)


def rows(data: Dataset) -> tuple[Any, Any]:
    return data.train.batch(torch.arange(len(data.train)), torch.float64)


def test_a_sample_is_a_dict_and_the_label_is_the_target() -> None:
    data = as_dataset(hub(), "hub")
    assert (data.shape, data.classes, len(data.train), len(data.test)) == ({"x": (2,), "n": ()}, 3, 15, 3)
    x, y = rows(data)
    assert (x["n"] % 3).equal(y)
    assert x["x"][:, 0].long().equal(x["n"])
    assert data.train.labels is not None
    assert data.train.labels.equal(y)


@pytest.mark.parametrize("together", [dict, tuple])
def test_parts(together: type) -> None:
    parts = {"train": hub(), "validation": hub(first=100)}
    data = as_dataset(parts if together is dict else tuple(parts.values()), "hub")
    assert (len(data.train), len(data.test)) == (N, N)
    assert int(data.test.batch(torch.arange(N), torch.float64)[0]["n"].min()) == 100
    with pytest.raises(UserError, match="hub has the parts rest, but needs one named train"):
        as_dataset({"rest": hub()}, "hub")


def test_texts_are_left_out_and_a_note_says_so() -> None:
    data = as_dataset(hub(text=["hi"] * N), "hub")
    assert data.shape == {"x": (2,), "n": ()}
    assert data.notes == (
        "column text is left out of hub, since no tensors can be made of their values: map() them to numbers",
    )


def test_a_label_of_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"column 'label' of hub holds string, .* class_encode_column\('label'\)"):
        as_dataset(hub(label=["a"] * N), "hub")


def test_chosen_columns_and_a_transform_are_kept() -> None:
    chosen = hub()
    chosen.format["columns"] = ["x", "label"]
    assert as_dataset(chosen, "hub").shape == {"x": (2,)}
    changed = hub()
    changed.format |= {
        "type": "custom",
        "call": lambda row: {"twice": 2 * torch.tensor(row["x"]), "label": row["label"]},
    }
    x, y = rows(as_dataset(changed, "hub"))
    assert ((x["twice"][:, 0] / 2) % 3).equal(y.double())


def test_images_are_decoded() -> None:
    stored = [{"bytes": encoded(picture(i)), "path": None} for i in range(N)]
    assert as_dataset(hub(image=stored), "hub").shape["image"] == (3, 5, 6)
    stored[7]["bytes"] = b"text"
    with pytest.raises(UserError, match=r"row 7 of column 'image' of 'hub' cannot be read as an image"):
        rows(as_dataset((hub(image=stored), hub(image=stored)), "hub"))


def test_fractions_are_no_classes_and_no_label_is_no_target() -> None:
    data = as_dataset(hub(label=[i / 2 for i in range(N)]), "hub")
    assert rows(data)[1].dtype == torch.float64
    without = Hub(hub().data.select(["x"]), {"x": None})
    x, y = rows(as_dataset(without, "hub"))
    assert x["x"].equal(y["x"])


def test_a_missing_value_is_named() -> None:
    holes = [None if i == 3 else 1.0 for i in range(N)]
    with pytest.raises(UserError, match="row 3 of column 'z' of 'hub' has no value"):
        rows(as_dataset((hub(z=holes), hub(z=holes)), "hub"))
    with pytest.raises(UserError, match="the test rows of hub have no column 'z'; they have x, n, label"):
        as_dataset((hub(z=holes), hub()), "hub")


def test_files_of_images_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(picture(3)))
    stored = [{"bytes": None, "path": str(tmp_path / "a.png")}] * N
    assert as_dataset(hub(image=stored), "hub").shape["image"] == (3, 5, 6)
