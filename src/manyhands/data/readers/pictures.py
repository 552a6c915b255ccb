"""Images in files or in parts of files: their headers, and their pixels as tensors."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from manyhands.data.readers.scanning import bar_over, evenly
from manyhands.errors import ManyhandsError, UserError, check, kind_of

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats that Pillow may decode; some of its others start programs."""
EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""Pillow's modes that are converted without loss of brightness; of 16 bits and fractions Pillow cuts the range."""

Transform = Callable[[Any], Any]


class EncodedImage(NamedTuple):
    """An encoded image: a file, or a range of its bytes."""

    file: Path
    name: str = ""
    """Its name inside the file, where it is a part; or the words for it, where its bytes are in memory."""
    start: int = 0
    length: int | None = None
    data: bytes | None = None
    """Its bytes, where they are in memory already."""

    @property
    def what(self) -> str:
        """Return what it is called in an error."""
        if self.data is not None:
            return self.name
        return f"'{self.name}' of '{self.file}'" if self.name else f"'{self.file}'"

    def open(self) -> BinaryIO:
        """Open its bytes to read."""
        if self.data is not None:
            return io.BytesIO(self.data)
        if self.length is None:
            return open(self.file, "rb")
        return io.BytesIO(read_range(self.file, self.start, self.length))


def read_range(file: Path, start: int, length: int) -> bytes:
    """Return some bytes of a file, which is opened for them alone, so that threads and forks may read at once."""
    with open(file, "rb") as stream:
        stream.seek(start)
        data = stream.read(length)
    check(len(data) == length, f"'{file}' was cut short while it was in use; begin again")
    return data


@final
class DecodedImages:
    """Images that are decoded when they are asked for: fractions of the shape (3 or 1, height, width).

    With `size` the shorter side becomes so long, and a square is cut from the middle; without it all images must have
    the size of `model`, the first image of the training data. A transform gets the Pillow image instead.
    """

    def __init__(
        self,
        pictures: Sequence[EncodedImage],
        model: EncodedImage,
        *,
        size: int | None = None,
        gray: bool = False,
        transform: Transform | None = None,
    ) -> None:
        check(size is None or 1 <= size <= 1 << 14, f"size of images must be between 1 and {1 << 14}, got {size}")
        self._pictures, self._model = pictures, model
        self._size, self._mode, self._transform = size, "L" if gray else "RGB", transform
        self._sides: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Tensor:
        picture = self._pictures[index]
        image = decoded(picture, self._mode)
        image = image if self._size is None else _resized(image, self._size)
        if self._transform is None:
            self._check_sides(picture, image.size)
            return as_fractions(image)
        return _transformed(self._transform(image), picture)

    def scan_headers(self) -> None:
        """Refuse the first image whose header is damaged, or whose size differs from the first one's."""
        for picture in bar_over(evenly(self._pictures), "looking at the images"):
            sides = sides_of(picture)
            if self._transform is None and self._size is None:
                self._check_sides(picture, sides)

    def _check_sides(self, picture: EncodedImage, sides: tuple[int, int]) -> None:
        if self._size is not None:
            return
        if self._sides is None:
            self._sides = sides_of(self._model)
        (width, height), (first_width, first_height) = sides, self._sides
        check(
            sides == self._sides,
            f"{picture.what} has {width} × {height} pixels, but {self._model.what} has {first_width} × {first_height}; "
            f"size=64 makes all images squares of one size",
        )


def decoded(picture: EncodedImage, mode: str) -> "Image":
    """Return an image in colour, or in gray with the mode `L`."""
    from PIL import Image

    with _readable(picture), picture.open() as stream, Image.open(stream, formats=FORMATS) as image:
        _check_mode(image, picture)
        image.load()
        return image.convert(mode)


def sides_of(picture: EncodedImage) -> tuple[int, int]:
    """Return the width and height that an image's header gives, and verify what can be without decoding it."""
    from PIL import Image

    with _readable(picture), picture.open() as stream, Image.open(stream, formats=FORMATS) as image:
        _check_mode(image, picture)
        sides = image.size
        image.verify()
    return sides


def as_fractions(image: "Image") -> Tensor:
    """Return the pixels of a Pillow image from 0 to 1: (channels, height, width)."""
    array = np.asarray(image, np.float32) / 255
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def _resized(image: "Image", size: int) -> "Image":
    """Scale the shorter side to `size`, and cut a square from the middle."""
    from PIL.Image import Resampling

    width, height = image.size
    shorter = min(width, height)
    left, top = (width - shorter) / 2, (height - shorter) / 2
    return image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + shorter, top + shorter))


def _transformed(value: Any, picture: EncodedImage) -> Tensor:
    """Return what a transform has made of an image as a tensor; a Pillow image becomes fractions."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    check(
        hasattr(value, "getbands") and hasattr(value, "convert"),
        f"transform must return a tensor, a numpy array or a Pillow image, but of {picture.what} it returned "
        f"{kind_of(value)}",
    )
    return as_fractions(value)


def _check_mode(image: "Image", picture: EncodedImage) -> None:
    check(
        image.mode in EIGHT_BITS,
        f"{picture.what} has pixels of Pillow's mode '{image.mode}', but only 8 bits a colour are read; "
        f"save it as such an image, or read it with a Dataset of your own",
    )


@contextmanager
def _readable(picture: EncodedImage) -> Iterator[None]:
    try:
        yield
    except (ManyhandsError, MemoryError):
        raise
    except Exception as error:  # decoders of damaged images raise all kinds of errors
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        if "cannot identify image" in reason:  # in which Pillow names a Python object
            reason = f"it is in none of the formats {', '.join(FORMATS)}"
        raise UserError(f"{picture.what} cannot be read as an image: {reason}") from None
