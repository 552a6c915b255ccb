"""Refuse data that does not fit into memory before it is read."""

from manyhands.errors import check
from manyhands.machine import facts
from manyhands.record.texts import num_bytes


def check_fits(needed: int, what: str, hint: str) -> None:
    """Refuse to hold so many bytes where fewer are available."""
    available = facts.available_bytes()
    check(
        needed <= available,
        f"{what} takes {num_bytes(needed)} of memory, but only {num_bytes(available)} are available; {hint}",
    )
