"""Refuse ranks that hold different data or models: digests of both are compared before the first step.

All labels are digested, but only some rows of the inputs, so that a large file is not read for it. Weights are
exchanged when a strategy starts; those that it leaves as each rank made them, such as frozen ones, must be equal.
"""

import hashlib
import itertools
import json
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from manyhands.comm import Comm
from manyhands.comm.texts import gather_texts
from manyhands.data import AnySplit, Dataset, SampleSplit
from manyhands.errors import UserError
from manyhands.replica import Replica
from manyhands.replica.nested import Nested, tensors_in

ROWS = 64
"""Rows of a split that are digested: the first, the last, and others evenly spaced in between."""
SAMPLES = 4
"""Samples that are digested of data that is read sample by sample."""
VALUES = 4096
"""Values of a row, or of a weight, that are digested at most."""
HASHED = "#"
"""Prefix of a hash, which is not shown to people."""
SEED_IT = "seed what draws it, such as np.random.default_rng(0), and sort what comes out of a set or a folder"

Digest = dict[str, str]
"""Values or hashes by name, in the order in which a difference is reported."""


def check_same_data(comm: Comm, data: Dataset, source: str) -> None:
    """Refuse ranks that hold different samples; `source` is the data spec, empty for a task's own data."""
    if comm.size > 1:
        if any(isinstance(split, SampleSplit) for split in (data.train, data.test)):
            comm.barrier()  # no thread beside this one makes its data any more: both would draw from one generator
        hint = f"let '{source}' be the same files on every host" if source else SEED_IT
        _check_same(comm, digest_of_data(data), "data", hint)


def check_same_model(comm: Comm, replica: Replica, *, exchanged: bool) -> None:
    """Refuse ranks whose models differ; with `exchanged`, weights may, which the strategy makes equal at its start."""
    if comm.size > 1:
        _check_same(comm, digest_of_model(replica, exchanged=exchanged), "initial weights", SEED_IT)


def check_repeats(before: Digest, again: Digest, what: str) -> None:
    """Refuse data or weights (`what`) that differ each time they are made: no two runs could be compared."""
    if before != again:
        raise UserError(
            f"the task makes other {what} each time: {_difference(before, again)}; "
            f"no two runs of it can be equal, so {SEED_IT}"
        )


def digest_of_data(data: Dataset) -> Digest:
    """Return a digest of the training and the test samples."""
    digest = {"the number of classes": str(data.classes)}
    return digest | _digest_of_split("training", data.train) | _digest_of_split("test", data.test)


def digest_of_model(replica: Replica, *, exchanged: bool) -> Digest:
    """Return a digest of all weights and buffers: shapes where they will be exchanged, values elsewhere."""
    storage = replica.params.untyped_storage().data_ptr()
    digest = {}
    for name, t in itertools.chain(replica.module.named_parameters(), replica.module.named_buffers()):
        travels = exchanged and t.untyped_storage().data_ptr() == storage
        digest[f"the model's '{name}'"] = str(tuple(t.shape)) if travels else _hash(_thinned(t.detach()))
    return digest


def _digest_of_split(what: str, split: AnySplit) -> Digest:
    digest = {f"the number of {what} samples": str(len(split))}
    if isinstance(split, SampleSplit):
        return digest | _digest_of_samples(what, split)
    digest |= {
        f"the shape of a {what} sample": str(split.shape),
        f"the type of the {what} inputs": f"{_types(split.x)} times {split.scale!r}",
        f"the {what} labels": _hash_all(split.y),
    }
    for row in _spread(split.num_rows, ROWS):
        stored = row if split.picks is None else int(split.picks[row])
        values = [_thinned(t[stored]) for t in tensors_in(split.x)]
        digest[f"row {row} of the {what} inputs"] = _hash_all(values)
    return digest


def _digest_of_samples(what: str, split: SampleSplit) -> Digest:
    """Return a digest of the labels, where they are known, and of a few samples as the first epoch has them."""
    digest = {} if split.labels is None else {f"the {what} labels": _hash(split.labels)}
    for row in _spread(split.num_rows, SAMPLES):
        tensors = list(tensors_in(split.read([row], 0)))
        digest[f"the shape of sample {row} of the {what} data"] = ", ".join(str(tuple(t.shape[1:])) for t in tensors)
        digest[f"sample {row} of the {what} data"] = _hash_all([_thinned(t) for t in tensors])
    return digest


def _spread(rows: int, count: int) -> list[int]:
    """Return the first row, the last, and others evenly spaced in between."""
    return sorted({i * (rows - 1) // (count - 1) for i in range(count)}) if rows else []


def _types(x: Nested) -> str:
    return ", ".join(str(t.dtype) for t in tensors_in(x))


def _thinned(t: Tensor) -> Tensor:
    """Return the first and the last values of a large tensor: the rest might have to be read from a disk."""
    flat = t.reshape(-1)
    half = VALUES // 2
    return flat if len(flat) <= VALUES else torch.cat([flat[:half], flat[-half:]])


def _hash_all(nested: Nested) -> str:
    """Return one hash of all tensors of a nest."""
    hashes = [_hash(t) for t in tensors_in(nested)]
    together = hashlib.blake2b("".join(hashes).encode(), digest_size=16).hexdigest()
    return hashes[0] if len(hashes) == 1 else HASHED + together


def _hash(t: Tensor) -> str:
    raw = t.cpu().contiguous().view(torch.uint8).numpy()
    kind = f"{t.dtype} {tuple(t.shape)}".encode()
    return HASHED + hashlib.blake2b(raw.data, digest_size=16, key=kind[:64]).hexdigest()


def _check_same(comm: Comm, digest: Digest, what: str, hint: str) -> None:
    """Compare a hash of the ranks' digests; gather the whole digests only where it differs, to name the difference."""
    short = hashlib.blake2b(json.dumps(digest).encode(), digest_size=7).digest()
    numbers = comm.all_gather(torch.tensor([int.from_bytes(short)])).flatten().tolist()
    if len(set(numbers)) == 1:
        return
    texts = gather_texts(comm, json.dumps([socket.gethostname(), digest]))
    hosts, digests = zip(*map(json.loads, texts), strict=True)
    most = Counter(numbers).most_common(1)[0][0]
    usual = numbers.index(most)
    others = [rank for rank, number in enumerate(numbers) if number != most]
    raise UserError(
        f"{_named(others, hosts)} {'has' if len(others) == 1 else 'have'} other {what} than "
        f"{_named([usual], hosts)}: {_difference(digests[usual], digests[others[0]])}; "
        f"every rank must have the same, so {hint}"
    )


def _difference(usual: Digest, other: Digest) -> str:
    name = next(name for name in {**usual, **other} if usual.get(name) != other.get(name))
    values = [digest.get(name, "missing") for digest in (other, usual)]
    shown = not any(value.startswith(HASHED) for value in values)
    return (
        f"{name} is {values[0]}, not {values[1]}" if shown else f"{name} differ{'' if name.endswith('labels') else 's'}"
    )


def _named(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Return ranks with their hosts in words: `rank 1 on a`, `ranks 1-3 on a and ranks 4, 6 on b`."""
    named = []
    for host in dict.fromkeys(hosts[rank] for rank in ranks):
        here = [rank for rank in ranks if hosts[rank] == host]
        named.append(f"rank{'s' if len(here) > 1 else ''} {', '.join(_spans(here))} on {host}")
    return " and ".join(named)


def _spans(ranks: Iterable[int]) -> Iterator[str]:
    """Yield consecutive ranks as one span: 1-3, 5."""
    for _, neighbours in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        together = [rank for _, rank in neighbours]
        yield str(together[0]) if len(together) == 1 else f"{together[0]}-{together[-1]}"
