"""Weights to begin with, from a safetensors file: those whose name and shape the network has."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from manyhands.errors import UserError, check
from manyhands.record.run import RunDir

UNSAFE = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
"""Endings of files whose reading may run code."""
ENDING = ".safetensors"


def init_path(text: str, out: Path) -> str:
    """Return the absolute path of the weights that `text` names: a safetensors file, or a run in `out`."""
    suffix = Path(text).suffix.lower()
    check(
        suffix not in UNSAFE,
        f"init '{text}' is a {suffix} file, and reading one may run code that is hidden in it; "
        "save its state_dict() with safetensors.torch.save_file and give that file",
    )
    if suffix == ENDING or os.path.isfile(text):
        check(os.path.isfile(text), f"there is no file '{text}' to take initial weights from")
        return os.path.abspath(text)
    try:
        run = RunDir.find(out, text)
    except UserError as error:
        raise UserError(f"init '{text}' is neither a safetensors file nor a run: {error}") from None
    check(run.model.is_file(), f"run '{run.path.name}' has no weights to begin with: there is no '{run.model}'")
    return str(run.model.resolve())


@torch.no_grad()
def take_weights(module: nn.Module, path: str) -> None:
    """Copy the file's tensors into the network's of the same name and shape; the others keep their random values."""
    state, tensors = module.state_dict(), _read(path, _state_shapes(module))
    for name, t in tensors.items():
        state[name].copy_(t)


def untaken(module: nn.Module, path: str) -> list[str]:
    """Return the names of the network's tensors that the file does not have in their shape."""
    return [name for name in module.state_dict() if name not in _fitting(path, _state_shapes(module))]


def _read(path: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    names = _fitting(path, shapes)
    with safe_open(path, framework="pt") as f:
        return {name: f.get_tensor(name) for name in names}


def _fitting(path: str, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the names of the file's tensors that fit; refuse a file of which none does."""
    try:
        with safe_open(path, framework="pt") as f:
            stored = {name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"the initial weights '{path}' cannot be read as safetensors: {error}") from None
    names = [name for name, shape in stored.items() if shapes.get(name) == shape]
    check(
        bool(names),
        f"none of the {len(stored)} tensors in '{path}' has the name and shape of one of the model; it has "
        f"{_example(stored)}, the model {_example(shapes)}",
    )
    return names


def _state_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in module.state_dict().items()}


def _example(shapes: Mapping[str, tuple[int, ...]]) -> str:
    name, shape = next(iter(shapes.items()), ("no tensors", ()))
    return f"'{name}' {shape}" if shapes else name
