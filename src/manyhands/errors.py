"""The errors a user may see, and the two helpers that word them."""

import difflib
from collections.abc import Iterable
from typing import NoReturn


class ManyhandsError(Exception):
    """Any failure that manyhands explains by itself, without a traceback."""


class UserError(ManyhandsError):
    """A bad request: one sentence that says what was given, what is allowed, and a hint."""


class Diverged(ManyhandsError):
    """The loss became NaN or infinite."""


class RankFailed(ManyhandsError):
    """A rank raised or was killed while the run was going on."""

    def __init__(self, *, rank: int, host: str, step: int, cause: str) -> None:
        self.rank, self.host, self.step, self.cause = rank, host, step, cause
        where = f"at step {step}" if step >= 0 else "before the first step"
        super().__init__(f"rank {rank} on {host} failed {where}: {cause}")


def check(condition: bool, sentence: str) -> None:
    """Raise a `UserError` with this sentence unless the condition holds."""
    if not condition:
        raise UserError(sentence)


def unknown(kind: str, given: str, allowed: Iterable[str]) -> NoReturn:
    """Raise a `UserError` that names the nearest allowed name and lists them all."""
    allowed = list(allowed)
    nearest = difflib.get_close_matches(given, allowed, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'? " if nearest else ""
    raise UserError(f"there is no {kind} '{given}'; {hint}choose from: {', '.join(allowed)}")
