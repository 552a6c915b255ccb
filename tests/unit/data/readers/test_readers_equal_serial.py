"""Real data on several workers gives what one worker gives: to round-off, and with `--exact` to the last bit."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import encoded, image_folder, picture, write_table, write_tar
from safetensors.torch import load_file
from torch import nn

from manyhands import Dataset, RunRecord, Task, images, parquet
from manyhands import train as run
from manyhands.record.run import RunDir

pytestmark = pytest.mark.timeout(180)
N = 31


def network(data: Dataset) -> nn.Module:
    """Build a network for inputs of any shape, with as many outputs as there are classes or numbers to predict."""
    shape = data.shape["features"] if isinstance(data.shape, dict) else data.shape
    y = data.train.batch(slice(0, 1), torch.float32)[1]
    outputs = data.classes or y.shape[1]
    layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 5), nn.Tanh(), nn.Linear(5, outputs))
    return _Named(layers) if isinstance(data.shape, dict) else layers


class _Named(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, features: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(features) + pair.mean(dim=1, keepdim=True)
        return out


def augment(image: Image.Image) -> torch.Tensor:
    """Turn, shift and add noise, with draws of Python's, numpy's and torch's generators."""
    import random

    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    array = np.asarray(image, np.float32) / 255 + np.random.rand()
    return torch.from_numpy(array).permute(2, 0, 1) + torch.randn(3, image.height, image.width)


def plain_images(folder: Path) -> Any:
    return f"images:{image_folder(folder, {'a': 17, 'b': 14}, (8, 7))},size=5"


def augmented_images(folder: Path) -> Any:
    image_folder(folder, {"a": 17, "b": 14}, (8, 7))
    return lambda: images(folder, size=5, transform=augment)


def table(folder: Path) -> Path:
    columns = {
        "a": np.arange(N) / 7,
        "b": np.sin(np.arange(N)),
        "kind": [["x", "y", "z"][i % 3] for i in range(N)],
        "one": np.arange(N) % 2,
        "two": np.arange(N) % 3 == 0,
        "value": np.cos(np.arange(N)),
        "pair": [[i / 9, 1.0] for i in range(N)],
        "text": [f"w{i % 5} and {i % 3}" for i in range(N)],
    }
    return write_table(folder / "t.parquet", columns)


def rows(folder: Path) -> Any:
    path = table(folder)
    return lambda: parquet(path, inputs="pair", target="kind")


def shards(folder: Path) -> Any:
    write_tar(folder / "s.tar", [{"png": encoded(picture(i)), "cls": str(i % 3).encode()} for i in range(N)])
    return f"tar:{folder},input=png,target=cls"


SOURCES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "images": (plain_images, "cross-entropy"),
    "augmented images": (augmented_images, "cross-entropy"),
    "classes": (lambda folder: f"parquet:{table(folder)},label=kind,features=a|b", "cross-entropy"),
    "texts": (lambda folder: f"parquet:{table(folder)},label=one,text=text,words=16", "cross-entropy"),
    "regression": (lambda folder: f"parquet:{table(folder)},label=value,features=a|b", "mse"),
    "several labels": (lambda folder: f"parquet:{table(folder)},label=one|two,features=a|b", "binary-cross-entropy"),
    "lists beside": (lambda folder: f"parquet:{table(folder)},label=kind,features=a|b|pair", "cross-entropy"),
    "rows": (rows, "cross-entropy"),
    "shards": (shards, "cross-entropy"),
}
READ_SINGLY = ("images", "augmented images", "rows", "shards")
CASES = [(name, workers) for name in SOURCES for workers in ((0, 2) if name in READ_SINGLY else (0,))]


def weights(record: RunRecord, folder: Path) -> torch.Tensor:
    stored = load_file(RunDir(folder / record.id).model)
    return torch.cat([stored[name].flatten() for name in sorted(stored)])


@pytest.mark.parametrize(("name", "data_workers"), CASES)
def test_workers_equal_serial(tmp_path: Path, name: str, data_workers: int) -> None:
    make, loss = SOURCES[name]
    task = Task(model=network, data=make(tmp_path / "data"), loss=loss, lr=0.1, batch_size=7, epochs=2)
    common: dict[str, Any] = {"out": tmp_path, "blas_threads": 1}
    several = {"engine": "threads", "workers": 3, "data_workers": data_workers}
    one, more = (run(task, dtype="float64", **common, **options) for options in ({"engine": "serial"}, several))
    torch.testing.assert_close(weights(more, tmp_path), weights(one, tmp_path), rtol=0, atol=1e-12)
    assert more.test_loss == pytest.approx(one.test_loss, rel=1e-12)
    one, more = (run(task, exact=True, **common, **options) for options in ({"engine": "serial"}, several))
    assert more.weights_sha256 == one.weights_sha256
    assert not more.warnings


def test_augmented_images_equal_serial_on_mpi(tmp_path: Path) -> None:
    image_folder(tmp_path / "data", {"a": 17, "b": 14}, (8, 7))
    file = tmp_path / "task.py"
    file.write_text(
        "import numpy as np, torch\nfrom torch import nn\nfrom manyhands import Task, images\n"
        "def noisy(image):\n"
        "    return torch.from_numpy(np.asarray(image, np.float32)).permute(2, 0, 1) / 255 + torch.randn(3, 5, 5)\n"
        f"data = lambda: images({str(tmp_path / 'data')!r}, size=5, transform=noisy)\n"
        "task = Task(model=lambda data: nn.Sequential(nn.Flatten(), nn.Linear(75, 2)), data=data, batch_size=7)\n"
    )
    common: dict[str, Any] = {"out": tmp_path, "exact": True, "blas_threads": 1}
    one, more = (
        run(f"{file}:task", **common, **options)
        for options in ({"engine": "serial"}, {"engine": "mpi", "workers": 2, "data_workers": 1})
    )
    assert more.weights_sha256 == one.weights_sha256


def test_the_same_rows_from_other_files_are_the_same_run(tmp_path: Path) -> None:
    columns = {"a": np.arange(N) / 7, "b": np.arange(N) % 5, "kind": [["x", "y", "z"][i % 3] for i in range(N)]}
    digests = set()
    for spec, name in (("parquet", "t.parquet"), ("arrow", "t.arrow"), ("arrow", "t.stream.arrow"), ("csv", "t.csv")):
        data = f"{spec}:{write_table(tmp_path / name, columns)},label=kind"
        record = run(Task(model=network, data=data, batch_size=7), engine="serial", out=tmp_path, blas_threads=1)
        digests.add(record.weights_sha256)
    assert len(digests) == 1


def test_a_sample_that_breaks_while_it_is_read_is_named(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "data", {"a": 9, "b": 9}, kind="jpg")
    broken = folder / "b" / "004.jpg"
    broken.write_bytes(broken.read_bytes()[:-60])  # whose header is whole
    task = Task(model=network, data=f"images:{folder}", batch_size=5)
    for data_workers in (0, 1):
        with pytest.raises(Exception, match=r"b/004\.jpg' cannot be read as an image: image file is truncated"):
            run(task, engine="threads", workers=2, out=tmp_path, data_workers=data_workers, blas_threads=1)
