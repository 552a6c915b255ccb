"""Choose and make the replica that fits a network."""

import torch
from torch import nn

from manyhands.config import Precision
from manyhands.replica.base import Replica
from manyhands.replica.batchnorm import join_norms
from manyhands.replica.criterion import Criterion, Loss, as_criterion
from manyhands.replica.elementwise import with_grain
from manyhands.replica.flat import FlatReplica
from manyhands.replica.fused import FusedReplica, can_fuse
from manyhands.replica.layout import lay_out
from manyhands.replica.nested import Nested, set_training
from manyhands.replica.optimizer.groups import OptimizerFactory, OptimizerRecipe, as_recipe
from manyhands.replica.peers import Peers
from manyhands.replica.precision import SHORT, set_products
from manyhands.replica.random import Draws, key_random_layers
from manyhands.replica.traits import places_of_loss, traits_of


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
    global_norms: bool = False,
    targets: Nested = None,
) -> Replica:
    """Return the fastest replica that can hold the module, which takes over its weights.

    `sample` is a small batch for a trial forward pass, which shows what else the network does (`traits`); with its
    `targets`, the random numbers that a loss draws are placed too. With `global_norms`, BatchNorm layers normalise over
    the rows of all workers that the replica's peers join.
    """
    set_products(precision, device)
    criterion, recipe = as_criterion(loss), as_recipe(optimizer)
    module = set_training(module.to(device=device, dtype=dtype))
    draws, peers = Draws(), Peers()
    key_random_layers(module, draws)
    meets = global_norms and join_norms(module, peers) > 0
    if fuse and precision not in SHORT and can_fuse(module, criterion.name):
        layout = lay_out(module, (), recipe.groups)
        fused = FusedReplica(module, layout, criterion, with_grain(recipe, layout.groups, device))
        fused.precision = precision
        return fused
    traits = traits_of(module, sample)
    if any(isinstance(m, nn.Conv2d) for m in module.modules()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    own_loss = not criterion.name and targets is not None
    of_loss = places_of_loss(module, criterion.loss, sample, targets) if own_loss else {}
    doubtful = {site: None for site, dim in of_loss.items() if traits.places.get(site, dim) != dim}
    draws.learn({**of_loss, **traits.places, **doubtful})
    layout = lay_out(module, traits.moving, recipe.groups)
    recipe = with_grain(recipe, layout.groups, device)
    replica = FlatReplica(module, layout, criterion, recipe, draws, traits.global_random, peers, precision)
    replica.meets = meets
    return replica
