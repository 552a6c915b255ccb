"""Networks that a replica must hold, each with a batch that fits it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Not a Sequential, with a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Add what goes round to what goes through."""
        return self.out(x + torch.tanh(self.inner(torch.relu(self.inner(x)))))


class Scaled(nn.Sequential):
    """A Sequential that is more than its layers."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale what the layers give."""
        return 0.5 * super().forward(x)


def stack() -> nn.Module:
    """Build what the fused replica holds."""
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.Sigmoid(), nn.Linear(5, 4))


def flattened() -> nn.Module:
    """Build a stack over images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(98, 5), nn.ReLU(), nn.Linear(5, 4))


def linear() -> nn.Module:
    """Build the smallest stack."""
    return nn.Sequential(nn.Linear(6, 4))


def bare() -> nn.Module:
    """Build layers without an activation between them, and without a bias."""
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 5, bias=False), nn.Linear(5, 4))


def tied_layer() -> nn.Module:
    """Build a stack in which one layer stands twice."""
    twice = nn.Linear(6, 6)
    return nn.Sequential(twice, nn.ReLU(), twice, nn.ReLU(), nn.Linear(6, 4))


def tied_weight() -> nn.Module:
    """Build a stack in which two layers share a weight but not the bias."""
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))
    net[2].weight = net[0].weight  # type: ignore[assignment]
    return net


def frozen() -> nn.Module:
    """Build a stack whose first layer is not trained."""
    net = stack()
    net[0].requires_grad_(False)
    return net


def frozen_bias() -> nn.Module:
    """Build a stack of which one bias is not trained."""
    net = stack()
    net[2].bias.requires_grad_(False)  # type: ignore[union-attr]
    return net


def hooked() -> nn.Module:
    """Build a stack with a hook that changes what a layer gives."""
    net = stack()
    net[0].register_forward_hook(lambda module, args, out: 2 * out)
    return net


def convolutions() -> nn.Module:
    """Build a network that is laid out channels-last, with a 1 by 1 kernel and one output channel among it."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 1, 1), nn.Conv2d(1, 3, (2, 3)), nn.ReLU(),
        nn.ConvTranspose2d(3, 2, 2), nn.Flatten(), nn.Linear(40, 4),
    )  # fmt: skip


def normed() -> nn.Module:
    """Build a network with running statistics; a bias below them would have a gradient of mere round-off."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(75, 5, bias=False), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 4),
    )  # fmt: skip


@dataclass(frozen=True)
class Network:
    """How to make one, what it takes, and whether the fused replica may hold it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    fused: bool = False

    def batch(self, rows: int = 7, seed: int = 3) -> tuple[Tensor, Tensor]:
        """Draw inputs and labels."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, *self.shape, generator=generator, dtype=torch.float64)
        return x, torch.randint(4, (rows,), generator=generator)

    def module(self, seed: int = 1) -> nn.Module:
        """Make it with the weights of a seed."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make().double()


NETWORKS = {
    "stack": Network(stack, fused=True),
    "flattened": Network(flattened, (2, 7, 7), fused=True),
    "linear": Network(linear, fused=True),
    "bare": Network(bare),
    "tied-layer": Network(tied_layer),
    "tied-weight": Network(tied_weight),
    "frozen": Network(frozen),
    "frozen-bias": Network(frozen_bias),
    "hooked": Network(hooked),
    "residual": Network(Residual),
    "scaled": Network(lambda: Scaled(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))),
    "convolutions": Network(convolutions, (2, 7, 7)),
    "normed": Network(normed, (2, 7, 7)),
}
