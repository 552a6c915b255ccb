"""Tar shards in the manner of WebDataset: samples are read from their place in the shard, in the run's own order.

Nothing is ever unpickled.
"""

import glob
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from manyhands.data.arrays import PARSING, as_tensor
from manyhands.data.readers.columnar.columns import names_in
from manyhands.data.readers.extras import check_installed
from manyhands.data.readers.labels import class_names, class_numbers, hold_out_any, shorten, shuffled
from manyhands.data.readers.parts import by_name, files_in
from manyhands.data.readers.pictures import SUFFIXES, DecodedImages, read_range
from manyhands.data.readers.shards import Member, Sample, index_shards
from manyhands.data.readers.words import WORDS, check_words, hashed
from manyhands.data.samples.split import SampleSplit
from manyhands.data.split import MAX_CLASSES, Dataset
from manyhands.errors import UserError, check, kind_of, shown
from manyhands.replica.nested import Nested

IMAGES = tuple(suffix.removeprefix(".") for suffix in SUFFIXES)
NUMBER, TEXT, JSON, NPY = ("cls", "cls2", "id", "index"), ("txt", "text"), ("json", "jsn"), ("npy",)
PICKLED = ("pyd", "pkl", "pickle", "pth", "pt")
READABLE = (*IMAGES, *NUMBER[:1], *TEXT[:1], *JSON[:1], *NPY)
MOST_BYTES = 1 << 24
"""Size of the largest target; targets are kept in memory."""


def load_tar(
    source: Path,
    *,
    input: str | None = None,
    target: str | None = None,
    size: int | None = None,
    gray: bool = False,
    words: int | None = None,
) -> Dataset:
    """Load the samples of a tar file, of a folder of them, or of those that a pattern such as `train-*.tar` matches."""
    if input is None or target is None:
        raise UserError(f"tar needs input=ENDING and target=ENDING, such as input=jpg,target=cls; {_choices()}")
    inputs, targets = _endings(input), _endings(target)
    check(
        not any(ending in IMAGES for ending in targets) and not {*inputs} & {*targets},
        f"target of tar must be cls, txt, json or npy, and another ending than input, got target={target}",
    )
    parts = [index_shards(shards, inputs, targets) for shards in _shards(source)]
    values = [[(sample.target, _target(sample.target)) for sample in part] for part in parts]
    ys, classes = _targets(values, f"the members {target} of '{source}'")
    if not parts[1]:
        rows = hold_out_any(ys[0].numpy() if classes else None, len(ys[0]), f"'{source}'")
        parts, ys = [[parts[0][i] for i in part] for part in rows], [ys[0][torch.from_numpy(part)] for part in rows]
    else:
        order = [shuffled(len(part)) for part in parts]
        parts = [[part[i] for i in rows] for part, rows in zip(parts, order, strict=True)]
        ys = [y[torch.from_numpy(rows)] for y, rows in zip(ys, order, strict=True)]
    train, test = (
        ShardSamples(part, y, _reader(inputs, part, parts[0], size=size, gray=gray, words=words))
        for part, y in zip(parts, ys, strict=True)
    )
    name = f"'{source}'"
    return Dataset("tar", SampleSplit(train, name=name), SampleSplit(test, name=name), classes)


@final
class ShardSamples:
    """Samples of shards as a map-style dataset; the targets are in memory."""

    def __init__(self, samples: Sequence[Sample], y: Tensor, inputs: "DecodedImages | Members") -> None:
        self._samples, self._y, self._inputs = samples, y, inputs
        self.labels = None if y.is_floating_point() else y

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Nested, Tensor]:
        return self._inputs[index], self._y[index]

    def scan_headers(self) -> None:
        """Refuse the first input that is seen to be damaged."""
        self._inputs.scan_headers()


@final
class Members:
    """Inputs that are no images, each parsed when it is asked for."""

    def __init__(self, members: Sequence[Member], parse: Callable[[Member], Nested]) -> None:
        self._members, self._parse = members, parse

    def __getitem__(self, index: int) -> Nested:
        return self._parse(self._members[index])

    def scan_headers(self) -> None:
        """Parse the first input, for all of them would have to be read."""
        self._parse(self._members[0])


def _shards(source: Path) -> tuple[list[Path], list[Path]]:
    if source.exists():
        return files_in(source, (".tar",))
    files = sorted(map(Path, glob.glob(str(source))))
    check(bool(files), f"there is no file or folder '{source}', nor a file that it matches as a pattern")
    return by_name(files, str(source))


def _endings(text: str) -> list[str]:
    endings = [name.removeprefix(".").lower() for name in names_in(text)]
    for ending in endings:
        last = ending.rpartition(".")[2]
        check(
            last not in PICKLED,
            f"'{ending}' members of tar shards hold pickled Python objects, which could run any code, so they are not "
            f"read; save them as npy or json",
        )
        known = (*IMAGES, *NUMBER, *TEXT, *JSON, *NPY)
        check(last in known, f"'{ending}' members of tar shards cannot be read; {_choices()}")
    kinds = {ending.rpartition(".")[2] in IMAGES for ending in endings}
    check(len(kinds) == 1, f"'{text}' mixes images and others; give endings of one kind")
    return endings


def _choices() -> str:
    return f"choose from {', '.join(READABLE)}"


def _reader(
    inputs: Sequence[str],
    part: Sequence[Sample],
    train: Sequence[Sample],
    *,
    size: int | None,
    gray: bool,
    words: int | None,
) -> DecodedImages | Members:
    members = [sample.input for sample in part]
    kinds = {ending.rpartition(".")[2] for ending in inputs}
    is_text = bool(kinds & {*TEXT})
    check(words is None or is_text, f"words={words} of tar needs input=txt, whose words are to be hashed")
    if kinds & {*IMAGES}:
        check_installed("PIL", "pillow", "images", "reading images")
        return DecodedImages(members, train[0].input, size=size, gray=gray)
    check(size is None and not gray, f"size and gray of tar are for images, but input={'|'.join(inputs)}")
    places = WORDS if words is None else words
    if is_text:
        check_words(places, 1, "tar", "a sample")
    return Members(members, lambda member: _parsed_input(member, places))


def _parsed_input(member: Member, words: int) -> Nested:
    value = _parsed(member)
    if isinstance(value, str):
        return hashed([value], words)[0].float()
    return value.float() if isinstance(value, Tensor) and not value.is_floating_point() and value.ndim == 0 else value


def _target(member: Member) -> Any:
    check(
        (member.length or 0) <= MOST_BYTES,
        f"{member.what} has {member.length} bytes, but a target, which is kept in memory, may have {MOST_BYTES}",
    )
    return _parsed(member)


def _targets(parts: Sequence[Sequence[tuple[Member, Any]]], what: str) -> tuple[list[Tensor], int]:
    """Return the targets of every part, and the number of classes; 0 where they are no classes.

    Whole numbers are classes as they are, texts are sorted; a fraction becomes a row of one.
    """
    every = [pair for part in parts for pair in part]
    texts = [value for _, value in every if isinstance(value, str)]
    if len(texts) == len(every):
        return _text_classes(parts, what)
    model, first = every[0]
    for member, value in every:
        if not isinstance(value, Tensor):
            raise UserError(f"{member.what} must be a number or a list of numbers, got {kind_of(value)}")
        if value.shape != first.shape:
            shapes = tuple(value.shape), tuple(first.shape)
            raise UserError(f"{member.what} has the shape {shapes[0]}, but {model.what} has {shapes[1]}")
    whole = not any(value.is_floating_point() for _, value in every)
    if first.ndim or not whole:
        stacked = [torch.stack([value if whole else value.double() for _, value in part]) for part in parts if part]
        return [y if first.ndim else y[:, None] for y in stacked], 0
    ys = [torch.tensor([int(value) for _, value in part]) for part in parts if part]
    for (member, _), label in zip(every, torch.cat(ys).tolist(), strict=True):
        if not 0 <= label < MAX_CLASSES:
            raise UserError(f"{member.what} is class {label}, but classes are numbered from 0 to {MAX_CLASSES - 1}")
    return ys, 1 + max(int(y.max()) for y in ys)


def _text_classes(parts: Sequence[Sequence[tuple[Member, Any]]], what: str) -> tuple[list[Tensor], int]:
    names = class_names([value for _, value in parts[0]], what)
    known = set(names)
    for member, value in (pair for part in parts[1:] for pair in part):
        check(value in known, f"{member.what} is '{shorten(value)}', which no sample to train on has")
    return [torch.from_numpy(class_numbers([value for _, value in p], names)) for p in parts if p], len(names)


def _parsed(member: Member) -> Any:
    """Return a member as a text, a number, a tensor or a nest of these."""
    data, kind = read_range(member.file, member.start, member.length or 0), member.name.rpartition(".")[2].lower()
    try:
        if kind in NPY:
            with PARSING:
                return as_tensor(npy.read_array(io.BytesIO(data), allow_pickle=False), member.what)
        text = data.decode("utf-8-sig").strip()
        if kind in NUMBER:
            return torch.tensor(int(text))
        return _nested(json.loads(text), member.what) if kind in JSON else text
    except UserError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # numpy raises several kinds of errors of damaged headers
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{member.what} cannot be read as {kind}: {reason}") from None


def _nested(value: Any, what: str) -> Any:
    """Return JSON's numbers and lists of numbers as tensors, in dicts of them too; a text stays."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {name: _nested(part, what) for name, part in value.items()}
    if isinstance(value, bool | int | float | list):
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind in "biuf" and np.isfinite(array).all():
            return as_tensor(array.copy(), what)
    raise UserError(
        f"{what} must hold finite numbers, a text, or lists of numbers of one length, but it is {shown(value)}"
    )
