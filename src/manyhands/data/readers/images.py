"""Image folders: a folder for every class, below `train` and `test` or alone.

Images are decoded when a batch needs them, so that a folder may be larger than the memory; with `--data-workers`
processes decode ahead.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from manyhands.data.folds import Ints, hold_out
from manyhands.data.readers.extras import check_installed
from manyhands.data.readers.labels import shuffled
from manyhands.data.readers.parts import listed_folder, part_folders
from manyhands.data.readers.pictures import SUFFIXES, DecodedImages, EncodedImage, Transform
from manyhands.data.samples.split import SampleSplit
from manyhands.data.split import Dataset
from manyhands.errors import UserError, check, listed


@final
class ImageSamples:
    """Images with their classes, as a map-style dataset."""

    def __init__(self, pictures: DecodedImages, y: Ints) -> None:
        self.labels = torch.from_numpy(y)
        self._pictures = pictures

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pictures[index], int(self.labels[index])

    def scan_headers(self) -> None:
        """Refuse the first image that is seen to be damaged, or to differ in size."""
        self._pictures.scan_headers()


class Labelled(NamedTuple):
    """The images of a part, and the class of each."""

    pictures: list[EncodedImage]
    y: Ints

    def rows(self, rows: Ints) -> "Labelled":
        """Return some rows, in their order."""
        return Labelled([self.pictures[row] for row in rows], self.y[rows])


def images(
    folder: str | Path,
    *,
    size: int | None = None,
    gray: bool = False,
    transform: Transform | None = None,
    test_transform: Transform | None = None,
) -> Dataset:
    """Return the images of FOLDER/train/CLASS and FOLDER/test/CLASS, or of FOLDER/CLASS with a sixth held out.

    With `size` the shorter side of every image becomes so long, and a square is cut from the middle. A transform, of
    torchvision or any function, gets the Pillow image after that, and returns a tensor, an array or an image; what it
    draws depends on the seed, the epoch and the sample alone. Images without one become fractions from 0 to 1.
    """
    train, test, names = read_folder(Path(folder).expanduser())
    model = train.pictures[0]

    def split(part: Labelled, change: Transform | None) -> SampleSplit:
        pictures = DecodedImages(part.pictures, model, size=size, gray=gray, transform=change)
        return SampleSplit(ImageSamples(pictures, part.y), name=f"'{folder}'")

    return Dataset("images", split(train, transform), split(test, test_transform), len(names))


def read_folder(folder: Path) -> tuple[Labelled, Labelled, list[str]]:
    """Return the images to train on, those to test on, and the sorted names of the classes.

    Without a folder for the test a sixth of each class is held out. Both parts are shuffled, always in the same way.
    """
    check_installed("PIL", "pillow", "images", "reading images")
    check(os.path.isdir(folder), f"there is no folder '{folder}'")
    train_folder, test_folder = part_folders(folder)
    if train_folder != folder and not any(path.is_dir() for path in listed_folder(train_folder)):
        train_folder, test_folder = folder, None  # a class of trains
    names = _class_folders(train_folder)
    train = _labelled(train_folder, names, names)
    if test_folder is None:
        for_train, for_test = hold_out(train.y, len(names), f"'{train_folder}'")
        return train.rows(for_train), train.rows(for_test), names
    test = _labelled(test_folder, _class_folders(test_folder, names), names)
    return train.rows(shuffled(len(train.y))), test.rows(shuffled(len(test.y))), names


def _class_folders(folder: Path, known: Sequence[str] | None = None) -> list[str]:
    """Return the sorted names of the folders in a part's folder, which must be the classes."""
    for path in listed_folder(folder):
        check(
            path.is_dir() or path.suffix.lower() not in SUFFIXES,
            f"'{path}' is in no class; images must be in a folder for each class: {folder}/CLASS/{path.name}",
        )
    names = [path.name for path in listed_folder(folder) if path.is_dir()]
    for name in names:
        check(
            known is None or name in known,
            f"'{folder / name}' is a class without training images; the classes are {listed(known or [])}",
        )
    check(len(names) > (known is None), f"'{folder}' must hold a folder of images for each of at least two classes")
    return names


def _labelled(folder: Path, present: Sequence[str], names: Sequence[str]) -> Labelled:
    pictures: list[EncodedImage] = []
    y: list[int] = []
    for name in present:
        files = _images(folder / name)
        check(bool(files), f"class '{name}' is empty: there is no image in '{folder / name}'")
        pictures += map(EncodedImage, files)
        y += [names.index(name)] * len(files)
    return Labelled(pictures, np.array(y, np.int64))


def _images(folder: Path) -> list[Path]:
    """Return the images in a class's folder and the folders below it, sorted."""
    images = []
    for path in listed_folder(folder):
        if path.is_dir():
            images += _images(path)
        elif path.suffix.lower() in SUFFIXES:
            images.append(path)
        else:
            raise UserError(f"'{path}' is no image ({', '.join(SUFFIXES)}); move it out of its class's folder")
    return images
