"""The timeline of a run: every rank's spans, brought together and written for a viewer."""

import json
import socket
import sys

import torch

from manyhands.comm import Comm
from manyhands.errors import CannotWrite
from manyhands.record import RunDir, write_atomically
from manyhands.spans import RankSpans, Span, Spans, chrome_trace


def align(comm: Comm, spans: Spans) -> None:
    """Note each rank's clock at one moment, if a timeline is wanted."""
    if spans.num_steps:
        comm.barrier()
        spans.zero_s = comm.clock()


def store_timeline(comm: Comm, run: RunDir, spans: Spans, workers: int) -> None:
    """Gather the spans of all ranks and let rank 0 write them, if a timeline is wanted."""
    if not spans.num_steps:
        return
    role = "worker" if comm.rank < workers else "server"
    own = RankSpans(comm.rank, role, socket.gethostname(), spans.kept, spans.zero_s)
    texts = gather_texts(comm, json.dumps(own))
    if comm.rank == 0:
        try:
            write_atomically(run.trace, chrome_trace([_read(text) for text in texts]))
        except CannotWrite as error:  # the record, which is still to come, is worth more
            print(f"manyhands: {error}", file=sys.stderr)


def _read(text: str) -> RankSpans:
    found = RankSpans(*json.loads(text))
    return found._replace(spans=[Span(*span) for span in found.spans])


def gather_texts(comm: Comm, text: str) -> list[str]:
    """Return every rank's text, of whatever length."""
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8)
    lengths = comm.all_gather(torch.tensor([len(raw)])).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(raw)] = raw
    rows = comm.all_gather(padded)
    return [row[:length].numpy().tobytes().decode() for row, length in zip(rows, lengths, strict=True)]
