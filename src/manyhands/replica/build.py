"""Choose and make the replica that fits a network."""

import torch
from torch import nn

from manyhands.config import Precision
from manyhands.replica.base import Replica
from manyhands.replica.batchnorm import join_norms
from manyhands.replica.criterion import Criterion, Loss, as_criterion
from manyhands.replica.flat import FlatReplica
from manyhands.replica.fused import FusedReplica, can_fuse
from manyhands.replica.layout import lay_out
from manyhands.replica.nested import Nested
from manyhands.replica.peers import Peers
from manyhands.replica.precision import SHORT, set_products
from manyhands.replica.random import Draws, key_random_layers
from manyhands.replica.traits import traits_of
from manyhands.replica.update import OptimizerFactory


def build(
    module: nn.Module,
    sample: Nested,
    loss: str | Loss | Criterion,
    optimizer: OptimizerFactory,
    *,
    device: torch.device,
    dtype: torch.dtype,
    fuse: bool = True,
    precision: Precision = "fp32",
    global_norms: bool = False,
) -> Replica:
    """Return the fastest replica that can hold the module, which takes over its weights.

    `sample` is a small batch for a trial forward pass, which shows what else the network does (`traits`). With
    `global_norms`, BatchNorm layers normalise over the rows of all workers that the replica's peers join.
    """
    set_products(precision, device)
    criterion = as_criterion(loss)
    module = module.to(device=device, dtype=dtype).train()
    draws, peers = Draws(), Peers()
    key_random_layers(module, draws)
    meets = global_norms and join_norms(module, peers) > 0
    if fuse and precision not in SHORT and can_fuse(module, criterion.name):
        return FusedReplica(module, lay_out(module, ()), criterion, optimizer)
    traits = traits_of(module, sample)
    if any(isinstance(m, nn.Conv2d) for m in module.modules()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layout = lay_out(module, traits.moving)
    replica = FlatReplica(module, layout, criterion, optimizer, draws, traits.global_random, peers, precision)
    replica.meets = meets
    return replica
