"""Choose and make the replica that fits a network."""

import torch
from torch import nn

from manyhands.config import Precision
from manyhands.replica.base import Replica
from manyhands.replica.criterion import Criterion, Loss, as_criterion
from manyhands.replica.elementwise import with_grain
from manyhands.replica.flat import FlatReplica
from manyhands.replica.fused import FusedReplica, can_fuse
from manyhands.replica.layout import lay_out
from manyhands.replica.nested import Nested
from manyhands.replica.optimizer.groups import OptimizerFactory, OptimizerRecipe, as_recipe
from manyhands.replica.peers import Peers
from manyhands.replica.random import Draws, key_random_layers
from manyhands.replica.traits import traits_of


def build(
    module: nn.Module,
    sample: Nested,
    loss: str | Loss | Criterion,
    optimizer: OptimizerFactory | OptimizerRecipe,
    *,
    device: torch.device,
    dtype: torch.dtype,
    fuse: bool = True,
    precision: Precision = "fp32",
) -> Replica:
    """Return the fastest replica that can hold the module, which takes over its weights.

    `sample` is a small batch for a trial forward pass, which shows what else the network does (`traits`).
    """
    criterion, recipe = as_criterion(loss), as_recipe(optimizer)
    module = module.to(device=device, dtype=dtype).train()
    draws, peers = Draws(), Peers()
    key_random_layers(module, draws)
    if fuse and precision not in ("bf16", "fp16") and can_fuse(module, criterion.name):
        layout = lay_out(module, (), recipe.groups)
        return FusedReplica(module, layout, criterion, with_grain(recipe, layout.groups, device))
    traits = traits_of(module, sample)
    if any(isinstance(m, nn.Conv2d) for m in module.modules()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layout = lay_out(module, traits.moving, recipe.groups)
    recipe = with_grain(recipe, layout.groups, device)
    return FlatReplica(module, layout, criterion, recipe, draws, traits.global_random, peers, precision)
