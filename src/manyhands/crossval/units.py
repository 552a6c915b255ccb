"""The models that a cross-validation trains, one for each fold of a node, and which worker trains which."""

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from manyhands.data import AnySplit, Dataset
from manyhands.data.arrays import PARSING
from manyhands.data.folds import shuffled, stratified
from manyhands.data.order import cut
from manyhands.errors import check
from manyhands.record.files import write_atomically
from manyhands.replica.criterion import OF_CLASSES


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class FoldSettings:
    """Settings of a cross-validation besides the run's config; sent to the workers as JSON."""

    folds: int = 10
    """Folds of each node's training samples."""
    nodes: int = 0
    """Nodes over which the training samples are split first; 0 does not split them."""
    stacked: bool = False
    """Whether a worker trains its folds as one batched model, where the network allows it."""
    threads: int = 1
    """Threads among which a worker divides its batched folds, to use its share of the cores."""

    def __post_init__(self) -> None:
        check(self.folds >= 2, f"folds must be at least 2, got {self.folds}: one part is held out, the others train")
        check(self.nodes >= 0, f"nodes must be at least 1, got {self.nodes}")

    @property
    def num_units(self) -> int:
        """Number of models to train."""
        return self.folds * max(1, self.nodes)

    def __str__(self) -> str:
        return f"{self.folds} folds" if self.nodes < 2 else f"{self.nodes} nodes of {self.folds} folds"


@final
@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """One model to train: the rows of a node without one fold, and the rows of that fold to test it on."""

    node: int
    fold: int
    train: Tensor
    test: Tensor

    @property
    def name(self) -> str:
        """Name of the model's folder."""
        return f"node-{self.node}-fold-{self.fold:02d}"

    def of(self, data: Dataset) -> Dataset:
        """Return the samples for training and testing this model, as views; a repeated sample is tested once."""
        test = replace(data.train, copies=1).rows(self.test)
        return replace(data, train=data.train.rows(self.train), test=test)


def assign(train: AnySplit, settings: FoldSettings, seed: int, *, by_class: bool = True) -> Tensor:
    """Return a (2, rows) tensor of each row's node and fold; copies of a row stay together.

    Every part has its share of each class; with `by_class` false, as where targets are no classes, parts are shuffled.
    """
    places = torch.zeros(2, train.num_rows, dtype=torch.int32)
    labels = train.labels.cpu() if by_class and train.labels is not None else None

    def divided(rows: Tensor, parts: int) -> list[Tensor]:
        return shuffled(len(rows), parts, seed) if labels is None else stratified(labels[rows], parts, seed)

    for node, part in enumerate(divided(torch.arange(train.num_rows), max(1, settings.nodes))):
        places[0, part] = node
        for fold, held in enumerate(divided(part, settings.folds)):
            places[1, part[held]] = fold
    return places


def has_classes(data: Dataset, loss: object) -> bool:
    """Tell whether folds are to have each class in the same proportion: not for losses of other targets."""
    return data.classes > 0 and data.train.labels is not None and (callable(loss) or loss in OF_CLASSES)


def units_of(places: Tensor, settings: FoldSettings) -> list[Unit]:
    """Return the models to train, ordered by node and fold."""
    units = []
    for node in range(max(1, settings.nodes)):
        here = places[0] == node
        for fold in range(settings.folds):
            held = places[1] == fold
            train, test = ((here & chosen).nonzero().flatten() for chosen in (~held, held))
            units.append(Unit(node, fold, train, test))
    return units


def write_places(path: Path, places: Tensor) -> None:
    """Write each row's node and fold for the workers, and for users who look for a sample."""
    content = io.BytesIO()
    np.save(content, places.numpy(), allow_pickle=False)
    write_atomically(path, content.getvalue())


def read_places(path: Path) -> Tensor:
    """Return the node and the fold of each row, as `write_places` wrote them."""
    with PARSING:
        return torch.from_numpy(np.load(path, allow_pickle=False))


@final
@dataclass(frozen=True, slots=True)
class Sharing:
    """How `size` workers share `units` models: whole models each, or with fewer models, several workers per model."""

    units: int
    size: int

    @property
    def in_groups(self) -> bool:
        """Whether each model is trained by a group of workers."""
        return self.size > self.units

    @property
    def largest_group(self) -> int:
        """Largest number of workers that train one model."""
        return max(1, -(-self.size // self.units))

    def group(self, rank: int) -> int:
        """Return the model that the worker's group trains."""
        return next(u for u in range(self.units) if rank < cut(self.size, self.units, u)[1])

    def mine(self, rank: int) -> range:
        """Return the models of a worker; consecutive ones, so that those of a node stay together."""
        if not self.in_groups:
            return range(*cut(self.units, self.size, rank))
        group = self.group(rank)
        return range(group, group + 1)

    def owner(self, unit: int) -> int:
        """Return the first worker that trains this model."""
        if self.in_groups:
            return cut(self.size, self.units, unit)[0]
        return next(rank for rank in range(self.size) if unit in self.mine(rank))
