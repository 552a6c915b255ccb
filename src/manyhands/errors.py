"""The errors a user may see, and what words them."""

from collections.abc import Iterable, Sequence
from typing import NoReturn

MOST_LISTED, MOST_COMPARED = 50, 2000
"""Names that an error lists, and among which it looks for the nearest."""
MOST_SHOWN = 200
"""Letters of a value that an error shows."""


class ManyhandsError(Exception):
    """Any failure that manyhands explains by itself, without a traceback."""


class UserError(ManyhandsError):
    """A bad request: one sentence that says what was given, what is allowed, and a hint."""


class TaskFileFailed(UserError):
    """A user's file raised while it was imported or tried out; the cause's traceback is theirs."""


class Stopped(ManyhandsError):
    """The user ended the run, which has nothing to show for it."""

    def __init__(self, says: str = "stopped") -> None:
        super().__init__(says)


class Diverged(ManyhandsError):
    """The loss became NaN or infinite."""


class CannotWrite(ManyhandsError, OSError):
    """A file cannot be written: the disk is full, the folder is gone, or it is not allowed."""

    def __init__(self, path: object, error: OSError) -> None:
        reason = error.strerror or str(error)
        OSError.__init__(self, error.errno, reason, str(path))
        self.sentence = f"cannot write '{path}': {reason}"

    def __str__(self) -> str:
        return self.sentence


class RankFailed(ManyhandsError):
    """A rank raised or was killed while the run was going on."""

    def __init__(self, *, rank: int, host: str, step: int, cause: str) -> None:
        self.rank, self.host, self.step, self.cause = rank, host, step, cause
        where = f"at step {step}" if step >= 0 else "before the first step"
        name = f"rank {rank}" if rank >= 0 else "a rank"
        super().__init__(f"{name} on {host} failed {where}: {cause}")


def printable(text: str) -> str:
    """Escape what is no text, such as the bytes of a file's name that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def exit_status(error: BaseException) -> int:
    """Return what a command that ends with this error tells the shell: 2 a bad request, 130 stopped, 1 any failure."""
    if isinstance(error, KeyboardInterrupt | Stopped):
        return 130
    return 2 if isinstance(error, UserError) else 1


def check(condition: bool, sentence: str) -> None:
    """Raise a `UserError` with this sentence unless the condition holds."""
    if not condition:
        raise UserError(sentence)


def kind_of(value: object) -> str:
    """Say what kind of value this is: `a DataLoader`, `an int`, `None`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def unknown(kind: str, given: str, allowed: Iterable[str]) -> NoReturn:
    """Raise a `UserError` that names the nearest allowed name and lists them all."""
    allowed = list(allowed)
    meant = nearest(given, allowed[:MOST_COMPARED])
    hint = f"did you mean '{meant}'? " if meant else ""
    raise UserError(f"there is no {kind} '{given}'; {hint}choose from: {listed(allowed)}")


def listed(names: Sequence[str]) -> str:
    """Join names with commas; of very many, only the first."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def shown(value: object) -> str:
    """Write a value as it was given, cut short where it is long."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def nearest(given: str, allowed: Iterable[str]) -> str | None:
    """Return the name that was meant: one a few slips of the pen away, or else one that begins so; None if neither."""
    word, names = _plain(given), list(allowed)
    slips, name = min(((_slips(word, _plain(name)), name) for name in names), default=(len(word), ""))
    if slips <= max(1, len(word) // 3) and slips < len(word) and not word.isdigit():  # another number is no slip
        return name
    longer = [name for name in names if len(word) >= 3 and _plain(name).startswith(word)]
    return min(longer, key=len, default=None)


def _plain(name: str) -> str:
    return name.removeprefix("--").lower().replace("_", "-")


def _slips(a: str, b: str) -> int:
    """Count the letters to add, leave out, replace, or swap with their neighbour to make one word the other."""
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, last, row = row, before, [i]
        for j, other in enumerate(b, 1):
            costs = [before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other)]
            if i > 1 and j > 1 and letter == b[j - 2] and other == a[i - 2]:
                costs.append(last[j - 2] + 1)
            row.append(min(costs))
    return row[-1]
