"""Parquet and Arrow: columns become features, lists, words and targets; bad files are named in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_data import save_to_disk, write_table

from manyhands import parquet
from manyhands.data import Dataset, Split, load
from manyhands.errors import ManyhandsError, UserError
from manyhands.machine import facts

N = 29
FILES = ("t.parquet", "t.arrow", "t.stream.arrow", "t.feather")
COLUMNS: dict[str, Any] = {
    "a": np.arange(N) / 7,
    "b": np.arange(N) % 5,
    "ok": np.arange(N) % 2 == 0,
    "kind": [["x", "y", "z"][i % 3] for i in range(N)],
    "text": [f"word{i} is {i % 3}" for i in range(N)],
    "pair": [[float(i), i / 2] for i in range(N)],
    "grid": pa.array([[[i, 1], [2, 3]] for i in range(N)], pa.list_(pa.list_(pa.int32(), 2), 2)),
}


def spec(path: Path, options: str) -> str:
    source = {".parquet": "parquet", ".csv": "csv"}.get(path.suffix, "arrow")
    return f"{source}:{path},{options}"


def rows(data: Dataset) -> tuple[Any, Any]:
    """Return the inputs and targets of all rows, those to train on first."""
    parts = [split.batch(torch.arange(len(split)), torch.float64) for split in (data.train, data.test)]
    (x, y), (test_x, test_y) = parts
    if isinstance(x, dict):
        return {name: torch.cat([x[name], test_x[name]]) for name in x}, torch.cat([y, test_y])
    return torch.cat([x, test_x]), torch.cat([y, test_y])


@pytest.mark.parametrize("name", FILES)
def test_numbers_are_one_matrix_in_the_files_order(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name, {name: COLUMNS[name] for name in ("a", "kind", "b", "ok")})
    data = load(spec(path, "label=kind"))
    assert (data.shape, data.classes, len(data.train), len(data.test)) == ((3,), 3, 25, 4)
    x, y = rows(data)
    number = (x[:, 0] * 7).round().long()
    assert sorted(number.tolist()) == list(range(N))
    assert x[:, 1].long().equal(number % 5)
    assert x[:, 2].long().equal((number + 1) % 2)
    assert y.equal(number % 3)


@pytest.mark.parametrize("name", FILES)
def test_the_same_rows_as_csv_are_the_same_data(tmp_path: Path, name: str) -> None:
    for options, columns in (("label=kind", ("a", "b", "kind")), ("text=text,label=kind,words=9", ("text", "kind"))):
        table = {name: COLUMNS[name] for name in columns}
        loaded, expected = (load(spec(write_table(tmp_path / file, table), options)) for file in (name, "t.csv"))
        assert loaded.classes == expected.classes
        for split, other in ((loaded.train, expected.train), (loaded.test, expected.test)):
            for part, wanted in zip(
                *(s.batch(torch.arange(len(s)), torch.float32) for s in (split, other)), strict=True
            ):
                assert part.equal(wanted)


def test_features_are_chosen_and_ordered(tmp_path: Path) -> None:
    x, _ = rows(load(spec(write_table(tmp_path / "t.parquet", COLUMNS), "label=kind, features=b|a")))
    assert (x[:, 1] * 7).round().remainder(5).equal(x[:, 0])


@pytest.mark.parametrize("name", FILES)
def test_lists_are_tensors_and_stand_beside_the_matrix(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name, COLUMNS)
    x, _ = rows(load(spec(path, "label=kind,features=a|pair|grid|b")))
    assert {name: tuple(part.shape[1:]) for name, part in x.items()} == {"features": (2,), "pair": (2,), "grid": (2, 2)}
    number = x["pair"][:, 0].long()
    assert x["features"][:, 1].long().equal(number % 5)
    assert x["grid"][:, 0, 0].long().equal(number)
    assert x["grid"].dtype == torch.int32
    alone = load(spec(path, "label=kind,features=pair"))
    assert alone.shape == (2,)
    assert load(spec(path, "label=kind,features=grid")).train.batch(slice(0, 2), torch.float64)[0].dtype == torch.int32


def test_tensors_of_arrow_have_their_shape(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3))
    data = load(spec(write_table(tmp_path / "t.arrow", {"x": tensors, "y": COLUMNS["kind"]}), "label=y"))
    assert data.shape == (2, 3)


@pytest.mark.parametrize(
    ("label", "shape", "classes", "value"),
    [
        ("kind", (), 3, lambda n: n % 3),
        ("b", (), 5, lambda n: n % 5),
        ("ok", (), 2, lambda n: (n + 1) % 2),
        ("size", (), N, lambda n: n),
        ("a", (1,), 0, lambda n: (n / 7)[:, None]),
        ("ok|b", (2,), 0, lambda n: torch.stack([(n + 1) % 2, n % 5], 1).double()),
        ("pair", (2,), 0, lambda n: torch.stack([n, n / 2], 1).double()),
    ],
)
def test_the_kind_of_label_decides_the_target(
    tmp_path: Path, label: str, shape: tuple[int, ...], classes: int, value: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    table = COLUMNS | {"n": np.arange(N), "size": np.arange(N)}
    data = load(spec(write_table(tmp_path / "t.parquet", table), f"label={label},features=n"))
    x, y = rows(data)
    assert (tuple(y.shape[1:]), data.classes) == (shape, classes)
    assert [note.partition(", ")[0] for note in data.notes] == (
        [f"the label 'size' of '{tmp_path / 't.parquet'}' is taken as {N} classes"] if classes == N else []
    )
    torch.testing.assert_close(y, value(x[:, 0].long()), check_dtype=False)


def test_whole_labels_are_numbered_in_their_order(tmp_path: Path) -> None:
    table = {"x": np.arange(12.0), "y": [[10, 9, -1][i % 3] for i in range(12)]}
    x, y = rows(load(spec(write_table(tmp_path / "t.parquet", table), "label=y")))
    assert y.equal(2 - x[:, 0].long() % 3)


@pytest.mark.parametrize(
    "names",
    [("train-0.parquet", "train-1.parquet", "test-0.parquet"), ("train/a.parquet", "train/b.parquet", "val/x.parquet")],
)
def test_folders_have_parts(tmp_path: Path, names: tuple[str, ...]) -> None:
    for i, name in enumerate(names):
        write_table(tmp_path / name, {"x": np.arange(8.0) + 100 * i, "y": np.arange(8) % 2})
    data = load(f"parquet:{tmp_path},label=y")
    train, test = (split.batch(torch.arange(len(split)), torch.float64)[0] for split in (data.train, data.test))
    assert sorted(train.flatten().tolist()) == [*range(8), *range(100, 108)]
    assert sorted(test.flatten().tolist()) == [*range(200, 208)]


def test_a_folder_without_parts_is_one_table(tmp_path: Path) -> None:
    for i in range(3):
        write_table(tmp_path / f"{i}.arrow", {"x": np.arange(8.0) + 10 * i, "y": np.arange(8) % 2})
    data = load(f"arrow:{tmp_path},label=y,train=10")
    assert (len(data.train), len(data.test)) == (10, 4)


def test_saved_datasets_are_read(tmp_path: Path) -> None:
    table = {"x": np.arange(12.0), "y": np.arange(12) % 2}
    assert len(load(f"arrow:{save_to_disk(tmp_path / 'one', table)},label=y").train) == 10
    for part in ("train", "test"):
        save_to_disk(tmp_path / "both" / part, table)
    data = load(f"arrow:{tmp_path / 'both'},label=y")
    assert (len(data.train), len(data.test)) == (12, 12)
    (tmp_path / "one" / "state.json").write_text("[]")
    with pytest.raises(UserError, match=r"state\.json' does not list the files of a saved dataset"):
        load(f"arrow:{tmp_path / 'one'},label=y")
    (tmp_path / "one" / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    with pytest.raises(UserError, match=r"names 'gone.arrow', but there is no file"):
        load(f"arrow:{tmp_path / 'one'},label=y")


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"x": np.arange(12.0), "c": pandas.Categorical(["a", "b"] * 6)}).iloc[::-1]
    frame.to_parquet(tmp_path / "t.parquet")  # with a column for the numbers of rows, which are in disorder
    data = load(f"parquet:{tmp_path / 't.parquet'},label=c")
    assert (data.shape, data.classes) == ((1,), 2)


def test_rows_are_not_copied_for_the_splits(tmp_path: Path) -> None:
    data = load(spec(write_table(tmp_path / "t.parquet", COLUMNS), "label=kind,features=a"))
    assert isinstance(data.train, Split)
    assert isinstance(data.test, Split)
    assert data.train.x.data_ptr() == data.test.x.data_ptr()
    assert len(data.train.x) == N


MISSING = pa.array([None if i == 5 else float(i) for i in range(N)])
UNEVEN = [[1.0] * (1 + (i == 9)) for i in range(N)]


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ({}, "", "needs label=COLUMN, one of the columns of '.*': a, b, ok, kind, text, pair, grid"),
        ({}, "label=kin", "there is no column of '.*' named 'kin'; did you mean 'kind'"),
        ({}, "label=kind,features=a|bb", "there is no column of '.*' named 'bb'"),
        ({}, "label=kind,features=a|a", "column 'a' is given twice in 'a|a'"),
        ({}, "label=kind,features=a|kind", "column 'kind' of '.*' is a label, so it cannot be an input as well"),
        ({}, "label=kind", "column 'text' of '.*' holds string, which are no numbers; for .* text=text, to leave"),
        ({}, "label=kind,text=a", "column 'a' of '.*' holds double, not text"),
        ({}, "label=kind,text=text,features=a", "text=COLUMN or features=COLUMN.COLUMN, not both"),
        ({}, "label=kind,words=4,features=a", "words=4 of .* needs text=COLUMN"),
        ({}, "label=kind,text=text,words=0", "words of .* must be at least 1, got 0"),
        ({}, "label=kind|a,features=b", "column 'kind' of '.*' holds no numbers, but of several labels each must be"),
        ({"x": MISSING}, "label=kind,features=x", "row 5 of column 'x' of '.*' has no value"),
        ({"x": MISSING}, "label=x,features=a", "row 5 of column 'x' of '.*' has no value"),
        ({"x": np.where(np.arange(N) == 8, np.nan, 1.0)}, "label=kind,features=x", "row 8 of column 'x' .* no finite"),
        ({"x": UNEVEN}, "label=kind,features=x", "row 9 of column 'x' of '.*' is a list of 2 values, but .* has 1"),
        ({"x": ["same"] * N}, "label=x,features=a", "every row of column 'x' of '.*' is 'same'"),
        ({"x": pandas.date_range("2024", periods=N)}, "label=kind,features=x", "holds timestamp.*, which are no num"),
    ],
)  # fmt: skip
def test_bad_columns_are_one_sentence(
    tmp_path: Path, name: str, more: dict[str, Any], options: str, words: str
) -> None:
    path = write_table(tmp_path / name, COLUMNS | more)
    with pytest.raises(UserError, match=words) as caught:
        load(spec(path, options).rstrip(","))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no file that ends in .parquet or .pq"),
        ({"a.parquet": {"x": [1.0], "y": [0]}, "b.parquet": {"x": [1.0]}}, "no column of '.*b.parquet' named 'y'"),
        ({"a.parquet": {"x": [1.0], "y": [0]}, "b.parquet": {"x": ["1"], "y": [0]}}, "is double in .*, but string in"),
        ({"train.parquet": {"x": [1.0]}, "more.parquet": {"x": [1.0]}}, "'more.parquet', which says no part"),
        ({"test.parquet": {"x": [1.0]}}, "has 'test.parquet' but no file named train"),
        ({"a.parquet": {"x": np.ones(0), "y": np.ones(0)}}, "has columns but no rows: x, y"),
        ({"train.parquet": {"x": [1.0, 2], "y": ["a", "b"]}, "test.parquet": {"x": [1.0], "y": ["c"]}},
         "label 'c' in the test rows, but in no row to train on"),
    ],
)  # fmt: skip
def test_bad_folders_of_tables_are_one_sentence(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    for name, table in files.items():
        write_table(tmp_path / name, table)
    with pytest.raises(UserError, match=words):
        load(f"parquet:{tmp_path},label=y,features=x")


@pytest.mark.parametrize("text", ["parquet:gone.parquet,label=y", "arrow:gone,label=y"])
def test_a_missing_table_is_named(text: str) -> None:
    with pytest.raises(UserError, match="there is no file or folder 'gone"):
        load(text)


def test_memory_is_checked_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(tmp_path / "t.parquet", COLUMNS | {"x": np.ones(N), "wide": [[1.0] * 50] * N})
    monkeypatch.setattr(facts, "available_bytes", lambda: 400)
    for options in ("features=a|x", "features=wide", "text=text,words=999"):
        with pytest.raises(UserError, match=r"of memory, but only 400 B are available"):
            load(f"parquet:{path},label=kind,{options}")
    with pytest.raises(UserError, match=r"only 400 B are available; write it as an Arrow file"):
        parquet(path, inputs="a", target="kind")


@pytest.mark.parametrize("source", ["parquet", "arrow"])
def test_a_missing_package_is_named_for_tables(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.data.readers.extras.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package pyarrow.* install 'manyhands\[arrow\]'"):
        load(f"{source}:{tmp_path},label=x")


def test_rows_are_samples(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", COLUMNS)
    data = parquet(path, inputs=["a", "pair"], target="kind")
    assert (data.classes, len(data.train), len(data.test)) == (3, 25, 4)
    x, y = rows(data)
    number = x["pair"][:, 0].long()
    torch.testing.assert_close(x["a"], number / 7, check_dtype=False)
    assert y.equal(number % 3)
    assert parquet(path, inputs="pair", target="a").shape == (2,)
    assert parquet(path, inputs="pair", target=["a", "b"]).train.batch(slice(0, 2), torch.float64)[1].keys() == {
        "a",
        "b",
    }


def test_rows_are_decoded_and_collated(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", COLUMNS)

    def decode(row: dict[str, Any]) -> dict[str, Any]:
        return {"length": torch.tensor([float(len(row["text"]))]), "y": torch.tensor(row["kind"] == "x").float()}

    x, y = rows(parquet(path, inputs="length", target="y", decode=decode))
    assert x.shape == (N, 1)
    assert int(y.sum()) == 10

    holes = write_table(tmp_path / "holes.parquet", {"a": MISSING, "b": np.arange(N)})

    def fill(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"a": torch.tensor(-1.0) if row["a"] is None else row["a"]}

    x, _ = rows(parquet(holes, inputs="a", target="b", decode=fill))
    assert int((x == -1).sum()) == 1
    with pytest.raises(UserError, match=r"row 5 of column 'a' of '.*' has no value"):
        rows(parquet(holes, inputs="a", target="b"))

    def collate(samples: list[Any]) -> Any:
        return torch.stack([x["a"] for x, _ in samples]), torch.stack([y for _, y in samples])

    x, _ = rows(parquet(path, target="b", collate=collate))
    assert x.shape == (N,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"inputs": "aa", "target": "b"}, "there is no column of '.*' named 'aa'"),
        ({"inputs": "a", "target": "bb"}, "there is no column of '.*' named 'bb'"),
        ({"target": "kind"}, "column 'text' of '.*' holds string, which makes no tensor; .* decode or collate"),
        (
            {"target": "kind", "decode": lambda row: None},
            r"decode must return a dict .* row \d+ .* it returned None",
        ),
        ({"target": "kind", "decode": lambda row: {"x": 1}}, r"row \d+ of '.*' has no 'kind' after decode; it has x"),
    ],
)
def test_bad_rows_are_one_sentence(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    path = write_table(tmp_path / "t.parquet", COLUMNS)
    with pytest.raises(UserError, match=words):
        _ = parquet(path, **arguments).shape


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a good file of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: write_table(folder / name, COLUMNS).read_bytes() for name in FILES[:3]}


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_any_bytes_are_read_or_refused_in_a_sentence(
    tmp_path: Path, whole: dict[str, bytes], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(whole)))
    raw = bytearray(whole[name])
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=5)):
        raw[place] = byte
    path = tmp_path / name
    path.write_bytes(raw[: data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))])
    options = data.draw(st.sampled_from(["features=a|b|ok|pair|grid", "text=text", "features=pair,label=a|b"]))
    refused = ""
    try:
        load(spec(path, options if "label" in options else f"{options},label=kind"))
    except ManyhandsError as error:
        refused = str(error)
    assert "\n" not in refused
