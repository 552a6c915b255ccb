"""The index of tar shards: where each member of a sample begins; made by reading the headers alone.

As in WebDataset (Aizman et al. 2019), members whose names agree before the first dot are one sample.
"""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from manyhands.data.readers.pictures import EncodedImage
from manyhands.data.readers.scanning import bar_over
from manyhands.errors import ManyhandsError, UserError, check, listed

Member = EncodedImage
"""A range of a shard's bytes, with its name."""


class Sample(NamedTuple):
    """A member of the input, and one of the target."""

    key: str
    input: Member
    target: Member


def index_shards(shards: Sequence[Path], inputs: Sequence[str], targets: Sequence[str]) -> list[Sample]:
    """Return the samples of all shards, in their order; of several endings the first that a sample has is taken."""
    samples: list[Sample] = []
    for shard in bar_over(shards, "reading the headers of the shards"):
        for key, members in _members(shard).items():
            chosen = [_member(shard, key, members, endings) for endings in (inputs, targets)]
            samples.append(Sample(key, *chosen))
    return samples


def _member(shard: Path, key: str, members: dict[str, Member], endings: Sequence[str]) -> Member:
    present = next((ending for ending in endings if ending in members), None)
    if present is None:
        raise UserError(f"sample '{key}' of '{shard}' has no {' or '.join(endings)}, only {listed(list(members))}")
    return members[present]


def _members(shard: Path) -> dict[str, dict[str, Member]]:
    """Return the members of each sample by their endings, in the order of the shard."""
    samples: dict[str, dict[str, Member]] = {}
    for member in _headers(shard):
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if not (stem and dot):  # hidden files, and files without an ending, belong to no sample
            continue
        members = samples.setdefault(f"{folder}{slash}{stem}", {})
        check(ending.lower() not in members, f"'{shard}' holds '{member.name}' twice")
        members[ending.lower()] = member
    check(bool(samples), f"'{shard}' holds no samples: no member is named NAME.ENDING")
    return samples


def _headers(shard: Path) -> list[Member]:
    """Return all regular members of a tar file, which must be whole."""
    size = 0
    members = []
    try:
        size = shard.stat().st_size
        with open(shard, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for info in archive:
                if info.isreg():
                    check(not info.issparse(), f"'{info.name}' of '{shard}' is sparse, which is not read; pack it anew")
                    members.append(Member(shard, info.name, info.offset_data, info.size))
            stream.seek(archive.offset)
            end = stream.read(tarfile.BLOCKSIZE)
    except ManyhandsError:
        raise
    except Exception as error:  # of damaged headers tarfile raises several kinds of errors
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        hint = "" if size else "; it is empty"
        raise UserError(f"'{shard}' cannot be read as a tar file that is not compressed: {reason}{hint}") from None
    last = f" after '{members[-1].name}'" if members else ""
    check(len(end) == tarfile.BLOCKSIZE, f"'{shard}' is cut short{last}: it has no end mark")
    check(not any(end), f"'{shard}' is damaged{last}: no header of a member can be read there")
    return members
