"""The errors that a user may see, and functions that word them."""

from collections.abc import Iterable, Sequence
from typing import NoReturn

MOST_LISTED, MOST_COMPARED = 50, 2000
"""Largest numbers of names that an error lists, and that it compares with a misspelt one."""
MOST_SHOWN = 200
"""Largest number of characters of a value that an error shows."""
LARGEST = 10**1000
"""Upper bound of integers: Python prints up to 4,300 digits, and an error may show a product of several."""


class ManyhandsError(Exception):
    """Any failure that manyhands explains in a sentence, without a traceback."""


class UserError(ManyhandsError):
    """A bad request: one sentence with the given value, the allowed values, and a hint."""


class TaskFileFailed(UserError):
    """A user's task file raised an exception while it was imported or tried, whose traceback is shown."""


class Stopped(ManyhandsError):
    """The user stopped a run that has no result yet."""

    def __init__(self, says: str = "stopped") -> None:
        super().__init__(says)


class Diverged(ManyhandsError):
    """The loss became NaN or infinite."""


class CannotWrite(ManyhandsError, OSError):
    """A file cannot be written, as on a full disk, in a missing folder, or without permission."""

    def __init__(self, path: object, error: OSError) -> None:
        reason = error.strerror or str(error)
        OSError.__init__(self, error.errno, reason, str(path))
        self.sentence = f"cannot write '{path}': {reason}"

    def __str__(self) -> str:
        return self.sentence


class RankFailed(ManyhandsError):
    """A rank raised an exception or was killed during a run; `step` is -1 before the first step."""

    def __init__(self, *, rank: int, host: str, step: int, cause: str) -> None:
        self.rank, self.host, self.step, self.cause = rank, host, step, cause
        where = f"at step {step}" if step >= 0 else "before the first step"
        name = f"rank {rank}" if rank >= 0 else "a rank"
        super().__init__(f"{name} on {host} failed {where}: {cause}")


def printable(text: str) -> str:
    """Escape characters that cannot be encoded, such as bytes of a file's name that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ends with this error: 2 bad request, 130 stopped, 1 other failure."""
    if isinstance(error, KeyboardInterrupt | Stopped):
        return 130
    return 2 if isinstance(error, UserError) else 1


def check(condition: bool, sentence: str) -> None:
    """Raise a `UserError` with `sentence` unless `condition` holds."""
    if not condition:
        raise UserError(sentence)


def kind_of(value: object) -> str:
    """Return a value's type with its article: `a DataLoader`, `an int`, `None`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def unknown(kind: str, given: str, allowed: Iterable[str]) -> NoReturn:
    """Raise a `UserError` that suggests the allowed name nearest to `given` and lists all of them."""
    allowed = list(allowed)
    meant = nearest(given, allowed[:MOST_COMPARED])
    hint = f"did you mean '{meant}'? " if meant else ""
    raise UserError(f"there is no {kind} '{given}'; {hint}choose from: {listed(allowed)}")


def listed(names: Sequence[str]) -> str:
    """Join names with commas; of more than `MOST_LISTED`, only the first."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def shown(value: object) -> str:
    """Return a value's `repr`, shortened to `MOST_SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def nearest(given: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that was probably meant: one within a few typing errors, else one that begins with it."""
    word, names = _plain(given), list(allowed)
    distance, name = min(((_edits(word, _plain(name)), name) for name in names), default=(len(word), ""))
    if distance <= max(1, len(word) // 3) and distance < len(word) and not word.isdigit():  # numbers are not misspelt
        return name
    longer = [name for name in names if len(word) >= 3 and _plain(name).startswith(word)]
    return min(longer, key=len, default=None)


def _plain(name: str) -> str:
    return name.removeprefix("--").lower().replace("_", "-")


def _edits(a: str, b: str) -> int:
    """Return the edit distance: letters to insert, delete, replace, or swap with their neighbour (Damerau 1964)."""
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, last, row = row, before, [i]
        for j, other in enumerate(b, 1):
            costs = [before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other)]
            if i > 1 and j > 1 and letter == b[j - 2] and other == a[i - 2]:
                costs.append(last[j - 2] + 1)
            row.append(min(costs))
    return row[-1]
