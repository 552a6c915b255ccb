"""Data that does not fit into memory is refused before it is read."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from manyhands.data import load
from manyhands.data.idx import read_idx
from manyhands.errors import UserError
from manyhands.machine import facts

ROWS = 20_000


def packed_idx(folder: Path) -> None:
    (folder / "x.gz").write_bytes(gzip.compress(b"\0\0\x08\x02" + struct.pack(">II", ROWS, 100) + bytes(100 * ROWS)))
    read_idx(folder / "x.gz")


def npz(folder: Path) -> None:
    x, y = np.zeros((ROWS, 25), np.float32), np.zeros(ROWS, np.int64)
    np.savez_compressed(folder / "x.npz", x_train=x, y_train=y)
    load(f"npz:{folder / 'x.npz'}")


def csv(folder: Path) -> None:
    (folder / "x.csv").write_text("text,label\n" + "a,0\nb,1\n" * 10)
    load(f"csv:{folder / 'x.csv'},label=label,text=text,words=100000")


MAKERS: dict[str, Callable[[Path], None]] = {
    "x.gz": packed_idx,
    "x.npz": npz,
    "x.csv": csv,
    "synthetic": lambda _: load(f"synthetic:samples={ROWS},features=25") and None,
    "tweets": lambda _: load(f"tweets:samples={ROWS},words=100") and None,
}


@pytest.mark.parametrize("what", MAKERS)
def test_what_does_not_fit_is_said_before(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MAKERS[what](tmp_path)
    monkeypatch.setattr(facts, "available_bytes", lambda: 1_000_000)
    with pytest.raises(UserError, match=rf"{what}.* takes 2\.\d+ MB of memory, but only 1.00 MB are available; "):
        MAKERS[what](tmp_path)


def test_a_header_that_promises_more_than_the_file_can_hold_is_cut_short(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(b"\0\0\x08\x02" + struct.pack(">II", 2**31, 2**31)))
    with pytest.raises(UserError, match="is cut short"):
        read_idx(file)


def test_memory_is_left() -> None:
    assert facts.available_bytes() > 1_000_000
