"""Loss and accuracy on the test data, shared out over the ranks."""

import torch
from torch import Tensor, nn

from manyhands.comm import Comm
from manyhands.data import Split
from manyhands.data.order import cut
from manyhands.replica.criterion import Loss

CHUNK = 500
"""Samples that are evaluated at once."""


@torch.no_grad()
def evaluate(module: nn.Module, split: Split, loss: Loss, comm: Comm, top: int = 1) -> tuple[float, float]:
    """Return mean loss and accuracy: the share of samples whose label is among the `top` best guesses.

    The chunks do not depend on the number of ranks, and each chunk's sums are computed by one rank and added to zeros
    elsewhere: so equal weights give equal figures, to the bit.
    """
    num_chunks = -(-len(split) // CHUNK)
    sums = torch.zeros(num_chunks, 2, dtype=torch.float64)
    first, last = cut(num_chunks, comm.size, comm.rank)
    dtype = next(module.parameters()).dtype
    module.eval()
    for chunk in range(first, last):
        rows = slice(chunk * CHUNK, min(len(split), (chunk + 1) * CHUNK))
        x, y = split.batch(rows, dtype)
        out = module(x)
        sums[chunk] = torch.stack([loss(out, y) * len(y), _hits(out, y, top)]).cpu()
    module.train()
    comm.all_reduce_(sums)
    total_loss, hits = sums.sum(0).tolist()
    return total_loss / len(split), hits / len(split)


def _hits(out: Tensor, y: Tensor, top: int) -> Tensor:
    if top == 1:
        return (out.argmax(1) == y).sum().to(out.dtype)
    guesses = out.topk(min(top, out.shape[1]), dim=1).indices
    return (guesses == y.unsqueeze(1)).sum().to(out.dtype)
