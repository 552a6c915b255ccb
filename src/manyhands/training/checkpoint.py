"""Checkpoints: one safetensors file each, with a JSON header; written beside, flushed, then renamed.

No generator's state is needed: the order of samples and the random layers are functions of the seed and the step.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from manyhands.errors import UserError, check
from manyhands.record.files import write_atomically, writing
from manyhands.replica import Replica
from manyhands.replica.update import Moments

OWN = "own/"
"""What the names of tensors with a row per rank begin with."""
TENSORS = {"params", "moments", "scalars"}
"""What every checkpoint holds."""


@dataclass
class Cursor:
    """Where in the run a checkpoint was taken."""

    step: int = 0
    epoch_losses: list[float] = field(default_factory=list)
    """Mean loss of each finished epoch."""
    loss_sum: float = 0.0
    """Loss of the unfinished epoch so far, times samples."""


def write_checkpoint(
    folder: Path,
    replica: Replica,
    cursor: Cursor,
    task: str,
    keep: int,
    *,
    moments: Moments | None = None,
    own: dict[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint and remove all but the last `keep` up to it; any after it were damaged, and are put aside.

    `moments` is the whole optimiser state where this replica holds only a slice of it; `own` has a row per rank.
    """
    with writing(folder):
        folder.mkdir(exist_ok=True)  # a run's folder that somebody deleted is not made again
    elements, scalars = moments or replica.update.moments()
    tensors = {"params": replica.params, "moments": elements, "scalars": scalars}
    tensors.update({f"{OWN}{name}": stack for name, stack in (own or {}).items()})
    tensors = _copies(tensors)
    header = {
        "cursor": json.dumps(asdict(cursor)),
        "task": task,
        "shapes": json.dumps(_shapes(replica.module)),
    }
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
    """Remove what is older than the last `keep`; what cannot be removed does no harm.

    The run went on from the newest sound checkpoint, so those with later steps are damaged, and count for nothing.
    """
    every = checkpoints(newest.parent)
    until = every.index(newest) + 1
    with contextlib.suppress(OSError):
        for old in every[: max(0, until - keep)]:
            old.unlink()
        for damaged in every[until:]:
            damaged.replace(damaged.with_name(f"{damaged.name}.damaged"))


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in this folder, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def newest_sound(folder: Path) -> tuple[Path | None, list[Path]]:
    """Return the newest checkpoint that is whole, and the damaged ones after it."""
    damaged: list[Path] = []
    for path in reversed(checkpoints(folder)):
        if _is_sound(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


def restore(path: Path, replica: Replica) -> Cursor:
    """Bring a replica to the state of the checkpoint; one of another model is a user error."""
    tensors, _ = _read(path)
    check_fits(path, replica)
    replica.params.copy_(tensors["params"])
    replica.update.set_moments(Moments(tensors["moments"], tensors["scalars"]))
    return read_cursor(path)


def own_state(path: Path, rank: int) -> dict[str, Tensor]:
    """Return what the checkpoint holds for this rank alone."""
    return {name.removeprefix(OWN): t[rank] for name, t in _read(path)[0].items() if name.startswith(OWN)}


def check_workers(path: Path, workers: int) -> None:
    """Refuse another number of workers where each of them had a state of its own."""
    saved = {len(t) for name, t in _read(path)[0].items() if name.startswith(OWN)}
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
    own = _shapes(replica.module)
    if saved != own:
        raise UserError(
            f"checkpoint '{path}' is of another model: task '{header['task']}' with {_count(saved):,} values "
            f"in {len(saved)} tensors, while this one has {_count(own):,} in {len(own)}"
        )


def weights_sha256(module: nn.Module) -> str:
    """Hash names and values of all weights and buffers, whatever their layout in memory."""
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
    """Whether a file is a whole checkpoint of ours, whatever it is instead."""
    try:
        tensors, header = _read(path)
        stored = header.pop("sha256")
        Cursor(**json.loads(header["cursor"]))
        dict(json.loads(header["shapes"]))
        return tensors.keys() >= TENSORS and "task" in header and _digest(tensors, header) == stored
    except Exception:  # there is no end to what a parser may raise for a file that is not ours
        return False


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in module.state_dict().items()}


def _count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(int(torch.Size(s).numel()) for s in shapes.values())
