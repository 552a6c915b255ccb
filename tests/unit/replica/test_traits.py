"""What a trial pass finds out about a network."""

import torch
from torch import Tensor, nn

from manyhands.replica.traits import traits_of


class Normed(nn.Module):
    """Subtracts a running mean; two of them may share its buffer."""

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.mean, Tensor)
        self.mean.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
        return x - self.mean


def test_layers_that_share_a_buffer_remember_nothing_else() -> None:
    mean = torch.zeros(())
    network = nn.Sequential(nn.Linear(3, 3), Normed(mean), nn.Linear(3, 3), Normed(mean))
    traits = traits_of(network, torch.randn(4, 3))
    assert traits.moving == ("1.mean",), "which both layers share"
    assert not traits.remembers
    assert torch.equal(mean, torch.zeros(()))
