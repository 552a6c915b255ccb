"""The parts of each example that a plain PyTorch training is made of."""

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from manyhands.config import RunConfig
from manyhands.tasks.setup import load_data

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "own_work"


@dataclass
class Problem:
    """A training, without anything of manyhands."""

    model: nn.Module
    dataset: Dataset
    optimizer: torch.optim.Optimizer
    loss: Callable[..., torch.Tensor]
    batch_size: int
    collate: Callable[..., Any] | None = None
    scheduler: Callable[..., Any] | None = None
    clip: float = 0.0


class Pictures(Dataset):
    """Images that are opened when they are asked for, mirrored at random."""

    def __init__(self, folder: Path, transform: Callable[..., torch.Tensor]) -> None:
        self.transform = transform
        kinds = sorted(p.name for p in (folder / "train").iterdir())
        self.items = [(p, i) for i, kind in enumerate(kinds) for p in sorted((folder / "train" / kind).iterdir())]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        path, label = self.items[i]
        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


def arrays(x: Any, y: Any) -> TensorDataset:
    """Return arrays as a dataset; floats have single precision."""
    kept = [torch.as_tensor(np.asarray(values)) for values in (x, y)]
    return TensorDataset(*(t.float() if t.is_floating_point() else t for t in kept))


def problem(name: str) -> Problem:
    """Return the training of an example."""
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    task = example["task"]
    if name == "resnet_images":
        model = example["resnet18"](3)
        dataset = Pictures(example["make_folder"](), example["mirrored"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr, fused=True)
        return Problem(model, dataset, optimizer, nn.functional.cross_entropy, task.batch_size)
    if name == "characters":
        model = example["Transformer"]()
        (x, y), _ = example["sequences"]()
        optimizer = torch.optim.AdamW(model.parameters(), lr=task.lr, fused=True)
        return Problem(
            model, arrays(x, y), optimizer, task.loss, task.batch_size, scheduler=task.scheduler, clip=task.clip_norm
        )
    if name == "regression":
        model = task.model(None)
        optimizer = torch.optim.AdamW(example["decayed"](model), lr=task.lr)
        return Problem(model, arrays(*example["diabetes"]()[0]), optimizer, nn.functional.mse_loss, task.batch_size)
    if name == "multilabel":
        data = load_data(task, RunConfig(task=name))
        model = task.model(data)
        optimizer = torch.optim.Adam(model.parameters(), lr=task.lr, fused=True)
        loss = nn.functional.binary_cross_entropy_with_logits
        return Problem(
            model,
            TensorDataset(*data.train.batch(slice(0, len(data.train)), torch.float32)),
            optimizer,
            loss,
            task.batch_size,
        )
    if name == "sequences":
        loader: DataLoader = example["loaders"]()[0]
        model = example["Reader"]()
        optimizer = torch.optim.Adam(model.parameters(), lr=task.lr, fused=True)
        return Problem(model, loader.dataset, optimizer, task.loss, task.batch_size, collate=loader.collate_fn)
    assert name == "fine_tuning", name
    data = load_data(task, RunConfig(task=name))
    model = task.model(data)
    groups = [{k: v for k, v in group.items() if k != "from_epoch"} for group in example["groups"](model)]
    optimizer = torch.optim.SGD(groups, lr=task.lr, momentum=0.9)
    dataset = TensorDataset(*data.train.batch(slice(0, len(data.train)), torch.float32))
    return Problem(model, dataset, optimizer, nn.functional.cross_entropy, task.batch_size)
