"""What calls cost between threads that share their memory: each works on its slice of everybody's tensor.

It is how engine `threads` carries them out, so the formulas count what its code does: a barrier before and one after,
and between them copies (β) and additions (γ) of bytes. Of a `Link` here α is what a barrier of two threads takes, which
is one operation each; every other operation takes as long again besides its bytes, one thread after the other, since
they all want the interpreter's lock.
"""

from collections.abc import Callable

from manyhands.model.collectives import Formula
from manyhands.model.links import Floats, Link


def barrier(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Wait for all threads: the first one waits for each, and each for the first."""
    return (p - 1) * link.alpha_s


def _between_barriers(operations: Callable[[Floats], Floats], work: Formula) -> Formula:
    """Count a call's operations, of all threads together, and what they do with its bytes at the same time."""

    def cost_s(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
        waits_s, operations_s = 2 * barrier(p, n, link, gamma), operations(p) * link.alpha_s / 2
        return waits_s + operations_s + work(p, n, link, gamma)

    return cost_s


SLICES: dict[str, Formula] = {
    "barrier": barrier,
    "all-reduce": _between_barriers(
        lambda p: 2 * p * (p - 1), lambda p, n, link, gamma: (p - 1) / p * n * (gamma + link.beta_s_per_byte)
    ),
    "reduce": _between_barriers(lambda p: p * (p - 1), lambda p, n, link, gamma: (p - 1) / p * n * gamma),
    "broadcast": _between_barriers(lambda p: p - 1, lambda p, n, link, gamma: n * link.beta_s_per_byte),
    "all-gather": _between_barriers(lambda p: p, lambda p, n, link, gamma: p * n * link.beta_s_per_byte),
    "reduce-scatter": _between_barriers(
        lambda p: 2 * p * p, lambda p, n, link, gamma: n / p * link.beta_s_per_byte + (p - 1) / p * n * gamma
    ),
}
"""The formula of each call; messages between two threads take no part in it."""
