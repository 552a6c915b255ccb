"""Choose and make the replica that fits a network."""

import torch
from torch import Tensor, nn

from manyhands.replica.base import Loss, Replica
from manyhands.replica.flat import FlatReplica
from manyhands.replica.fused import CROSS_ENTROPY, SIGMOID_ENTROPY, FusedReplica, stack_of_layers
from manyhands.replica.layout import lay_out
from manyhands.replica.random import Draws, key_random_layers
from manyhands.replica.traits import traits_of
from manyhands.replica.update import OptimizerFactory


def sigmoid_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Return the sigmoid cross-entropy against one-hot targets: summed over the outputs, mean over the rows."""
    target = nn.functional.one_hot(y, out.shape[1]).to(out.dtype)
    return nn.functional.binary_cross_entropy_with_logits(out, target, reduction="sum") / out.shape[0]


LOSSES: dict[str, Loss] = {CROSS_ENTROPY: nn.functional.cross_entropy, SIGMOID_ENTROPY: sigmoid_cross_entropy}


def build(
    module: nn.Module,
    sample: Tensor,
    loss: str | Loss,
    optimizer: OptimizerFactory,
    *,
    device: torch.device,
    dtype: torch.dtype,
    fuse: bool = True,
) -> Replica:
    """Return the fastest replica that can hold the module, which takes over its weights.

    `sample` is a small batch for a trial forward pass, which shows what else the network does (`traits`).
    """
    module = module.to(device=device, dtype=dtype).train()
    draws = Draws()
    key_random_layers(module, draws)
    if isinstance(loss, str) and fuse and stack_of_layers(module) is not None:
        return FusedReplica(module, lay_out(module, ()), loss, optimizer)
    traits = traits_of(module, sample)
    if any(isinstance(m, nn.Conv2d) for m in module.modules()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    function = LOSSES[loss] if isinstance(loss, str) else loss
    return FlatReplica(module, lay_out(module, traits.moving), function, optimizer, draws, traits.global_random)
