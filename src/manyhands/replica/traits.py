"""What a network does besides its arithmetic, found out by one trial forward pass."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Traits:
    """Facts about a network that decide whether workers can share its batches."""

    moving: tuple[str, ...]
    """Buffers that a training forward pass changes, such as BatchNorm's running statistics."""
    global_random: bool
    """Whether it draws from the process-wide generator (`F.dropout`, `torch.rand`)."""
    batch_statistics: tuple[str, ...]
    """Layers whose output for a row depends on the other rows of the batch (BatchNorm)."""


def traits_of(module: nn.Module, x: Tensor) -> Traits:
    """Run a copy of the network on `x` and see what changed."""
    trial = copy.deepcopy(module).train()
    before = {name: b.clone() for name, b in trial.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        state = _generator_state(x.device)
        trial(x)
        global_random = not torch.equal(state, _generator_state(x.device))
    moved = tuple(name for name, b in trial.named_buffers() if not torch.equal(before[name], b))
    mixing = (nn.modules.batchnorm._BatchNorm,)
    mixers = tuple(f"{n} ({type(m).__name__})" for n, m in module.named_modules() if isinstance(m, mixing))
    return Traits(moved, global_random, mixers)


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
