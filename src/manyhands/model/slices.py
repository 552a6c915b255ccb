"""Costs of collectives between threads that share memory: each thread works on its slice of every rank's tensor.

The formulas count what the code of engine `threads` does: a barrier before and one after, and between them copies (β)
and additions (γ) of bytes. α of the `Link` is the time of a barrier of two threads, which is one operation for each;
every other operation costs as much besides its bytes. Operations run one after the other, since each needs the
interpreter's lock.
"""

from collections.abc import Callable

from manyhands.model.collectives import Formula
from manyhands.model.links import Floats, Link


def barrier(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Return the cost of a barrier: thread 0 waits for each of the others, and each of them for thread 0."""
    return (p - 1) * link.alpha_s


def _between_barriers(operations: Callable[[Floats], Floats], work: Formula) -> Formula:
    """Return the formula of two barriers around `operations(p)` operations and the `work` on the bytes."""

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
"""The formula of each collective; point-to-point messages between threads have none here."""
