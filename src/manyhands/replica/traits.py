"""What a network does besides its arithmetic, found out by trial forward passes."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.replica.random import KeyedDropout

TRIAL_SEED = 0


@dataclass(frozen=True)
class Traits:
    """Facts about a network that decide whether workers can share its batches."""

    moving: tuple[str, ...]
    """Buffers that a training forward pass changes, such as BatchNorm's running statistics."""
    global_random: bool
    """Whether it draws from a process-wide generator (`F.dropout`, `torch.rand`, dropout inside an LSTM)."""
    batch_statistics: tuple[str, ...]
    """The first layer whose output for a row depends on the other rows of the batch (BatchNorm), if there is one."""
    remembers: bool
    """Whether a call changes the next one but by buffers: a generator or a hidden state of the model's own."""


def traits_of(module: nn.Module, x: Tensor) -> Traits:
    """Run a copy of the network on `x` and see what changed; then once more with other rows beside the first."""
    trial = copy.deepcopy(module).train()
    before = {name: b.clone() for name, b in trial.named_buffers()}
    with untouched_generator(x.device) as moved:
        trial(x)
        global_random = moved()
    changed = tuple(name for name, b in trial.named_buffers() if not torch.equal(before[name], b))
    return Traits(changed, global_random, first_mixing_layer(module, x), _remembers(module, x))


def first_mixing_layer(module: nn.Module, x: Tensor) -> tuple[str, ...]:
    """Find the first layer whose output for row 0 changes when only the other rows of its input do."""
    if len(x) < 2:
        return ()
    beside_others, beside_itself = (_calls(module, rows) for rows in (x, x[:1].expand_as(x).contiguous()))
    for (name, inputs, output), (_, other_inputs, other_output) in zip(beside_others, beside_itself, strict=False):
        if _close(inputs, other_inputs) and not _close(output, other_output):
            return (name,)
    return ()


def _remembers(module: nn.Module, x: Tensor) -> bool:
    """Tell whether a second pass over the same rows, with equal buffers and draws, gives another output."""
    trial = copy.deepcopy(module).train()
    places = [(m._buffers, name, b.clone()) for m in trial.modules() for name, b in m._buffers.items() if b is not None]
    outputs = []
    for _ in range(2):
        for buffers, name, b in places:
            buffers[name] = b.clone()
        _start_draws(trial, len(x))
        with untouched_generator(x.device):
            outputs.append(_first_rows(trial(x), len(x)))
    return not _close(*outputs)


@contextmanager
def untouched_generator(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Seed the process-wide generators of torch, numpy and Python in here, and restore them.

    The value tells whether one of them was drawn from since it was asked last.
    """
    of_numpy, of_python = np.random.get_state(), random.getstate()

    def moved() -> bool:
        before, states[:] = states[0], [_generator_states(device)]
        return before != states[0]

    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(TRIAL_SEED)
        np.random.seed(TRIAL_SEED)
        random.seed(TRIAL_SEED)
        states = [_generator_states(device)]
        try:
            yield moved
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


Call = tuple[str, list[Tensor], list[Tensor]]
"""Of one call of a layer: its name, and row 0 of what it was given and of what it returned."""


def _calls(module: nn.Module, x: Tensor) -> list[Call]:
    """Run a copy of the network; return the calls of its layers in the order in which they ended."""
    trial, calls = copy.deepcopy(module).train(), list[Call]()
    for name, layer in trial.named_modules():
        label = f"layer '{name}' ({type(layer).__name__})" if name else type(layer).__name__
        layer.register_forward_hook(_note(label, len(x), calls), with_kwargs=True)
    _start_draws(trial, len(x))
    with untouched_generator(x.device):
        trial(x)
    return calls


def _start_draws(module: nn.Module, rows: int) -> None:
    """Let its dropout layers begin with the first draw of a step."""
    for layer in module.modules():
        if isinstance(layer, KeyedDropout):
            layer.draws.at(TRIAL_SEED, 0, rows)


def _note(label: str, rows: int, calls: list[Call]) -> Any:
    def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append((label, _first_rows((args, kwargs), rows), _first_rows(output, rows)))

    return hook


def _first_rows(value: Any, rows: int) -> list[Tensor]:
    """Copy row 0 of every tensor with so many rows in a nest of tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value[0].detach().clone()] if value.dim() and len(value) == rows else []
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in _first_rows(part, rows)] if isinstance(value, tuple | list) else []


def _close(some: list[Tensor], others: list[Tensor]) -> bool:
    """Tell whether they are equal but for what another kernel may round differently."""
    for a, b in zip(some, others, strict=False):
        if a.shape != b.shape:
            return False
        scale = float(a.abs().max()) if a.is_floating_point() and a.numel() else 0.0
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale if scale < float("inf") else 0.0, equal_nan=True):
            return False
    return True


def _generator_states(device: torch.device) -> tuple[bytes, str, object]:
    of_torch = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return of_torch.numpy().tobytes(), repr(np.random.get_state()), random.getstate()
