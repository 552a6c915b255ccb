"""Tar shards: samples by their names, read from their places, and damaged shards named in a sentence."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_data import encoded, picture, write_tar

from manyhands.data import load
from manyhands.errors import ManyhandsError, UserError

Members = dict[str, bytes]


def npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(values))
    return stream.getvalue()


def sample(i: int) -> Members:
    return {
        "png": encoded(picture(i)),
        "cls": str(i % 3).encode(),
        "txt": b"up" if i % 2 else b"down",
        "json": json.dumps({"size": i, "pair": [i, 0.5]}).encode(),
        "npy": npy(np.full(4, i, np.float32)),
        "deg.json": json.dumps(i / 2).encode(),
        "all.json": json.dumps([i % 2, 1]).encode(),
    }


def shards(folder: Path, count: int = 20, change: Callable[[int, Members], None] | None = None) -> Path:
    samples = [sample(i) for i in range(count)]
    for i, members in enumerate(samples):
        if change is not None:
            change(i, members)
    write_tar(folder / "s-0.tar", samples[: count // 2])
    write_tar(folder / "s-1.tar", samples[count // 2 :], first=count // 2)
    return folder


@pytest.mark.parametrize("where", ["", "/s-*.tar"])
def test_images_and_classes(tmp_path: Path, where: str) -> None:
    data = load(f"tar:{shards(tmp_path)}{where},input=jpg|png,target=cls")
    assert (data.shape, data.classes, len(data.train), len(data.test)) == ((3, 5, 6), 3, 17, 3)
    x, y = data.train.batch(torch.arange(17), torch.float64)
    stored = [(255 * image).round().byte().permute(1, 2, 0).numpy().tobytes() for image in x]
    number = {np.asarray(picture(i)).tobytes(): i for i in range(20)}
    assert [number[raw] % 3 for raw in stored] == y.tolist()
    assert data.train.labels is not None
    assert data.train.labels.equal(y)
    assert load(f"tar:{tmp_path}{where},input=png,target=cls,size=4,gray=yes,train=6").shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("target", "shape", "classes", "value"),
    [
        ("cls", (), 3, lambda n: n % 3),
        ("txt", (), 2, lambda n: n % 2),
        ("deg.json", (1,), 0, lambda n: n[:, None] / 2),
        ("all.json", (2,), 0, lambda n: torch.stack([n % 2, torch.ones_like(n)], 1)),
    ],
)
def test_the_kind_of_member_decides_the_target(
    tmp_path: Path, target: str, shape: tuple[int, ...], classes: int, value: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    data = load(f"tar:{shards(tmp_path)},input=npy,target={target}")
    assert (data.shape, data.classes) == ((4,), classes)
    x, y = data.train.batch(torch.arange(len(data.train)), torch.float64)
    assert y.shape[1:] == shape
    torch.testing.assert_close(y, value(x[:, 0]), check_dtype=False)


def test_other_inputs(tmp_path: Path) -> None:
    assert load(f"tar:{shards(tmp_path)},input=json,target=cls").shape == {"size": (), "pair": (2,)}
    data = load(f"tar:{tmp_path},input=txt,target=cls,words=6")
    x, _ = data.train.batch(slice(0, 9), torch.float32)
    assert x.shape == (9, 6)
    assert x.sum(dim=1).eq(1).all()


def test_parts_by_name(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-0.tar", [sample(i) for i in range(8)])
    write_tar(tmp_path / "test-0.tar", [sample(i) for i in range(8, 11)])
    data = load(f"tar:{tmp_path},input=npy,target=cls")
    x, _ = data.test.batch(torch.arange(3), torch.float32)
    assert sorted(x[:, 0].tolist()) == [8, 9, 10]


def test_what_is_beside_the_samples_is_passed_over(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("README"))
        archive.addfile(tarfile.TarInfo(".hidden"))
        folder = tarfile.TarInfo("a.folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for i in range(6):
            for ending, raw in {"npy": npy([i]), "cls": str(i % 2).encode()}.items():
                info = tarfile.TarInfo(f"{'long' * 60}é/{i}.{ending}")
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
    assert len(load(f"tar:{tmp_path / 'a.tar'},input=npy,target=cls").train) == 5


def drop(i: int, members: Members) -> None:
    if i == 13:
        del members["cls"]


def replace(ending: str, raw: bytes) -> Callable[[int, Members], None]:
    def change(i: int, members: Members) -> None:
        if i == 13:
            members[ending] = raw

    return change


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (None, "", "tar needs input=ENDING and target=ENDING"),
        (None, "input=png", "tar needs input=ENDING and target=ENDING"),
        (None, "input=pyd,target=cls", "'pyd' members of tar shards hold pickled Python objects, .* not read"),
        (None, "input=png,target=pkl", "'pkl' members of tar shards hold pickled"),
        (None, "input=mp4,target=cls", "'mp4' members of tar shards cannot be read; choose from jpg"),
        (None, "input=png,target=png", "target of tar must be cls, txt, json or npy"),
        (None, "input=png|npy,target=cls", "'png.npy' mixes images and others"),
        (None, "input=npy,target=cls,size=3", "size and gray of tar are for images"),
        (None, "input=npy,target=cls,words=3", "words=3 of tar needs input=txt"),
        (None, "input=jpg,target=cls", "sample 'part/00000' of '.*s-0.tar' has no jpg, only png, cls, txt"),
        (drop, "input=png,target=cls", "sample 'part/00013' of '.*s-1.tar' has no cls, only png, txt"),
        (replace("cls", b"two"), "input=png,target=cls", r"'part/00013.cls' of '.*' cannot be read as cls: inv"),
        (replace("cls", b"-2"), "input=png,target=cls", r"'part/00013.cls' of '.*' is class -2, but"),
        (replace("deg.json", b"[1]"), "input=png,target=deg.json", r"'part/00013.deg.json' .* the shape \(1,\), but"),
        (replace("deg.json", b"{"), "input=png,target=deg.json", r"'part/00013.deg.json' .* be read as json"),
        (replace("deg.json", b"[1,[2]]"), "input=png,target=deg.json", "must hold finite numbers, .* of one length"),
        (replace("deg.json", b"NaN"), "input=png,target=deg.json", "must hold finite numbers"),
        (replace("deg.json", b'{"a": 1}'), "input=png,target=deg.json", "must be a number or a list of numbers"),
        (replace("txt", b"\xff"), "input=png,target=txt", "cannot be read as txt: 'utf-8' codec"),
        (replace("npy", b"\x93NUMPY"), "input=png,target=npy", "'part/00013.npy' of '.*' cannot be read as npy"),
        (replace("png", b"text"), "input=png,target=cls", "'part/00013.png' of '.*' cannot be read as an image"),
        (replace("png", encoded(picture(1, (9, 9)))), "input=png,target=cls", r"9 × 9 .*; size=64 makes"),
    ],
)  # fmt: skip
def test_bad_shards_are_one_sentence(
    tmp_path: Path, change: Callable[[int, Members], None] | None, options: str, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(f"tar:{shards(tmp_path, change=change)},{options}".rstrip(","))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["tar:gone", "tar:{0}/x-*.tar", "tar:{0}"])
def test_missing_shards_are_named(tmp_path: Path, spec: str) -> None:
    with pytest.raises(UserError, match=r"there is no file or folder|has no file that ends in \.tar"):
        load(f"{spec.format(tmp_path)},input=png,target=cls")


def test_a_pickled_array_is_refused(tmp_path: Path) -> None:
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot be read as npy: Object arrays cannot be loaded"):
        load(f"tar:{shards(tmp_path, change=replace('npy', pickled.getvalue()))},input=png,target=npy")


def test_a_shard_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [sample(i) for i in range(4)])
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        end = max(info.offset_data + info.size for info in archive)
    for length in {0, 100, 512, *range(1024, end, 1536)}:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"a\.tar' (cannot be read as a tar file|is cut short|is damaged)"):
            load(f"tar:{path},input=npy,target=cls")


def test_a_packed_shard_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.cls"))
    with pytest.raises(UserError, match=r"a\.tar' cannot be read as a tar file that is not compressed"):
        load(f"tar:{tmp_path / 'a.tar'},input=npy,target=cls")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good shard."""
    members = ("npy", "cls", "txt", "json")
    samples = [{ending: sample(i)[ending] for ending in members} for i in range(6)]
    return write_tar(tmp_path_factory.mktemp("whole") / "a.tar", samples).read_bytes()


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
def test_any_bytes_are_read_or_refused_in_a_sentence(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    raw = bytearray(whole)
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=6)):
        raw[place] = byte
    path = tmp_path / "a.tar"
    path.write_bytes(raw[: data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))])
    members = data.draw(st.sampled_from(["input=npy,target=cls", "input=json,target=txt", "input=txt,target=npy"]))
    refused = ""
    try:
        loaded = load(f"tar:{path},{members}")
        loaded.train.batch(torch.arange(len(loaded.train)), torch.float32)
    except ManyhandsError as error:
        refused = str(error)
    assert "\n" not in refused
