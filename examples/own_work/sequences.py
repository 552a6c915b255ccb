"""Batches by an own collate function.

manyhands train examples/own_work/sequences.py:task --engine threads --workers 2
"""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import manyhands

CLASSES = torch.tensor([1.0, 3.0])
"""Weights of the classes: the second is rare."""


class Sums(Dataset):
    """Sequences of 3 to 12 numbers; of class 1 if their sum is large."""

    def __init__(self, first: int, rows: int) -> None:
        self.first, self.rows = first, rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        draws = torch.Generator().manual_seed(self.first + i)
        values = torch.randn(int(torch.randint(3, 13, (), generator=draws)), generator=draws)
        return values, int(values.sum() > 2)


def padded(samples: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
    """Pad to the longest sequence of these samples: another length on each worker, which the lengths make good."""
    values, classes = zip(*samples, strict=True)
    lengths = torch.tensor([len(v) for v in values])
    return {"x": nn.utils.rnn.pad_sequence(values, batch_first=True), "lengths": lengths}, torch.tensor(classes)


class Reader(nn.Module):
    """A GRU, read off at each sequence's last value."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 24, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(24, len(CLASSES))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        outputs, _ = self.gru(x.unsqueeze(2))
        return self.head(outputs[torch.arange(len(x)), lengths - 1])


def loaders() -> tuple[DataLoader, DataLoader]:
    """Return loaders, of which the datasets and the collate function count: batches and order are the run's."""
    return DataLoader(Sums(0, 600), collate_fn=padded), DataLoader(Sums(10**6, 200), collate_fn=padded)


def weighted(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the rows, weighted by their classes."""
    return nn.functional.cross_entropy(output, target, weight=CLASSES.to(output))


task = manyhands.Task(
    model=lambda data: Reader(),
    data=loaders,
    loss=weighted,
    loss_weight=lambda target: CLASSES.to(target.device)[target].sum(),
    optimizer="adam",
    lr=0.01,
    batch_size=30,
    epochs=5,
)

if __name__ == "__main__":
    record = manyhands.train(task, engine="mpi", workers=2)
    print(f"{100 * record.test_accuracy:.1f} %, test loss {record.test_loss:.4f}")
