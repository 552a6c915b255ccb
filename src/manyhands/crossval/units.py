"""The pieces of work of a cross-validation, each a fold of a node, and which worker does which."""

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from manyhands.data import Dataset, Split
from manyhands.data.arrays import PARSING
from manyhands.data.folds import check_classes, stratified
from manyhands.data.order import cut
from manyhands.errors import check
from manyhands.record import write_atomically


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class FoldsAsk:
    """What is asked of every worker besides the run's config; plain JSON."""

    folds: int = 10
    """Parts that the training samples of a node are cut into."""
    nodes: int = 0
    """Nodes that the training samples are cut over first; 0 leaves them whole."""
    stacked: bool = False
    """Whether a worker trains its folds as one batched model, where the network allows it."""

    threads: int = 1
    """Threads over which a worker spreads the stack of its folds, to use its share of the cores."""

    def __post_init__(self) -> None:
        check(self.folds >= 2, f"folds must be at least 2, got {self.folds}: one part is held out, the others train")
        check(self.nodes >= 0, f"nodes must be at least 1, got {self.nodes}")

    @property
    def num_units(self) -> int:
        """How many models are trained."""
        return self.folds * max(1, self.nodes)


@final
@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """One model to train: the rows of a node but for one fold, and that fold to test it on."""

    node: int
    fold: int
    train: Tensor
    test: Tensor

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"node-{self.node}-fold-{self.fold:02d}"

    def of(self, data: Dataset) -> Dataset:
        """Return the samples to train and to test this model on, as views; a repeated sample is tested once."""
        test = replace(data.train, copies=1).rows(self.test)
        return replace(data, train=data.train.rows(self.train), test=test)


def check_units(train: Split, ask: FoldsAsk) -> None:
    """Refuse more folds or nodes than the rarest class can be shared out over."""
    cuts = f"{ask.folds} folds" if ask.nodes < 2 else f"{ask.nodes} nodes of {ask.folds} folds"
    check_classes(train.y, ask.num_units, cuts)


def assign(train: Split, ask: FoldsAsk, seed: int) -> Tensor:
    """Return the node and the fold of each row, as two rows of numbers; copies of a row stay together."""
    places = torch.zeros(2, len(train.y), dtype=torch.int32)
    for node, part in enumerate(stratified(train.y, max(1, ask.nodes), seed)):
        places[0, part] = node
        for fold, held in enumerate(stratified(train.y[part.to(train.y.device)], ask.folds, seed)):
            places[1, part[held]] = fold
    return places


def units_of(places: Tensor, ask: FoldsAsk) -> list[Unit]:
    """Return the models to train, the folds of a node one after the other."""
    units = []
    for node in range(max(1, ask.nodes)):
        here = places[0] == node
        for fold in range(ask.folds):
            held = places[1] == fold
            train, test = ((here & chosen).nonzero().flatten() for chosen in (~held, held))
            units.append(Unit(node, fold, train, test))
    return units


def write_places(path: Path, places: Tensor) -> None:
    """Keep them for the workers, which then need not cut again, and for whoever asks where a sample was."""
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
    """How `size` workers share `units` models: whole models where these are enough, else several workers to each."""

    units: int
    size: int

    @property
    def in_groups(self) -> bool:
        """Whether a model is trained by a group of workers."""
        return self.size > self.units

    @property
    def largest_group(self) -> int:
        """The most workers that train one model."""
        return max(1, -(-self.size // self.units))

    def group(self, rank: int) -> int:
        """Return the group of a worker: the model it helps to train, or just itself."""
        if not self.in_groups:
            return rank
        return next(u for u in range(self.units) if rank < cut(self.size, self.units, u)[1])

    def mine(self, rank: int) -> range:
        """Return the models of a worker; those of a node stay together."""
        if not self.in_groups:
            return range(*cut(self.units, self.size, rank))
        group = self.group(rank)
        return range(group, group + 1)

    def owner(self, unit: int) -> int:
        """Return the first worker that trains this model."""
        if self.in_groups:
            return cut(self.size, self.units, unit)[0]
        return next(rank for rank in range(self.size) if unit in self.mine(rank))
