"""Comma-separated files: text is hashed, numbers are read, nothing is lost, and bad files are named in a sentence."""

import csv
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyhands.data import load
from manyhands.errors import UserError

TEXTS = "tweet,topic\n" + "".join(f"word{i} is here,{'ab'[i % 2]}\n" for i in range(12))
NUMBERS = "x,y,kind\n" + "".join(f"{i},{i / 4},{i // 6}\n" for i in range(12))


def write(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table(folder: Path, rows: list[list[object]]) -> Path:
    path = folder / "data.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    return path


def test_text_is_counted(tmp_path: Path) -> None:
    data = load(f"csv:{write(tmp_path, TEXTS)},text=tweet,label=topic")
    assert (data.classes, data.shape, data.train.x.dtype) == (2, (1024,), torch.uint8)
    assert (len(data.train), len(data.test)) == (10, 2)
    assert data.train.x.sum(dim=1).eq(3).all()
    assert data.train.batch(slice(0, 10), torch.float32)[0].equal(data.train.x.float())


def test_the_same_words_are_the_same_features_in_every_file(tmp_path: Path) -> None:
    rows = [["text", "label"], *([["Not the #same, 👍 words", 0], ["words the same # NOT 👍 ,", 1]] * 3)]
    first = load(f"csv:{table(tmp_path, rows)},text=text,label=label,words=50")
    other = load(f"csv:{table(tmp_path, [*rows, ['other', 2], ['texts', 2]])},text=text,label=label,words=50")
    assert first.train.x.eq(first.train.x[0]).all()
    assert (other.train.x[other.train.y < 2] == first.train.x[0]).all()
    assert int(first.train.x[0].sum()) == 7


def test_many_of_one_word_do_not_overflow(tmp_path: Path) -> None:
    path = table(tmp_path, [["t", "l"], *[["so " * 300, label] for label in "ababab"]])
    assert load(f"csv:{path},text=t,label=l,words=8").train.x.max() == 255


def test_numbers_are_all_other_columns(tmp_path: Path) -> None:
    data = load(f"csv:{write(tmp_path, NUMBERS)},label=kind")
    assert (data.classes, data.shape) == (2, (2,))
    x, y = (torch.cat(parts) for parts in ((data.train.x, data.test.x), (data.train.y, data.test.y)))
    rows = sorted(zip(x[:, 0].tolist(), x[:, 1].tolist(), y.tolist(), strict=True))
    assert rows == [(i, i / 4, i // 6) for i in range(12)]


@given(labels=st.lists(st.integers(0, 6), min_size=2, max_size=80).filter(lambda y: 1 < len(set(y)) < len(y)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_row_is_lost_and_each_class_gives_its_share(tmp_path: Path, labels: list[int]) -> None:
    path = table(tmp_path, [["i", "y"], *[[i, y] for i, y in enumerate(labels)]])
    data = load(f"csv:{path},label=y")
    seen = torch.cat([data.train.x, data.test.x]).flatten().int().tolist()
    assert sorted(seen) == list(range(len(labels)))
    found = sorted(set(labels))
    for split in (data.train, data.test):
        assert [found[y] for y in split.y.tolist()] == [labels[i] for i in split.x.flatten().int().tolist()]
    spare = len(labels) - len(found)
    assert len(data.test) == min(spare, max(1, len(labels) // 6))
    for number, label in enumerate(found):
        held = int((data.test.y == number).sum())
        share = (labels.count(label) - 1) * len(data.test) / spare
        assert abs(held - share) <= 1
        assert held < labels.count(label)


def test_a_sorted_file_gives_mixed_rows_under_a_limit(tmp_path: Path) -> None:
    path = table(tmp_path, [["i", "y"], *[[i, i // 300] for i in range(600)]])
    data = load(f"csv:{path},label=y,train=60,test=40")
    assert (len(data.train), len(data.test), data.classes) == (60, 40, 2)
    for split in (data.train, data.test):
        assert 0.2 < split.y.double().mean() < 0.8


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [(["10", "9", "-1"], ["-1", "9", "10"]), (["10", "9", "x"], ["10", "9", "x"]), (["é", "z", "A"], ["A", "z", "é"])],
)
def test_classes_are_sorted(tmp_path: Path, labels: list[str], ordered: list[str]) -> None:
    path = table(tmp_path, [["i", "y"], *[[i % 3, labels[i % 3]] for i in range(9)]])
    data = load(f"csv:{path},label=y")
    for x, y in zip(data.train.x[:, 0].int().tolist(), data.train.y.tolist(), strict=True):
        assert ordered[y] == labels[x]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + NUMBERS,
        NUMBERS.replace("\n", "\r\n"),
        NUMBERS.replace("\n", "\r"),
        NUMBERS.replace("\n", "\n\n"),
        NUMBERS.replace(",", " , "),
        '"' + NUMBERS.replace(",", '","').replace("\n", '"\n"')[:-1],
    ],
    ids=["mark", "windows", "old mac", "blank lines", "spaces", "quotes"],
)
def test_files_of_other_programs_are_read_alike(tmp_path: Path, content: str) -> None:
    plain = load(f"csv:{write(tmp_path, NUMBERS)},label=kind")
    other = load(f"csv:{write(tmp_path, content, 'other.csv')},label=kind")
    assert other.train.x.equal(plain.train.x)
    assert other.train.y.equal(plain.train.y)


def test_the_mark_of_a_spreadsheet_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffkind,x\n" + "".join(f"{i % 2},{i}\n" for i in range(6)))
    assert load(f"csv:{path},label=kind").shape == (1,)


def test_cells_may_hold_commas_quotes_and_lines(tmp_path: Path) -> None:
    rows = [['a, "b"\nc', i % 2] for i in range(6)]
    data = load(f"csv:{table(tmp_path, [['the text', 'y'], *rows])},text=the text,label=y,words=64")
    assert data.train.x.sum(dim=1).eq(6).all()


@pytest.mark.parametrize("place", ["a,label=3/data.csv", "text=x,y.csv", "c d,e.csv", "words=5"])
def test_paths_may_look_like_options(tmp_path: Path, place: str) -> None:
    path = write(tmp_path, TEXTS, place)
    assert load(f"csv:{path} , text=tweet, label=topic,words=9").shape == (9,)


def test_columns_may_have_slashes(tmp_path: Path) -> None:
    path = write(tmp_path, NUMBERS.replace("kind", "km/h"))
    assert load(f"csv:{path},label=km/h,train=3").classes == 2


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (TEXTS, "text=tweet", "csv needs label=COLUMN, one of the columns of '.*': tweet, topic"),
        (TEXTS, "text=twet,label=topic", "there is no column of '.*' named 'twet'; did you mean 'tweet'"),
        (TEXTS, "text=tweet,label=topics", "did you mean 'topic'"),
        (TEXTS, "text=tweet,label=tweet", "must be two columns, got 'tweet' for both"),
        (TEXTS, "text=tweet,label=topic,words=0", "words of csv must be at least 1, got 0"),
        (TEXTS, "text=tweet,label=topic,words=99999999999", "at most 8589934592 are allowed"),
        (TEXTS, "text=tweet,label=topic,words=few", "words of csv must be a whole number, got 'few'"),
        (TEXTS, "text=tweet,label=topic,train=11", "train of csv must be between 1 and 10, got 11"),
        (TEXTS, "text=tweet,label=topic,test=0", "test of csv must be between 1 and 2, got 0"),
        (TEXTS, "text=tweet,label=topic,lable=topic", "there is no option of csv named 'lable'; did you mean 'label'"),
        (TEXTS, "text=tweet,text=tweet,label=topic", "'text' is given twice"),
        (TEXTS, "label=topic", "line 2 of '.*' has 'word0 is here' in column 'tweet', .* add text=tweet"),
        (NUMBERS, "label=kind,words=5", "words=5 of csv needs text=COLUMN"),
        ("", "label=y", "is empty; its first line must name the columns"),
        ("\n\n", "label=y", "is empty"),
        ("x,y\n", "label=y", "has a header but no rows"),
        ("1,2\n3,4\n", "label=y", "first line of '.*' must name the columns, but it is '1,2'"),
        ("x,x,y\n1,2,3\n", "label=y", "two columns of '.*' are named 'x'"),
        (",x,y\n1,2,3\n1,2,4\n1,2,4\n", "label=y", "column 1 of '.*' has no name"),
        ("y\na\nb\nb\n", "label=y", "has no column but the label 'y'"),
        ("x,y\n1,2\n3\n", "label=y", "line 3 of '.*' has 1 cells, but the header has 2"),
        ("x,y\n1,2\n\n3,4,5\n", "label=y", "line 4 of '.*' has 3 cells"),
        ('x,y\n1,"a\n\n b"\n2,"a\n\n b"\n', "label=y", "every row of column 'y' of '.*' is 'a b'"),
        ("x,y\n1,a\n2,a\n", "label=y", "every row of column 'y' of '.*' is 'a', but .* two classes"),
        ("x,y\n1,a\n2,b\n", "label=y", "the 2 rows of column 'y' of '.*' are all different"),
        ("x,y\n1,a\n2, \n", "label=y", "line 3 of '.*' has nothing in column 'y'"),
        ("x,y\n,a\nhi,b\nhi,b\n", "text=x,label=y", "line 2 of '.*' has nothing in column 'x'"),
        ("x,y\n1,a\n,b\n3,b\n", "label=y", "line 3 of '.*' has '' in column 'x', which is no finite number"),
        ("x,y\n1,a\nnan,b\n3,b\n", "label=y", "line 3 of '.*' has 'nan' in column 'x'"),
        ("x,y\n1,a\n1e999,b\n3,b\n", "label=y", "line 3 of '.*' has '1e999' in column 'x'"),
        ('x,y\n1,"a\n', "label=y", "line 2 of '.*' is not comma-separated text"),
        ("x,y\n" + "1" * 200_000 + ",a\n", "label=y", "line 2 of '.*' is not comma-separated text: field larger"),
        (b"x,y\n1,a\n2,caf\xe9\n", "label=y", "is not UTF-8: line 3 holds the byte 0xe9; save it as UTF-8"),
        ("x,y\n1,2\n".encode("utf-16"), "label=y", "is not UTF-8: line 1 holds the byte 0xff"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, content: str | bytes, options: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(f"csv:{write(tmp_path, content)},{options}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["csv:gone.csv,label=y", "csv:.,label=y", "csv:a\0b,label=y"])
def test_a_missing_file_is_named(text: str) -> None:
    with pytest.raises(UserError, match="there is no file"):
        load(text)


@pytest.mark.parametrize("text", ["csv", "csv: ,label=y"])
def test_a_path_is_needed(text: str) -> None:
    with pytest.raises(UserError, match="csv needs a path"):
        load(text)


@pytest.mark.parametrize("header", ["x,y", "1,y", "x,", '"x\ny",y'])
@given(content=st.binary(max_size=100) | st.text('ab1",\n\r #é', max_size=60).map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_any_bytes_are_read_or_refused_in_a_sentence(tmp_path: Path, header: str, content: bytes) -> None:
    path, refused = write(tmp_path, f"{header}\n".encode() + content), ""
    for options in ("text=x,label=y,words=4", "label=y"):
        try:
            data = load(f"csv:{path},{options}")
            assert torch.cat([data.train.y, data.test.y]).unique().numel() == data.classes
        except UserError as error:
            refused = str(error)
        assert "\n" not in refused


@pytest.mark.timeout(60)
def test_very_many_columns_take_no_longer_each(tmp_path: Path) -> None:
    columns = 60_000
    header = ",".join([*(f"c{i}" for i in range(columns)), "label"])
    rows = [",".join([*("1" for _ in range(columns)), str(i % 2)]) for i in range(6)]
    file = tmp_path / "wide.csv"
    file.write_text("\n".join([header, *rows]))
    assert load(f"csv:{file},label=label").shape == (columns,)
    with pytest.raises(UserError, match=r"named 'x'; .*c0, c1, .*c49 and 59,951 more") as failed:
        load(f"csv:{file},label=x")
    assert len(str(failed.value)) < 1000
    file.write_text("\n".join([f"{header},c59999", *(f"{row},1" for row in rows)]))
    with pytest.raises(UserError, match=r"two columns of .* are named 'c59999'"):
        load(f"csv:{file},label=label")


def test_numbers_are_read_as_python_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("a,label\n1_000,0\n 2e3 ,1\n-0.5,0\n+1.,1\n")
    loaded = load(f"csv:{file},label=label")
    assert sorted(loaded.train.x.flatten().tolist() + loaded.test.x.flatten().tolist()) == [-0.5, 1.0, 1000.0, 2000.0]
