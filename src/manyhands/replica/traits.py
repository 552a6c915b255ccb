"""Side effects of a network, found by trial forward passes: changed buffers, random draws, mixed rows, memory."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.replica.batchnorm import fixed_norms
from manyhands.replica.nested import Nested, call, map_tensors, num_rows, tensors_in
from manyhands.replica.random import KeyedDropout, seed_generators

TRIAL_SEED = 0


@dataclass(frozen=True)
class Traits:
    """Properties of a network that decide whether workers can share its batches."""

    moving: tuple[str, ...]
    """Buffers that a training forward pass changes, such as BatchNorm's running statistics."""
    global_random: bool
    """Whether a pass draws from a process-wide generator (`F.dropout`, `torch.rand`, dropout inside an LSTM)."""
    batch_statistics: tuple[str, ...]
    """The first layer whose output for a row depends on the other rows of the batch, if there is one.

    BatchNorm layers over the global batch do not count: every row sees the same others, however it is cut.
    """
    remembers: bool
    """Whether a pass affects the next one other than by buffers: the model's own generator or hidden state."""


def traits_of(module: nn.Module, x: Nested, rows: int | None = None) -> Traits:
    """Return the traits of a network, from trial passes of copies over `x`, which has `rows` samples."""
    rows = num_rows(x) if rows is None else rows
    trial = copy.deepcopy(module).train()
    buffers = [
        (m._buffers, name, b.clone()) for m in trial.modules() for name, b in m._buffers.items() if b is not None
    ]
    _reset(buffers)  # before both passes: where layers share a buffer, each gets its own
    before = {name: b.clone() for name, b in module.named_buffers()}
    output, global_random = _trial_pass(trial, x, rows)
    after = dict(trial.named_buffers())
    changed = tuple(name for name, b in before.items() if not torch.equal(after[name], b))
    _reset(buffers)
    remembers = not _close(output, _trial_pass(trial, x, rows)[0])
    return Traits(changed, global_random, _first_mixing_layer(module, x, rows), remembers)


def _reset(buffers: list[tuple[dict[str, Tensor | None], str, Tensor]]) -> None:
    for of_layer, name, b in buffers:
        of_layer[name] = b.clone()


def _first_mixing_layer(module: nn.Module, x: Nested, rows: int) -> tuple[str, ...]:
    """Return the first layer whose output for row 0 changes when only the other rows of its input do."""
    if rows < 2:
        return ()

    def only_first(t: Tensor) -> Tensor:
        return t[:1].expand_as(t).contiguous() if t.dim() and len(t) == rows else t

    beside_others, beside_itself = (_calls(module, given, rows) for given in (x, map_tensors(only_first, x)))
    for (name, inputs, output), (_, other_inputs, other_output) in zip(beside_others, beside_itself, strict=False):
        if _close(inputs, other_inputs) and not _close(output, other_output):
            return (name,)
    return ()


def _trial_pass(trial: nn.Module, x: Nested, rows: int) -> tuple[list[Tensor], bool]:
    """Run the network with the first draws of a step; return row 0 of its output, and whether a generator was used."""
    for layer in trial.modules():
        if isinstance(layer, KeyedDropout):
            layer.draws.at(TRIAL_SEED, 0, rows)
    device = next((t.device for t in tensors_in(x)), torch.device("cpu"))
    with untouched_generator(device) as moved:
        return _first_rows(call(trial, x), rows), moved()


@contextmanager
def untouched_generator(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Seed the process-wide generators of torch, numpy and Python inside the block, and restore them after it.

    The value is a function that returns whether any of them was drawn from since its last call.
    """
    of_numpy, of_python = np.random.get_state(), random.getstate()

    def moved() -> bool:
        before, states[:] = states[0], [_generator_states(device)]
        return before != states[0]

    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_generators(TRIAL_SEED)
        states = [_generator_states(device)]
        try:
            yield moved
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)


Call = tuple[str, list[Tensor], list[Tensor]]
"""One call of a layer: its name, and row 0 of its inputs and of its outputs."""


def _calls(module: nn.Module, x: Nested, rows: int) -> list[Call]:
    """Run a copy of the network over `x`; return the calls of its layers in the order in which they ended."""
    trial, calls = copy.deepcopy(module).train(), list[Call]()

    def record(label: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append((label, _first_rows((args, kwargs), rows), _first_rows(output, rows)))

    for name, layer in trial.named_modules():
        label = f"layer '{name}' ({type(layer).__name__})" if name else type(layer).__name__
        layer.register_forward_hook(partial(record, label), with_kwargs=True)
    with fixed_norms(trial):
        _trial_pass(trial, x, rows)
    return calls


def _first_rows(value: Any, rows: int) -> list[Tensor]:
    """Copy row 0 of every tensor that has `rows` rows, in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value[0].detach().clone()] if value.dim() and len(value) == rows else []
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in _first_rows(part, rows)] if isinstance(value, tuple | list) else []


def _close(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Return whether the tensors are equal, up to the rounding of different kernels."""
    for a, b in zip(tensors, others, strict=False):
        if a.shape != b.shape:
            return False
        scale = float(a.abs().max()) if a.is_floating_point() and a.numel() else 0.0
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale if scale < float("inf") else 0.0, equal_nan=True):
            return False
    return True


def _generator_states(device: torch.device) -> tuple[bytes, str, object]:
    of_torch = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return of_torch.numpy().tobytes(), repr(np.random.get_state()), random.getstate()
