"""Name the functions and lines of a profile, and write what they took as plain JSON."""

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from manyhands.measurement.calls import Function, Tally, Toll

MOST_LINES = 40
"""Lines to keep of each rank: there are many that take next to nothing."""


class Looked(Protocol):
    """What a lens has seen."""

    steps: int
    tally: Tally

    @property
    def timed_steps(self) -> int:
        """How many steps the tally is of."""

    @property
    def disturbed_steps(self) -> int:
        """How many timed steps are not in it."""

    @property
    def plain_step_s(self) -> float:
        """How long a step is that is not timed."""

    @property
    def extra_s(self) -> float:
        """By how much a timed step is longer."""

    def toll(self) -> Toll:
        """Tell what the notes cost."""


def plain(lens: Looked) -> dict[str, Any]:
    """Return all that a lens has seen; seconds and calls are sums over the timed steps."""
    functions, toll = lens.tally.functions, lens.toll()
    return {
        "steps": lens.steps,
        "timed_steps": lens.timed_steps,
        "disturbed_steps": lens.disturbed_steps,
        "plain_step_ms": 1e3 * lens.plain_step_s,
        "extra_ms": 1e3 * lens.extra_s,
        "functions": [_function(code, function, toll) for code, function in functions.items()],
        "lines": sorted(_lines(functions, toll), key=lambda line: -line["self_s"])[:MOST_LINES],
    }


def name_of(code: CodeType) -> str:
    """Return a function's name as one would say it: `FusedReplica._forward`, `lambda in stepper`."""
    *outer, name = code.co_qualname.split(".<locals>.")
    if name.startswith("<") and name.endswith(">"):
        return f"{name[1:-1]} in {outer[-1]}" if outer else name[1:-1]
    return name


def file_of(code: CodeType) -> str:
    """Return a function's file relative to the folder on Python's path in which it lies, or else as it is."""
    file = Path(code.co_filename)
    roots = [Path(entry).resolve() for entry in sys.path if entry]
    found = [file.relative_to(root) for root in roots if file.is_relative_to(root)]
    return str(min(found, key=lambda path: len(path.parts), default=file))


def line_of(code: CodeType, place: int) -> int:
    """Return the line of a place in a function."""
    lines = (line for start, stop, line in code.co_lines() if start <= place < stop and line is not None)
    return next(lines, code.co_firstlineno)


def _function(code: CodeType, function: Function, toll: Toll) -> dict[str, Any]:
    self_s = function.own.net(toll)
    return {
        "name": name_of(code),
        "file": file_of(code),
        "line": code.co_firstlineno,
        "calls": function.calls,
        "self_s": self_s,
        # The toll is an average: of very short functions that were called it may take more than they had.
        "total_s": max(self_s, function.whole.net(toll)),
    }


def _lines(functions: dict[CodeType, Function], toll: Toll) -> Iterator[dict[str, Any]]:
    """Yield the lines that called compiled functions; several places may stand on one line."""
    for code, function in functions.items():
        by_line: dict[int, dict[str, Any]] = {}
        for place, spent in function.lines.items():
            number = line_of(code, place)
            row = by_line.setdefault(number, {"line": number, "calls": 0, "self_s": 0.0})
            row["calls"] += function.line_calls[place]
            row["self_s"] += spent.net(toll)
        about = {"function": name_of(code), "file": file_of(code)}
        for row in by_line.values():
            yield {**about, **row, "source": linecache.getline(code.co_filename, row["line"]).strip()}
