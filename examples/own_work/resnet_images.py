"""ResNet-18 on a folder of images.

manyhands train examples/own_work/resnet_images.py:task --engine mpi --workers 2 --steps 8
"""

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import manyhands

FOLDER = Path(tempfile.gettempdir()) / "manyhands-shapes"
SIZE, CLASSES = 32, ("disc", "ring", "square")


def draw(kind: str, rng: np.random.Generator) -> Image.Image:
    """Draw a bright shape of a random place and size on noise."""
    y, x = np.mgrid[:SIZE, :SIZE] - rng.integers(12, 20, (2, 1, 1))
    away = np.maximum(abs(x), abs(y)) if kind == "square" else np.hypot(x, y)
    radius = rng.integers(5, 9)
    inside = (away < radius) & ((kind != "ring") | (away > radius - 3))
    colours = rng.integers(0, 120, (SIZE, SIZE, 3)) + 120 * inside[..., None]
    return Image.fromarray(colours.astype(np.uint8))


def make_folder() -> Path:
    """Write 60 training and 15 test images of each class, once; every rank may come here at the same time."""
    if not FOLDER.exists():
        begun = Path(tempfile.mkdtemp(dir=FOLDER.parent))
        rng = np.random.default_rng(0)
        for part, count in (("train", 60), ("test", 15)):
            for kind in CLASSES:
                (begun / part / kind).mkdir(parents=True)
                for i in range(count):
                    draw(kind, rng).save(begun / part / kind / f"{i:03}.png")
        with contextlib.suppress(OSError):  # another rank was faster, and drew the same
            begun.rename(FOLDER)
    return FOLDER


def mirrored(image: Image.Image) -> Tensor:
    """Turn an image into a tensor, mirrored at random: the draw depends on seed, epoch and image alone."""
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    return x.flip(2) if torch.rand(()) < 0.5 else x


class Block(nn.Module):
    """Two convolutions and a short cut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        cut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.cut = nn.Identity() if before == width and stride == 1 else cut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.cut(x))


def resnet18(classes: int, width: int = 64) -> nn.Module:
    """Build the network of He et al. (2016) for small images, 11 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        for block in range(2):
            layers.append(Block(before, width << stage, 2 if stage and not block else 1))
            before = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


task = manyhands.Task(
    model=lambda data: resnet18(data.classes),
    data=lambda: manyhands.images(make_folder(), transform=mirrored),
    optimizer="adamw",
    lr=0.001,
    batch_size=36,
    epochs=4,
)
narrow = replace(task, model=lambda data: resnet18(data.classes, width=8))
"""The same with a sixty-fourth of the weights, for a quick look."""

if __name__ == "__main__":
    record = manyhands.train(task, engine="mpi", workers=2, keep_best=True)
    print(f"{100 * record.test_accuracy:.1f} % after step {record.best_step}, {record.samples_per_s:,.0f} images/s")
