"""A small transformer that continues text.

manyhands train examples/own_work/characters.py:task --engine threads --workers 2
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import manyhands

LENGTH = 32
TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()
LETTERS = sorted(set(TEXT))


def sequences() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (inputs, targets) to learn from and to test on: the targets are the inputs, one character later."""
    codes = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    x, y = codes[:-1].unfold(0, LENGTH, 4), codes[1:].unfold(0, LENGTH, 4)
    last = len(x) * 9 // 10
    return (x[:last], y[:last]), (x[last:], y[last:])


class Transformer(nn.Module):
    """Two layers with causal attention; its dropout, also inside the attention, is the same on every worker."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, letters, places), as `cross_entropy` takes them."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=x.device, dtype=self.places.dtype)
        h = self.layers(self.letters(x.long()) + self.places, mask=mask, is_causal=True)
        return self.head(h).transpose(1, 2)


def hits(output: Tensor, target: Tensor) -> Tensor:
    """Return the share of characters that were guessed."""
    return (output.argmax(1) == target).double().mean()


task = manyhands.Task(
    model=lambda data: Transformer(),
    data=sequences,
    loss=nn.functional.cross_entropy,
    metrics={"hits": manyhands.Metric(hits, better="higher")},
    optimizer="adamw",
    lr=0.003,
    clip_norm=1.0,
    scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.003, total_steps=400),
    batch_size=64,
    epochs=10,
)

if __name__ == "__main__":
    record = manyhands.train(task, engine="mpi", workers=2)
    print(f"test loss {record.test_loss:.3f}, {100 * record.metrics['hits']:.1f} % of the characters guessed")
