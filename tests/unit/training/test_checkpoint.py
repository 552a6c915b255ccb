"""A checkpoint gives back every bit; a damaged one is recognised and the one before it is used."""

import json
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from manyhands.errors import UserError
from manyhands.replica import Batch, Replica, build
from manyhands.tasks.optimizers import OPTIMIZERS
from manyhands.training.checkpoint import Cursor, checkpoints, newest_sound, restore, weights_sha256, write_checkpoint

CURSOR = Cursor(step=12, epoch_losses=[2.3, 0.1 + 0.2], loss_sum=1e-17)


def _replica(optimizer: str = "adam", *, seed: int = 0, width: int = 5, fuse: bool = True) -> Replica:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle = [nn.ReLU()] if fuse else [nn.BatchNorm1d(width), nn.ReLU()]
        module = nn.Sequential(nn.Linear(4, width), *middle, nn.Linear(width, 3))
    return build(
        module,
        torch.randn(2, 4),
        "cross-entropy",
        lambda params: OPTIMIZERS[optimizer](params, 0.05),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def _train(replica: Replica, steps: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)
        replica.forward_backward(Batch(x, y), 1.0)
        replica.apply()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("fuse", [True, False], ids=["stack", "batchnorm"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_restored_replica_goes_on_with_the_same_bits(folder: Path, optimizer: str, fuse: bool) -> None:
    original = _replica(optimizer, fuse=fuse)
    _train(original, 5)
    path = write_checkpoint(folder, original, CURSOR, "mlp", keep=3)
    restored = _replica(optimizer, seed=99, fuse=fuse)
    assert restore(path, restored) == CURSOR
    assert torch.equal(restored.params, original.params)
    for replica in (original, restored):
        _train(replica, 4, seed=1)
    assert torch.equal(restored.params, original.params)
    assert weights_sha256(restored.module) == weights_sha256(original.module)


def test_restoring_does_not_take_the_weights_out_of_their_place(folder: Path) -> None:
    path = write_checkpoint(folder, _replica(), CURSOR, "mlp", keep=3)
    replica = _replica(seed=1)
    address = replica.params.data_ptr()
    restore(path, replica)
    assert replica.params.data_ptr() == address
    assert next(replica.module.parameters()).untyped_storage().data_ptr() == address


def test_writing_leaves_the_replica_alone(folder: Path) -> None:
    replica = _replica()
    _train(replica, 2)
    before = replica.params.clone()
    write_checkpoint(folder, replica, CURSOR, "mlp", keep=1)
    assert torch.equal(replica.params, before)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_last_ones_are_kept_in_order(folder: Path, keep: int) -> None:
    replica = _replica()
    for step in (9, 10, 99, 100, 1000):
        write_checkpoint(folder, replica, Cursor(step=step), "mlp", keep)
    assert [int(p.stem.removeprefix("step-")) for p in checkpoints(folder)] == [9, 10, 99, 100, 1000][-keep:]


def test_nothing_else_is_left_in_the_folder(folder: Path) -> None:
    path = write_checkpoint(folder, _replica(), CURSOR, "mlp", keep=3)
    assert list(folder.iterdir()) == [path]


def test_what_was_not_renamed_in_time_is_ignored(folder: Path) -> None:
    path = write_checkpoint(folder, _replica(), CURSOR, "mlp", keep=3)
    (folder / ".step-000000099.safetensors.tmp").write_bytes(path.read_bytes()[:100])
    (folder / "notes.txt").write_text("mine")
    assert checkpoints(folder) == [path]
    assert newest_sound(folder) == (path, [])


def test_no_folder_holds_no_checkpoint(folder: Path) -> None:
    assert newest_sound(folder) == (None, [])


def _written(folder: Path, *steps: int) -> list[Path]:
    replica = _replica()
    _train(replica, 2)
    return [write_checkpoint(folder, replica, Cursor(step=s, epoch_losses=[1.25]), "mlp", keep=9) for s in steps]


def _damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    match how:
        case "cut short":
            content = content[: len(content) // 2]
        case "empty":
            content = bytearray()
        case "a bit of a weight":
            content[-40] ^= 1
        case "zeros at the end":
            content[-64:] = bytes(64)
        case "no header":
            content[:8] = bytes(8)
        case "grown":
            content += b"more"
        case "other text":
            content = bytearray(b"not a checkpoint at all")
    path.write_bytes(content)


DAMAGES = ["cut short", "empty", "a bit of a weight", "zeros at the end", "no header", "grown", "other text"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_one_is_recognised_and_the_one_before_is_used(folder: Path, how: str) -> None:
    first, second, third = _written(folder, 10, 20, 30)
    _damage(third, how)
    assert newest_sound(folder) == (second, [third])
    _damage(second, how)
    assert newest_sound(folder) == (first, [third, second])
    _damage(first, how)
    assert newest_sound(folder) == (None, [third, second, first])


def test_a_folder_in_its_place_is_no_checkpoint(folder: Path) -> None:
    (first,) = _written(folder, 10)
    (folder / "step-000000020.safetensors").mkdir()
    assert newest_sound(folder)[0] == first


def test_one_wrong_byte_anywhere_is_never_taken_for_sound(folder: Path) -> None:
    """Wherever a byte is changed, the file is refused, or what it gives back is not changed by it."""
    first, second = _written(folder, 10, 20)
    whole = second.read_bytes()
    expected = _replica(seed=5)
    cursor = restore(second, expected)
    header = int.from_bytes(whole[:8], "little") + 8
    draw = random.Random(0)
    places = list(range(header)) + draw.sample(range(header, len(whole)), 100)
    wrong = []
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << draw.randrange(8)
        second.write_bytes(content)
        sound, _ = newest_sound(folder)
        if sound == second:
            found = _replica(seed=5)
            try:
                same = restore(second, found) == cursor and torch.equal(found.params, expected.params)
            except Exception:
                same = False
            if not same:
                wrong.append(whole[max(0, place - 12) : place + 12])
        else:
            assert sound == first
    assert not wrong, f"{len(wrong)} of {len(places)} changes went unnoticed, such as near {wrong[:5]}"


@cache
def _content(step: int) -> bytes:
    with TemporaryDirectory() as folder:
        return write_checkpoint(Path(folder), _replica(), Cursor(step=step), "mlp", keep=1).read_bytes()


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Draw what may lie in a checkpoint's place: one that is cut short, or has other bytes, or is of somebody else."""
    whole = _content(30)
    match draw(st.integers(0, 4)):
        case 0:
            return draw(st.binary(max_size=300))
        case 1:
            return whole[: draw(st.integers(0, len(whole) - 1))]
        case 2:
            start = draw(st.integers(0, len(whole) - 1))
            stop = draw(st.integers(start + 1, len(whole)))
            return whole[:start] + draw(st.binary(max_size=40)) + whole[stop:]
        case 3:
            metadata = draw(st.none() | st.dictionaries(st.sampled_from(NAMES), st.text(max_size=20)))
            return save({"params": torch.zeros(3)}, metadata)
        case _:
            header = json.dumps(draw(st.dictionaries(st.text(max_size=9), st.integers() | st.none()))).encode()
            return len(header).to_bytes(8, "little") + header + draw(st.binary(max_size=20))


NAMES = ["sha256", "cursor", "shapes", "task", "other"]


@settings(max_examples=100)
@given(contents())
def test_whatever_lies_in_its_place_the_one_before_is_used(content: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        before, foreign = folder / "step-000000020.safetensors", folder / "step-000000030.safetensors"
        before.write_bytes(_content(20))
        foreign.write_bytes(content)
        expected = (foreign, []) if content == _content(30) else (before, [foreign])
        assert newest_sound(folder) == expected


@settings(max_examples=25)
@given(
    sound=st.lists(st.booleans(), min_size=1, max_size=6).filter(any),
    keep=st.integers(1, 4),
    more=st.integers(1, 3),
    further=st.integers(1, 9),
)
def test_pruning_leaves_the_last_sound_ones_whatever_is_damaged(
    sound: list[bool], keep: int, more: int, further: int
) -> None:
    """Go on from the newest sound one of several, some of which are damaged, and write some more."""
    with TemporaryDirectory() as name:
        folder, replica = Path(name), _replica()
        for i, is_sound in enumerate(sound, 1):
            path = write_checkpoint(folder, replica, Cursor(step=10 * i), "mlp", keep=99)
            if not is_sound:
                path.write_bytes(path.read_bytes()[:-5])
        start, damaged = newest_sound(folder)
        assert start is not None
        step = int(start.stem.removeprefix("step-"))
        for i in range(1, more + 1):
            newest = write_checkpoint(folder, replica, Cursor(step=step + i * further), "mlp", keep)
            assert newest_sound(folder) == (newest, [])
            assert len(checkpoints(folder)) <= keep
            assert start.is_file() == (i < keep), "the one that the run went on from is kept as long as any other"
        aside = {path.name for path in folder.glob("*.damaged")}
        assert aside <= {f"{path.name}.damaged" for path in damaged}


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    path = write_checkpoint(folder, _replica(), CURSOR, "mine.py:task", keep=3)
    other = _replica(width=6)
    before = other.params.clone()
    with pytest.raises(UserError, match=r"is of another model: task 'mine.py:task' with 43 values in 4 tensors"):
        restore(path, other)
    assert torch.equal(other.params, before)


def test_the_hash_is_of_names_and_values_whatever_the_layout() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3))
    before = weights_sha256(plain)
    assert weights_sha256(plain.to(memory_format=torch.channels_last)) == before  # type: ignore[call-overload]
    with torch.no_grad():
        plain[0].weight[0, 0, 0, 0] += 1e-3
    assert weights_sha256(plain) != before
    assert weights_sha256(nn.Sequential()) != before
