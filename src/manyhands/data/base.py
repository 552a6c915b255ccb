"""Find a data source by its name and load it: `mnist:train=10000`, `npz:FILE`, `parquet:FILE,label=COLUMN`, …"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands.data.checks import check_finite
from manyhands.data.csv_ import load_csv
from manyhands.data.files import load_npy_dir, load_npz
from manyhands.data.idx import load_idx_dir
from manyhands.data.mnist import load_mnist
from manyhands.data.readers.columnar.features import load_arrow, load_parquet
from manyhands.data.readers.images import images
from manyhands.data.readers.tar import load_tar
from manyhands.data.split import AnySplit, Dataset, Split
from manyhands.data.synthetic import load_synthetic
from manyhands.data.tweets import load_tweets
from manyhands.errors import UserError, check, unknown
from manyhands.spec import convert, parse

LIMITS = {"train": int, "test": int}
COLUMNS = {"text": str, "label": str, "words": int}
FEATURES = COLUMNS | {"features": str}
PIXELS = {"size": int, "gray": bool}
MEMBERS = PIXELS | {"input": str, "target": str, "words": int}
ZOOMS = (1, 2, 4)


def load(spec_text: str, *, image_size: int | None = None, replicate: int = 1, scan: bool = True) -> Dataset:
    """Load the dataset that a spec names; only the training samples are replicated.

    Without `scan` the inputs are not searched for a NaN: so a rank, whose inputs were scanned before it was started,
    reads only the rows it needs of a memory-mapped file.
    """
    check(replicate >= 1, f"replicate must be at least 1, got {replicate}")
    name = spec_text.partition(":")[0].strip()
    sources = _sources()
    if name not in sources:
        unknown("data source", name, sources)
    try:
        dataset = sources[name](spec_text)
    except MemoryError:
        raise UserError(f"'{spec_text}' does not fit into memory; ask for fewer samples") from None
    if scan:
        check_finite(dataset)
    if image_size is not None:
        dataset = _resized(dataset, image_size)
    return replace(dataset, train=replace(dataset.train, copies=replicate))


def _sources() -> dict[str, Callable[[str], Dataset]]:
    return {
        "mnist": lambda text: _limited(load_mnist, **convert(parse(text).options, LIMITS, "mnist")),
        "synthetic": lambda text: load_synthetic(parse(text).options),
        "tweets": lambda text: load_tweets(parse(text).options),
        "idx": lambda text: _from_path(load_idx_dir, text),
        "npz": lambda text: _from_path(load_npz, text),
        "npy": lambda text: _from_path(load_npy_dir, text),
        "csv": lambda text: _from_path(load_csv, text, LIMITS | COLUMNS),
        "parquet": lambda text: _from_path(load_parquet, text, LIMITS | FEATURES),
        "arrow": lambda text: _from_path(load_arrow, text, LIMITS | FEATURES),
        "images": lambda text: _from_path(images, text, LIMITS | PIXELS),
        "tar": lambda text: _from_path(load_tar, text, LIMITS | MEMBERS),
    }


def _from_path(loader: Callable[..., Dataset], text: str, types: Mapping[str, type] = LIMITS) -> Dataset:
    name, _, rest = text.partition(":")
    name = name.strip()
    path, options = _path_and_options(rest, name, types)
    check(bool(path), f"{name} needs a path: write {name}:PATH or {name}:PATH,train=1000,test=200")
    return _limited(loader, Path(os.path.expanduser(path)), **convert(options, types, name))


def _limited(
    loader: Callable[..., Dataset], *path: Path, train: int | None = None, test: int | None = None, **options: Any
) -> Dataset:
    """Load a dataset, and keep the first `train` and `test` rows of its splits, where these numbers are given.

    The classes stay those of all rows, so that the network does not depend on the numbers.
    """
    dataset = loader(*path, **options)

    def first(split: AnySplit, rows: int | None, option: str) -> AnySplit:
        if rows is None:
            return split
        check(1 <= rows <= len(split), f"{option} of {dataset.name} must be between 1 and {len(split)}, got {rows}")
        return split.take(rows)

    return replace(dataset, train=first(dataset.train, train, "train"), test=first(dataset.test, test, "test"))


def _path_and_options(text: str, owner: str, types: Mapping[str, type]) -> tuple[str, dict[str, str]]:
    """Cut known options off the end of a path; a path such as runs/lr=0.1,size=64 is an ordinary one."""
    path, options = text.strip(), dict[str, str]()
    # The name of a column may hold a slash, a number cannot: a slash in a number's place is part of the path.
    slashes = str in types.values()
    while not os.path.exists(os.path.expanduser(path)):
        rest, comma, option = path.rpartition(",")
        key, equals, given = option.strip().partition("=")
        if not (comma and equals and (slashes or "/" not in given)):
            break
        if key not in types:
            if re.fullmatch(r"\w+", key) and "/" not in given:
                unknown(f"option of {owner} named", key, types)
            break
        check(key not in options, f"'{key}' is given twice in '{owner}:{text}'")
        path, options[key] = rest.rstrip(), given.strip()
    return path, options


def _resized(dataset: Dataset, image_size: int) -> Dataset:
    check(isinstance(dataset.train, Split), f"image-size {image_size} works with images in memory only")
    shape = dataset.shape
    check(
        len(shape) == 3 and shape[1] == shape[2],
        f"an image size of {image_size} needs square images, but a sample of {dataset.name} has the shape {shape}",
    )
    allowed = [shape[1] * zoom for zoom in ZOOMS]
    listed = ", ".join(map(str, allowed))
    check(image_size in allowed, f"the image size of {dataset.name} must be one of {listed}, got {image_size}")
    zoom = image_size // shape[1]
    train, test = dataset.train, dataset.test
    assert isinstance(train, Split) and isinstance(test, Split)  # noqa: PT018
    return replace(dataset, train=replace(train, zoom=zoom), test=replace(test, zoom=zoom))
