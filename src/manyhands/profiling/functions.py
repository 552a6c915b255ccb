"""Name the functions and lines of a profile, and write their times as plain JSON."""

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from manyhands.measurement.calls import Function, Toll


def name_of(code: CodeType) -> str:
    """Return a function's name for people: `FusedReplica._forward`, `lambda in stepper`."""
    *outer, name = code.co_qualname.split(".<locals>.")
    if name.startswith("<") and name.endswith(">"):
        return f"{name[1:-1]} in {outer[-1]}" if outer else name[1:-1]
    return name


def file_of(code: CodeType) -> str:
    """Return a function's file relative to the entry of `sys.path` that holds it, or the whole path without one."""
    file = Path(code.co_filename)
    roots = [Path(entry).resolve() for entry in sys.path if entry]
    candidates = [file.relative_to(root) for root in roots if file.is_relative_to(root)]
    return str(min(candidates, key=lambda path: len(path.parts), default=file))


def line_of(code: CodeType, place: int) -> int:
    """Return the source line of the instruction at offset `place`."""
    lines = (line for start, stop, line in code.co_lines() if start <= place < stop and line is not None)
    return next(lines, code.co_firstlineno)


def function_row(code: CodeType, function: Function, toll: Toll) -> dict[str, Any]:
    """Return the calls and seconds of a function, without the cost of logging."""
    self_s = function.self_time.net(toll)
    return {
        "name": name_of(code),
        "file": file_of(code),
        "line": code.co_firstlineno,
        "calls": function.calls,
        "self_s": self_s,
        # The toll is an average: it may exceed the time of very short functions.
        "total_s": max(self_s, function.total_time.net(toll)),
    }


def line_rows(code: CodeType, function: Function, toll: Toll) -> Iterator[dict[str, Any]]:
    """Yield the lines of a function that call compiled functions, with calls and seconds."""
    by_line: dict[int, dict[str, Any]] = {}
    for place, spent in function.lines.items():
        number = line_of(code, place)
        row = by_line.setdefault(number, {"line": number, "calls": 0, "self_s": 0.0})
        row["calls"] += function.line_calls[place]
        row["self_s"] += spent.net(toll)
    about = {"function": name_of(code), "file": file_of(code)}
    for row in by_line.values():
        yield {**about, **row, "source": linecache.getline(code.co_filename, row["line"]).strip()}
