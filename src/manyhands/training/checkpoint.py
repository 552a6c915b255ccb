"""Checkpoints: one safetensors file each, with a JSON header; written beside, flushed, then renamed.

They hold no state of a random generator: the order of samples and the random layers are functions of seed and step.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from manyhands.errors import UserError, check
from manyhands.record.files import write_atomically, writing
from manyhands.replica import Replica
from manyhands.replica.update import Moments
from manyhands.sync import Sync

PER_RANK = "own/"
"""Prefix of the names of tensors that have a row for each rank."""
FURTHER = "further/"
"""Prefix of the names of further tensors, which all ranks share."""
EXTRA = "extra/"
"""Prefix of the names of the replica's further tensors."""
TENSORS = {"params", "moments", "scalars"}
"""Names of the tensors that every checkpoint holds."""


@dataclass
class Cursor:
    """Where in the run a checkpoint was taken."""

    step: int = 0
    epoch_losses: list[float] = field(default_factory=list)
    """Mean loss of each finished epoch."""
    loss_sum: float = 0.0
    """Loss of the unfinished epoch so far, times samples."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Every evaluation until then, as plain JSON."""


def write_checkpoint(
    folder: Path,
    replica: Replica,
    cursor: Cursor,
    task: str,
    keep: int,
    *,
    moments: Moments | None = None,
    per_rank: Mapping[str, Tensor] | None = None,
    further: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint, and remove all but the last `keep`.

    A file of a later step is a damaged one, which this run passed over when it resumed: it is put aside.

    `moments` is the whole optimiser state, where this replica holds only a slice of it; the tensors of `per_rank` have
    a row for each rank, and those of `further` are the same on all of them.
    """
    with writing(folder):
        folder.mkdir(exist_ok=True)  # a run's folder that somebody deleted is not made again
    elements, scalars = moments or replica.update.moments()
    rows = {f"{PER_RANK}{name}": stack for name, stack in (per_rank or {}).items()}
    rows |= {f"{FURTHER}{name}": t for name, t in (further or {}).items()}
    extras = {f"{EXTRA}{name}": t for name, t in replica.extras().items()}
    tensors = _copies({"params": replica.params, "moments": elements, "scalars": scalars, **extras, **rows})
    shapes = json.dumps(_shapes(replica.module))
    header = {"cursor": json.dumps(asdict(cursor)), "task": task, "shapes": shapes, "order": _order(replica)}
    header["sha256"] = _digest(tensors, header)
    path = folder / f"step-{cursor.step:09d}.safetensors"
    write_atomically(path, save(tensors, header))
    _prune(path, keep)
    return path


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, such as a network's `state_dict()`, as one safetensors file."""
    write_atomically(path, save(_copies(tensors)))


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, where no two share memory: safetensors refuses those."""
    return {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}


def _prune(newest: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints; a file that cannot be removed does no harm.

    The run went on from the newest sound checkpoint, so those of later steps are damaged.
    """
    paths = checkpoints(newest.parent)
    until = paths.index(newest) + 1
    with contextlib.suppress(OSError):
        for old in paths[: max(0, until - keep)]:
            old.unlink()
        for damaged in paths[until:]:
            damaged.replace(damaged.with_name(f"{damaged.name}.damaged"))


def checkpoints(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def newest_sound(folder: Path) -> tuple[Path | None, list[Path]]:
    """Return the newest checkpoint that is undamaged, and the damaged ones after it."""
    damaged: list[Path] = []
    for path in reversed(checkpoints(folder)):
        if _is_sound(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


def restore(path: Path, replica: Replica) -> Cursor:
    """Load a checkpoint's weights and optimiser state into a replica of the same model; return its cursor."""
    tensors, _ = _read(path)
    check_fits(path, replica)
    replica.params.copy_(tensors["params"])
    replica.update.set_moments(Moments(tensors["moments"], tensors["scalars"]))
    for name, t in replica.extras().items():
        if f"{EXTRA}{name}" in tensors:
            t.copy_(tensors[f"{EXTRA}{name}"])
    return read_cursor(path)


def state_of_rank(replica: Replica, sync: Sync) -> dict[str, Tensor]:
    """Return the tensors that differ between the ranks, of which a checkpoint holds every rank's."""
    if not sync.apart:
        return sync.tensors()
    extras = {f"{EXTRA}{name}": t for name, t in replica.extras().items()}
    elements, scalars = replica.update.moments()
    apart = {"params": replica.params, "moments": elements, "scalars": scalars.to(elements.device)}
    return {**apart, **extras, **sync.tensors()}


def restore_rank(path: Path, replica: Replica, sync: Sync, rank: int) -> None:
    """Load the tensors of `state_of_rank` that a checkpoint holds for this rank."""
    stacks = {name.removeprefix(PER_RANK): t for name, t in _read(path)[0].items() if name.startswith(PER_RANK)}
    if sync.apart:
        replica.params.copy_(stacks["params"][rank])
        of_first = replica.update.moments().scalars.expand(rank + 1, -1)  # in older checkpoints, all alike
        replica.update.set_moments(Moments(stacks["moments"][rank], stacks.get("scalars", of_first)[rank]))
        for name, t in replica.extras().items():
            if f"{EXTRA}{name}" in stacks:
                t.copy_(stacks[f"{EXTRA}{name}"][rank])
    for name, t in sync.tensors().items():
        t.copy_(stacks[name][rank])


def read_further(path: Path, rank: int) -> dict[str, Tensor]:
    """Return a checkpoint's further tensors, and this rank's of those that differ between the ranks."""
    tensors = _read(path)[0].items()
    further = {name.removeprefix(FURTHER): t for name, t in tensors if name.startswith(FURTHER)}
    return further | {name.removeprefix(PER_RANK): t[rank] for name, t in tensors if name.startswith(PER_RANK)}


def check_workers(path: Path, workers: int) -> None:
    """Refuse another number of workers, where each had a state of its own."""
    saved = {len(t) for name, t in _read(path)[0].items() if name.startswith(PER_RANK)}
    check(
        saved <= {workers},
        f"checkpoint '{path.name}' holds a state of its own for each of {max(saved, default=0)} workers; "
        f"it cannot be resumed with {workers}",
    )


def read_cursor(path: Path) -> Cursor:
    """Return where in its run a checkpoint was taken."""
    return Cursor(**json.loads(_read(path)[1]["cursor"]))


def check_fits(path: Path, replica: Replica) -> None:
    """Refuse a checkpoint of another model."""
    _, header = _read(path)
    saved = {name: tuple(shape) for name, shape in json.loads(header["shapes"]).items()}
    shapes = _shapes(replica.module)
    if saved != shapes:
        raise UserError(
            f"checkpoint '{path}' is of another model: task '{header['task']}' with {_count(saved):,} values "
            f"in {len(saved)} tensors, while this one has {_count(shapes):,} in {len(shapes)}"
        )
    check(
        header.get("order", _order(replica)) == _order(replica),
        f"checkpoint '{path}' has the weights in another order: the task's param_groups were others; "
        "resume with those that the run began with",
    )


def _order(replica: Replica) -> str:
    """Return the names of the weights in their order in memory, which groups decide."""
    return json.dumps(list(replica.spans))


def weights_sha256(module: nn.Module) -> str:
    """Return a hash of the names and values of all weights and buffers, whatever their layout in memory."""
    return _digest({name: t.detach().cpu().contiguous() for name, t in module.state_dict().items()})


def _digest(tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode() if header else b"")
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as f:
        return {name: f.get_tensor(name) for name in f.keys()}, f.metadata() or {}  # noqa: SIM118


def _is_sound(path: Path) -> bool:
    """Tell whether a file is an undamaged checkpoint."""
    try:
        tensors, header = _read(path)
        stored = header.pop("sha256")
        Cursor(**json.loads(header["cursor"]))
        dict(json.loads(header["shapes"]))
        return tensors.keys() >= TENSORS and "task" in header and _digest(tensors, header) == stored
    except Exception:  # parsers raise all kinds of errors for a damaged file
        return False


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in module.state_dict().items()}


def _count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes.values()))
