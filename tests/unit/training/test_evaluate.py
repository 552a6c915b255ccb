"""Equal weights give equal figures, to the bit, for every number of ranks; and they are the plain ones."""

import pytest
import torch
from torch import nn

from manyhands.comm import Comm
from manyhands.data import Split
from manyhands.replica import Replica, build
from manyhands.replica.criterion import LOSSES, OF_CLASSES
from manyhands.training.evaluate import CHUNK, evaluate


def _replica() -> Replica:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
    return build(
        module, torch.randn(2, 6), "cross-entropy", lambda p: torch.optim.SGD(p, lr=0.1),
        device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip


def _split(rows: int) -> Split:
    generator = torch.Generator().manual_seed(4)
    return Split(torch.randn(rows, 6, generator=generator), torch.randint(4, (rows,), generator=generator))


@pytest.mark.parametrize("loss", OF_CLASSES)
@pytest.mark.parametrize("rows", [1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_every_number_of_ranks_gives_the_same_figures(ranks, rows: int, loss: str) -> None:  # type: ignore[no-untyped-def]
    split = _split(rows)
    replicas = [_replica() for _ in range(5)]

    def work(comm: Comm) -> tuple[float, float]:
        return evaluate(replicas[comm.rank].module, split, LOSSES[loss], comm)

    figures = {figure for size in (1, 2, 3, 5) for figure in ranks(work, size)}
    assert len(figures) == 1
    ((mean, accuracy),) = figures
    module = _replica().module.eval()
    with torch.no_grad():
        out = module(split.x)
    assert mean == pytest.approx(LOSSES[loss](out, split.y).item(), rel=1e-5)
    assert accuracy == (out.argmax(1) == split.y).sum().item() / rows


def test_it_changes_nothing(ranks) -> None:  # type: ignore[no-untyped-def]
    replica = _replica()
    before = {name: t.clone() for name, t in replica.module.state_dict().items()}
    ranks(lambda comm: evaluate(replica.module, _split(9), LOSSES["cross-entropy"], comm), 1)
    assert replica.module.training
    assert all(torch.equal(t, before[name]) for name, t in replica.module.state_dict().items())
    assert not any(p.requires_grad and p.grad is None for p in replica.module.parameters())
