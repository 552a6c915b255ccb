"""Equal weights give equal figures, to the bit, for every number of ranks; and they are the plain ones."""

import copy

import pytest
import torch
from measured import METRICS, numbers, plain_network, squares
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from manyhands.comm import Comm
from manyhands.data import SampleSplit, Split
from manyhands.replica import Replica, build
from manyhands.replica.criterion import LOSSES, OF_CLASSES, Criterion, as_criterion
from manyhands.training.evaluate import CHUNK, Figures, Scoring, chunked_metrics, evaluate


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

    def work(comm: Comm) -> Figures:
        return evaluate(replicas[comm.rank].module, split, Scoring(as_criterion(loss)), comm)

    (mean, accuracy, metrics), *others = [figures for size in (1, 2, 3, 5) for figures in ranks(work, size)]
    assert all(figures == (mean, accuracy, metrics) for figures in others)
    assert metrics == {}
    module = _replica().module.eval()
    with torch.no_grad():
        out = module(split.x)
    assert mean == pytest.approx(LOSSES[loss](out, split.y).item(), rel=1e-5)
    assert accuracy == (out.argmax(1) == split.y).sum().item() / rows


def test_it_changes_nothing(ranks) -> None:  # type: ignore[no-untyped-def]
    replica = _replica()
    before = {name: t.clone() for name, t in replica.module.state_dict().items()}
    ranks(lambda comm: evaluate(replica.module, _split(9), Scoring(as_criterion("cross-entropy")), comm), 1)
    assert replica.module.training
    assert all(torch.equal(t, before[name]) for name, t in replica.module.state_dict().items())
    assert not any(p.requires_grad and p.grad is None for p in replica.module.parameters())


@pytest.mark.parametrize("rows", [3, CHUNK, 2 * CHUNK + 203])
def test_metrics_are_the_same_for_every_number_of_ranks(ranks, rows: int) -> None:  # type: ignore[no-untyped-def]
    """Five ranks have more of them than there are chunks; states are sums, lists, extremes, and a user's product."""
    data = numbers()
    split, torch_state = data.test.take(rows), torch.random.get_rng_state()
    module = plain_network(data).eval()
    torch.random.set_rng_state(torch_state)

    def work(comm: Comm) -> Figures:
        return evaluate(copy.deepcopy(module), split, Scoring(Criterion(squares), data.classes, 1, METRICS), comm)

    first, *others = [figures for size in (1, 2, 3, 5) for figures in ranks(work, size)]
    assert all(figures == first for figures in others)
    with torch.no_grad():
        out = module(split.x)
    assert first.accuracy is None, "one column is no score for each class"
    assert first.loss == pytest.approx(squares(out, split.y).item(), rel=1e-5)
    values, error = first.metrics, out.squeeze(1) - split.y
    assert list(values) == ["mae", "plain", "mse", "ranks", "extremes", "both.again"]
    assert values["mae"] == values["plain"] == pytest.approx(error.abs().mean().item(), rel=1e-5)
    assert values["mse"] == values["both.again"] == pytest.approx((error**2).mean().item(), rel=1e-5)
    assert values["ranks"] == (out.squeeze(1).diff() > 0).sum().item(), "lists are joined in the order of the rows"
    spread, chunks = (out.max() - out.min()).item(), -(-rows // CHUNK)
    assert values["extremes"] == pytest.approx(spread + 10 * out.mean().item() + 100 * 2**chunks, rel=1e-4)


def _weighted(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, weight=torch.arange(4.0))


@pytest.mark.parametrize("kind", ["mean", "sum", "weighted"])
def test_the_loss_is_that_of_the_whole_split(ranks, kind: str) -> None:  # type: ignore[no-untyped-def]
    split, module = _split(2 * CHUNK + 5), _replica().module
    criterion = {
        "mean": Criterion(nn.functional.cross_entropy),
        "sum": Criterion(nn.CrossEntropyLoss(reduction="sum"), reduction="sum"),
        "weighted": Criterion(_weighted, weight=lambda y: torch.arange(4.0)[y].sum()),
    }[kind]
    got_rows = ranks(lambda comm: evaluate(module, split, Scoring(criterion, 4), comm), 1)
    with torch.no_grad():
        out = module.eval()(split.x)
        whole = criterion.loss(out, split.y).item() / (len(split) if kind == "sum" else 1)
    assert got_rows[0].loss == pytest.approx(whole, rel=1e-5)
    assert got_rows[0].accuracy == (out.argmax(1) == split.y).sum().item() / len(split)


def test_layers_keep_the_mode_that_they_had(ranks) -> None:  # type: ignore[no-untyped-def]
    module = _replica().module
    module[1].eval()
    ranks(lambda comm: evaluate(module, _split(9), Scoring(as_criterion("cross-entropy")), comm), 1)
    assert [layer.training for layer in module] == [True, False, True, True, True]


class _Drawing(nn.Module):
    """Draws whenever it is called, as a VAE does, which is evaluated with noise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        return nn.functional.dropout(out + torch.randn_like(out), 0.2)


def test_a_network_that_draws_has_the_same_figures_for_every_number_of_ranks_and_every_time(ranks) -> None:  # type: ignore[no-untyped-def]
    module, split = _Drawing(), _split(2 * CHUNK + 5)

    def noisy(out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out + torch.rand_like(out), y)

    def work(comm: Comm) -> Figures:
        return evaluate(copy.deepcopy(module), split, Scoring(Criterion(noisy), 4), comm)

    first, *others = [figures for size in (1, 1, 2, 3, 5) for figures in ranks(work, size)]
    assert all(figures == first for figures in others)


def test_a_row_with_several_places_counts_by_its_share_of_hits(ranks) -> None:  # type: ignore[no-untyped-def]
    x = torch.eye(3).reshape(1, 3, 3).repeat(4, 1, 1)
    y = torch.tensor([[0, 1, 2], [0, 1, 1], [0, 0, 0], [1, 0, 1]])
    module = nn.Conv1d(3, 3, 1, bias=False)
    module.weight.data.copy_(torch.eye(3).unsqueeze(2))
    (figures,) = ranks(lambda comm: evaluate(module, Split(x, y), Scoring(as_criterion("cross-entropy")), comm), 1)
    assert figures.accuracy == pytest.approx((1 + 2 / 3 + 1 / 3 + 0) / 4)
    y = torch.tensor([[0, 1, -100], [0, -100, 1], [-100, -100, -100], [1, 0, 1]])
    (figures,) = ranks(lambda comm: evaluate(module, Split(x, y), Scoring(as_criterion("cross-entropy")), comm), 1)
    assert figures.accuracy == pytest.approx((1 + 1 / 2 + 0) / 3), "places that the loss ignores are no misses"


class _Second(nn.Linear):
    """Takes a batch whose rows are its second dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.T)


def test_rows_are_counted_by_the_samples_whatever_dimension_they_are(ranks) -> None:  # type: ignore[no-untyped-def]
    split, module = _split(CHUNK + 7), _Second(6, 4)
    pairs = TensorDataset(split.x, split.y)
    samples = SampleSplit(pairs, lambda rows: tuple(torch.stack(part, -1) for part in zip(*rows, strict=True)))
    scoring = Scoring(Criterion(nn.functional.cross_entropy))
    (figures,) = ranks(lambda comm: evaluate(module, samples, scoring, comm), 1)
    with torch.no_grad():
        assert figures.loss == pytest.approx(scoring.criterion.loss(module(split.x.T), split.y).item(), rel=1e-5)


def test_metrics_that_are_no_means_over_the_rows_are_told() -> None:
    data = numbers()
    metrics = {"mae": nn.functional.l1_loss, "rmse": lambda out, y: nn.functional.mse_loss(out, y).sqrt()}
    module, split = plain_network(data), Split(data.test.x, data.test.y[:, None])
    (said,) = chunked_metrics(module, split, metrics, torch.device("cpu"))
    assert "metric 'rmse' is no mean over the rows" in said
    assert chunked_metrics(module, split.take(CHUNK), metrics, torch.device("cpu")) == [], "one chunk has all rows"
