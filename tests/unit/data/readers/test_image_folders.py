"""Image folders: parts and classes by the folders' names, pixels as they are, and bad images named in a sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from real_data import encoded, image_folder, picture

from manyhands import images
from manyhands.data import AnySplit, load
from manyhands.data.readers import scanning
from manyhands.errors import ManyhandsError, UserError


def test_pixels_and_classes_are_those_of_the_files(tmp_path: Path) -> None:
    image_folder(tmp_path / "train", {"dog": 5, "cat": 4})
    image_folder(tmp_path / "test", {"dog": 2}, first=500)
    data = load(f"images:{tmp_path}")
    assert (data.shape, data.classes, len(data.train), len(data.test)) == ((3, 5, 6), 2, 9, 2)
    x, y = data.train.batch(torch.arange(9), torch.float64)
    numbers = {1: 0, 0: 1000}  # of the first picture of each class: cats come first by name, dogs were written first
    for label, first in numbers.items():
        expected = {np.asarray(picture(first + i)).tobytes() for i in range(5 - (label == 0))}
        stored = {(255 * image).round().byte().permute(1, 2, 0).numpy().tobytes() for image in x[y == label]}
        assert stored == expected
    assert data.train.labels is not None
    assert data.train.labels.equal(y)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_the_test_part_may_have_other_names(tmp_path: Path, name: str) -> None:
    image_folder(tmp_path / "train", {"a": 3, "b": 3})
    image_folder(tmp_path / name, {"a": 1, "b": 1})
    assert len(load(f"images:{tmp_path}").test) == 2


def test_a_sixth_of_each_class_is_held_out(tmp_path: Path) -> None:
    image_folder(tmp_path, {"a": 12, "b": 24, "c": 6})
    data = load(f"images:{tmp_path}")
    assert data.test.labels is not None
    assert data.test.labels.bincount().tolist() == [2, 4, 1]
    assert len(data.train) == 35


def test_a_class_of_trains_is_a_class(tmp_path: Path) -> None:
    image_folder(tmp_path, {"train": 6, "bus": 6})
    assert load(f"images:{tmp_path}").classes == 2


def test_limits_take_mixed_classes(tmp_path: Path) -> None:
    image_folder(tmp_path, {"a": 30, "b": 30})
    data = load(f"images:{tmp_path},train=20,test=6")
    assert (len(data.train), len(data.test)) == (20, 6)
    assert data.train.labels is not None
    assert 4 <= int(data.train.labels.sum()) <= 16


def test_size_makes_squares_from_the_middle(tmp_path: Path) -> None:
    wide = Image.new("RGB", (30, 10), "red")
    wide.paste("blue", (6, 0, 24, 10))  # as wide as the filter looks beyond the square
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i, image in enumerate((wide, Image.new("RGB", (8, 16), "blue"), wide)):
            (tmp_path / name / f"{i}.png").write_bytes(encoded(image))
    x, _ = load(f"images:{tmp_path},size=5").train.batch(slice(0, 2), torch.float32)
    assert x.shape == (2, 3, 5, 5)
    assert x.equal(torch.tensor([0.0, 0, 1])[None, :, None, None].expand(2, 3, 5, 5))


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "bmp", "gif", "tiff", "ppm"])
def test_kinds_of_files(tmp_path: Path, kind: str) -> None:
    image_folder(tmp_path, {"a": 3, "b": 3}, kind=kind)
    assert load(f"images:{tmp_path}").shape == (3, 5, 6)
    assert load(f"images:{tmp_path},gray=yes").shape == (1, 5, 6)


def test_transforms_get_the_image_and_draw_by_sample_and_epoch(tmp_path: Path) -> None:
    image_folder(tmp_path, {"a": 6, "b": 6})

    def augment(image: Image.Image) -> torch.Tensor:
        assert image.size == (4, 4)
        return torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1) * torch.rand(())

    data = images(tmp_path, size=4, transform=augment, test_transform=lambda image: image.resize((4, 4)))
    rows = torch.tensor([3, 1, 7])
    first, _ = data.train.batch(rows, torch.float64, 0)
    again, _ = data.train.batch(rows[1:], torch.float64, 0)
    later, _ = data.train.batch(rows, torch.float64, 1)
    assert again.equal(first[1:])
    assert not later.equal(first)
    assert data.test.shape == (3, 4, 4)


def damaged(folder: Path, text: str) -> Path:
    """Return a folder of images with one of them changed in a way that has a name."""
    image_folder(folder, {"a": 6, "b": 6})
    path = folder / "b" / "003.png"
    whole = path.read_bytes()
    match text:
        case "empty":
            path.write_bytes(b"")
        case "no image":
            path.write_bytes(b"this is text")
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "sides":
            path.write_bytes(encoded(picture(0, (7, 5))))
        case "16 bits":
            path.write_bytes(encoded(Image.fromarray(np.full((5, 6), 4000, np.uint16))))
        case "other file":
            path.with_name("notes.txt").write_text("x")
        case "empty class":
            (folder / "c").mkdir()
        case "no class":
            (folder / "x.png").write_bytes(whole)
        case "folder":
            path.unlink()
            path.mkdir()
    return folder


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("empty", r"b/003\.png' cannot be read as an image: it is in none of the formats JPEG, PNG"),
        ("no image", r"b/003\.png' cannot be read as an image: it is in none of the formats"),
        ("cut", r"b/003\.png' cannot be read as an image"),
        ("sides", r"00\d\.png' has 7 × 5 pixels, but '.*\.png' has 6 × 5; size=64 makes|has 6 × 5 .* has 7 × 5"),
        ("16 bits", r"b/003\.png' has pixels of Pillow's mode 'I;16', but only 8 bits a colour are read"),
        ("other file", r"b/notes\.txt' is no image \(\.jpg, "),
        ("empty class", r"class 'c' is empty: there is no image in '.*/c'"),
        ("no class", r"x\.png' is in no class; images must be in a folder for each class"),
    ],
)
def test_bad_folders_are_one_sentence_before_ranks_start(tmp_path: Path, how: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(f"images:{damaged(tmp_path, how)}")
    assert "\n" not in str(caught.value)


def test_a_header_that_is_not_looked_at_is_refused_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "MOST_SCANNED", 1)
    data = load(f"images:{damaged(tmp_path, 'sides')}", scan=False)
    rows = [split.rows(torch.tensor([i])) for split in (data.train, data.test) for i in range(len(split))]
    refused = [row for row in rows if _refusal(row)]
    assert refused
    assert len(refused) in (1, len(rows) - 1), "the first image of the training data may be the other one"


def _refusal(split: AnySplit) -> str:
    try:
        split.batch(slice(0, len(split)), torch.float32)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("images", "images needs a path"),
        ("images:gone", "there is no folder 'gone'"),
        ("images:{0}/one", "must hold a folder of images for each of at least two classes"),
        ("images:{0}/new", "'.*/c' is a class without training images; the classes are a, b"),
        ("images:{0}/good,size=0", "size of images must be between 1 and 16384, got 0"),
        ("images:{0}/good,size=big", "size of images must be a whole number, got 'big'"),
        ("images:{0}/good,grey=yes", "there is no option of images named 'grey'; did you mean 'gray'"),
        ("images:{0}/good,train=90", "train of images must be between 1 and 7, got 90"),
    ],
)
def test_bad_requests_are_one_sentence(tmp_path: Path, spec: str, words: str) -> None:
    image_folder(tmp_path / "one", {"a": 3})
    for part, classes in (("train", {"a": 3, "b": 3}), ("test", {"a": 1, "c": 1})):
        image_folder(tmp_path / "new" / part, classes)
    image_folder(tmp_path / "good", {"a": 4, "b": 4})
    with pytest.raises(UserError, match=words):
        load(spec.format(tmp_path))


def test_what_a_transform_returns_is_checked(tmp_path: Path) -> None:
    image_folder(tmp_path, {"a": 3, "b": 3})
    with pytest.raises(UserError, match=r"transform must return a tensor, .* it returned None"):
        images(tmp_path, transform=lambda image: None).train.batch(slice(0, 1), torch.float32)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.data.readers.extras.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package pillow.* install 'manyhands\[images\]'"):
        load(f"images:{tmp_path}")


WHOLE = [encoded(picture(1), kind) for kind in ("png", "jpeg", "gif", "bmp", "tiff", "ppm", "webp")]


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@pytest.mark.filterwarnings("ignore")  # Pillow's, of files that it can read in part
def test_any_bytes_are_read_or_refused_in_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(WHOLE)))
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=5)):
        raw[place] = byte
    image_folder(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "001.png").write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    refused = "001.png"
    try:
        loaded = load(f"images:{tmp_path},size=3")
        loaded.train.batch(torch.arange(len(loaded.train)), torch.float32)
    except ManyhandsError as error:
        refused = str(error)
    assert "001.png" in refused
    assert "\n" not in refused
