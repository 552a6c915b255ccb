"""Refuse data that does not fit into memory before it is read."""

from manyhands.errors import check
from manyhands.machine import facts
from manyhands.record.texts import num_bytes

MAX_VALUES = 1 << 33


def check_fits(needed: int, what: str, hint: str) -> None:
    """Refuse data, named `what`, that needs more bytes than are available."""
    available = facts.available_bytes()
    check(
        needed <= available,
        f"{what} takes {num_bytes(needed)} of memory, but only {num_bytes(available)} are available; {hint}",
    )


def check_size(values: int, value_bytes: int, what: str, hint: str) -> None:
    """Refuse data, named `what`, of more values than are allowed or than fit into memory."""
    check(values <= MAX_VALUES, f"{what} would hold {values} values, but at most {MAX_VALUES} are allowed; {hint}")
    check_fits(values * value_bytes, what, hint)
