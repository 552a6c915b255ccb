"""Exchange texts, whose length may differ from rank to rank."""

import torch

from manyhands.comm.base import Comm


def gather_texts(comm: Comm, text: str) -> list[str]:
    """Return every rank's text, in rank order."""
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8)
    lengths = comm.all_gather(torch.tensor([len(raw)])).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(raw)] = raw
    rows = comm.all_gather(padded)
    return [row[:length].numpy().tobytes().decode() for row, length in zip(rows, lengths, strict=True)]
