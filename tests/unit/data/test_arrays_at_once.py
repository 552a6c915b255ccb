"""Threads that read arrays of numpy at the same time do not fail, in any Python (CPython issue 106905)."""

import ast
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyhands.crossval.units import read_places, write_places
from manyhands.data import load

WAIT_S = 0.05
"""How long the first thread gives a second one to parse while its own parsing is under way."""
MOST_OTHERS = 20


def parsed_at_once(work: Callable[[], Any]) -> list[Any]:
    """Call this in one thread, and in others, with deeper stacks, in the midst of that; return what all returned.

    The others start when the garbage collector runs, which it does at almost every node of the first one's syntax tree.
    """
    results: list[Any] = []
    others: list[threading.Thread] = []

    def call(frames: int) -> None:
        if frames:
            call(frames - 1)
        else:
            results.append(work())

    def on_collection(phase: str, info: dict[str, int]) -> None:
        parses = sys._getframe(1).f_code.co_filename == ast.__file__
        if parses and phase == "start" and threading.current_thread() is first and len(others) < MOST_OTHERS:
            others.append(threading.Thread(target=call, args=(9,)))
            others[-1].start()
            others[-1].join(WAIT_S)

    first = threading.Thread(target=call, args=(0,))
    before = gc.get_threshold()
    gc.callbacks.append(on_collection)
    gc.set_threshold(1)
    try:
        first.start()
        first.join(30)
    finally:
        gc.callbacks.remove(on_collection)
        gc.set_threshold(*before)
    for thread in others:
        thread.join(30)
    assert others, "the garbage collector did not run while syntax was parsed"
    assert len(results) == 1 + len(others), "a thread failed"
    return results


def test_places_of_folds(tmp_path: Path) -> None:
    """Workers of a cross-validation all read where each sample is."""
    places = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    write_places(tmp_path / "folds.npy", places)
    assert all(torch.equal(read, places) for read in parsed_at_once(lambda: read_places(tmp_path / "folds.npy")))


def test_arrays_of_numpy(tmp_path: Path) -> None:
    """Threads that read the same data all get it."""
    arrays = {"x_train": np.ones((6, 2), np.float32), "y_train": np.arange(6) % 2}
    np.savez(tmp_path / "all.npz", **arrays)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for source in (f"npz:{tmp_path / 'all.npz'}", f"npy:{tmp_path}"):
        assert {len(data.train) for data in parsed_at_once(lambda source=source: load(source))} == {5}  # type: ignore[misc]
