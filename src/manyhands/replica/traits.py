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
from manyhands.replica.criterion import Loss
from manyhands.replica.drawing import TRIAL_SEED, draws_of, keyed, learn_places
from manyhands.replica.nested import Nested, call, num_rows, rows_of, set_training, tensors_in
from manyhands.replica.random import Draws, Places, seed_generators


@dataclass(frozen=True)
class Traits:
    """Properties of a network that decide whether workers can share its batches."""

    moving: tuple[str, ...]
    """Buffers that a training forward pass changes, such as BatchNorm's running statistics."""
    global_random: bool
    """Whether a pass draws from a process-wide generator, and not by position (`replica.drawing`)."""
    batch_statistics: tuple[str, ...]
    """The first layer whose output for a row depends on the other rows of the batch, if there is one.

    BatchNorm layers over the global batch do not count: every row sees the same others, however it is cut.
    """
    remembers: bool
    """Whether a pass affects the next one other than by buffers: the model's own generator or hidden state."""
    places: Places
    """The batch dimensions of its draws."""


def traits_of(module: nn.Module, x: Nested) -> Traits:
    """Return the traits of a network, from trial passes of copies over `x`."""
    trial = set_training(copy.deepcopy(module))
    buffers = [
        (m._buffers, name, b.clone()) for m in trial.modules() for name, b in m._buffers.items() if b is not None
    ]
    _reset(buffers)  # before both passes: where layers share a buffer, each gets its own
    before = {name: b.clone() for name, b in module.named_buffers()}
    places = _places_of(module, x)
    output, global_random = _trial_pass(trial, x, places)
    after = dict(trial.named_buffers())
    changed = tuple(name for name, b in before.items() if not torch.equal(after[name], b))
    _reset(buffers)
    remembers = not _close(output, _trial_pass(trial, x, places)[0])
    return Traits(changed, global_random, _first_mixing_layer(module, x, places), remembers, places)


def _reset(buffers: list[tuple[dict[str, Tensor | None], str, Tensor]]) -> None:
    for of_layer, name, b in buffers:
        of_layer[name] = b.clone()


def _first_mixing_layer(module: nn.Module, x: Nested, places: Places) -> tuple[str, ...]:
    """Return the first layer whose output for row 0 changes when only the other rows of its input do."""
    rows = num_rows(x)
    if rows < 2:
        return ()
    itself = rows_of(x, torch.zeros(rows, dtype=torch.int64))
    beside_others, beside_itself = (_calls(module, inputs, places) for inputs in (x, itself))
    for (name, inputs, output), (_, other_inputs, other_output) in zip(beside_others, beside_itself, strict=False):
        if _close(inputs, other_inputs) and not _close(output, other_output):
            return (name,)
    return ()


def _places_of(module: nn.Module, x: Nested) -> Places:
    """Return the batch dimensions of the network's draws, from passes over `x` and over a row more."""
    trial = set_training(copy.deepcopy(module))
    with untouched_generator(next(tensors_in(x)).device):
        return learn_places(draws_of(trial), lambda rows: call(trial, rows_of(x, rows)), num_rows(x))


def places_of_loss(module: nn.Module, loss: Loss, x: Nested, y: Nested) -> Places:
    """Return the batch dimensions of what a loss draws; none if it fails, which the first step reports."""
    trial, of_trial = copy.deepcopy((module, loss))
    with untouched_generator(next(tensors_in(x)).device):
        try:
            out = call(set_training(trial), x)
            return learn_places(Draws(), lambda rows: of_trial(rows_of(out, rows), rows_of(y, rows)), num_rows(x))
        except Exception:
            return {}


def _trial_pass(trial: nn.Module, x: Nested, places: Places) -> tuple[list[Tensor], bool]:
    """Run the network with the first draws of a step; return row 0 of its output, and whether a generator was used."""
    draws = draws_of(trial)
    draws.learn(places)
    draws.at(TRIAL_SEED, 0, num_rows(x))
    with untouched_generator(next(tensors_in(x)).device) as moved, keyed(draws):
        return _first_rows(call(trial, x), num_rows(x)), moved()


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


def _calls(module: nn.Module, x: Nested, places: Places) -> list[Call]:
    """Run a copy of the network over `x`; return the calls of its layers in the order in which they ended."""
    trial, calls, rows = set_training(copy.deepcopy(module)), list[Call](), num_rows(x)

    def record(label: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append((label, _first_rows((args, kwargs), rows), _first_rows(output, rows)))

    for name, layer in trial.named_modules():
        label = f"layer '{name}' ({type(layer).__name__})" if name else type(layer).__name__
        layer.register_forward_hook(partial(record, label), with_kwargs=True)
    with fixed_norms(trial):
        _trial_pass(trial, x, places)
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
