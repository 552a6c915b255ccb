"""Drive a strategy without data: small replicas, made-up gradients, ranks as threads."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from manyhands import registry, sync
from manyhands.comm import Comm
from manyhands.comm.traced import TracedComm
from manyhands.record.run import RunDir, RunRecord
from manyhands.replica import Replica, build
from manyhands.sync import Sync

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.5),
    "momentum": lambda p: SGD(p, lr=0.5, momentum=0.9),
    "adam": lambda p: Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: AdamW(p, lr=0.01, fused=True),
}
QUANTITIES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""What each optimiser keeps per weight."""

NAMES = registry.names(sync, Sync)
EXACT = [name for name in NAMES if sync.make(name).exact]

# Weights are drawn from torch's process-wide generator, which threads share.
_SEEDING = threading.Lock()

Make = Callable[[], Replica]
Gradient = Callable[[int, int, Replica], Tensor]
"""What a rank computes in a step with the weights that it has."""


def stack() -> nn.Module:
    """Build 238 weights that the fused replica holds."""
    return nn.Sequential(nn.Linear(13, 11), nn.ReLU(), nn.Linear(11, 7))


def normed() -> nn.Module:
    """Build 260 weights, with 23 running statistics behind them."""
    return nn.Sequential(nn.Linear(13, 11), nn.BatchNorm1d(11), nn.Linear(11, 7))


def smallest() -> nn.Module:
    """Build two weights."""
    return nn.Sequential(nn.Linear(1, 1))


def make_replica(
    module: Callable[[], nn.Module] = stack, optimizer: str = "momentum", *, seed: int = 0, fuse: bool = True
) -> Replica:
    """Make a replica with the weights of a seed, in float64."""
    with _SEEDING, torch.random.fork_rng():
        torch.manual_seed(seed)
        made = module()
    width = next(made.parameters()).shape[1]
    kind, device = torch.float64, torch.device("cpu")
    sample = torch.zeros(2, width)
    return build(made, sample.double(), "cross-entropy", OPTIMIZERS[optimizer], device=device, dtype=kind, fuse=fuse)


def whole_numbers(rank: int, step: int, replica: Replica) -> Tensor:
    """Draw a gradient of whole numbers, whose sum is the same in every order."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(-8, 9, replica.grads.shape, generator=generator).double()


def pulling(rank: int, step: int, replica: Replica) -> Tensor:
    """Pull the weights towards a point of the rank's own: a gradient that depends on the weights."""
    return replica.params - whole_numbers(rank, 0, replica) + 0.1 * step


@dataclass
class Rank:
    """What one rank has at the end."""

    comm: TracedComm
    replica: Replica
    strategy: Sync


def drive(  # type: ignore[no-untyped-def]
    ranks, text: str, workers: int, make: Make = make_replica, gradient: Gradient = whole_numbers, steps: int = 3
) -> list[Rank]:
    """Let a strategy make some steps from start to finish; return its workers, and its servers after them."""

    def work(comm: Comm) -> Rank:
        me = Rank(TracedComm(comm), make(), sync.make(text))
        others = comm.split(int(comm.rank >= workers))
        me.strategy.start(me.replica, me.comm)
        me.comm.forget()
        if comm.rank >= workers:
            me.strategy.serve(me.replica, me.comm)
            return me
        for step in range(steps):
            me.replica.grads.copy_(gradient(comm.rank, step, me.replica))
            me.strategy.step(me.replica, me.comm, step)
        others.barrier()  # as at the end of an epoch
        me.strategy.finish(me.replica, me.comm)
        return me

    found: list[Rank] = ranks(work, workers + sync.make(text).num_servers())
    return found


def alone(workers: int, make: Make = make_replica, gradient: Gradient = whole_numbers, steps: int = 3) -> Replica:
    """Make the same steps as one worker that has all gradients."""
    replica = make()
    for step in range(steps):
        replica.grads.copy_(torch.stack([gradient(r, step, replica) for r in range(workers)]).sum(0))
        replica.apply()
    return replica


def state_elements(replica: Replica) -> int:
    """Count the elements of all tensors that the optimiser really holds."""
    held: list[dict[str, Any]] = list(replica.update.optimizer.state.values())
    return sum(t.numel() for state in held for t in state.values() if isinstance(t, Tensor) and t.dim() > 0)


def weights_of(out: Path, record: RunRecord) -> Tensor:
    """Return the trained weights and statistics of a run, one after the other."""
    stored = load_file(RunDir.find(out, record.id).model)
    return torch.cat([stored[name].flatten().double() for name in sorted(stored)])


def distance(found: Tensor, expected: Tensor) -> float:
    """Return how far apart two sets of weights are, relative to their size."""
    return float((found - expected).norm() / expected.norm())
