"""Several labels for each text, from Parquet.

manyhands train examples/own_work/multilabel.py:task --engine threads --workers 2
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor, nn

import manyhands

FILE = Path(tempfile.gettempdir()) / "manyhands-notes.parquet"
TOPICS = {
    "fruit": ["apple", "pear", "plum", "cherry", "quince"],
    "tools": ["hammer", "saw", "file", "drill", "wrench"],
    "weather": ["rain", "sun", "wind", "snow", "fog"],
}
FILLERS = ["the", "a", "some", "with", "and", "near", "old", "new", "we", "saw"]


def write_notes(rows: int = 1200) -> Path:
    """Write texts of one to three topics, and a column of 0 and 1 for each topic."""
    rng = np.random.default_rng(0)
    labels = rng.random((rows, len(TOPICS))) < 0.4
    words = [[rng.choice(TOPICS[t], 2) for t, given in zip(TOPICS, row, strict=True) if given] for row in labels]
    texts = [" ".join(np.concatenate([*w, rng.choice(FILLERS, 6)])) for w in words]
    columns = {"text": texts} | {t: labels[:, i].astype(np.float32) for i, t in enumerate(TOPICS)}
    begun = FILE.with_suffix(f".{os.getpid()}")
    pq.write_table(pa.table(columns), begun)
    begun.rename(FILE)  # ranks that write at the same time write the same
    return FILE


def f1(output: Tensor, target: Tensor) -> Tensor:
    """Return the F1 score of the batch's rows, averaged over the rows."""
    guess = (output > 0).to(target.dtype)
    both = (guess * target).sum(1)
    return (2 * both / (guess.sum(1) + target.sum(1)).clamp(min=1)).mean()


task = manyhands.Task(
    model=lambda data: nn.Sequential(
        nn.Linear(data.shape[0], 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, len(TOPICS))
    ),
    data=lambda: f"parquet:{write_notes()},text=text,words=256,label={'|'.join(TOPICS)}",
    loss="binary-cross-entropy",
    metrics={"f1": manyhands.Metric(f1, better="higher")},
    optimizer="adam",
    lr=0.005,
    batch_size=32,
    epochs=5,
)

if __name__ == "__main__":
    record = manyhands.train(task, engine="mpi", workers=2)
    print(f"F1 {record.metrics['f1']:.3f}, test loss {record.test_loss:.4f}")
