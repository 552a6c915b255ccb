"""What calls cost between threads that share their memory: each works on its slice of everybody's tensor.

It is how engine `threads` carries them out, so the formulas count what its code does: a barrier before and one after,
and between them copies (β) and additions (γ) of bytes. Of a `Link` here α is what a barrier of two threads takes. Of
more, each wakes the next at best, which takes p − 1 times as long; at worst every pair adds as much, since all of them
wait for the interpreter's lock. The geometric mean is between the two.
"""

import numpy as np

from manyhands.model.collectives import Formula
from manyhands.model.links import Floats, Link


def barrier(p: Floats, n: Floats, link: Link, gamma: float) -> Floats:
    """Wait for all threads."""
    return (p - 1) * np.sqrt(p / 2) * link.alpha_s


def _between_barriers(work: Formula) -> Formula:
    return lambda p, n, link, gamma: 2 * barrier(p, n, link, gamma) + work(p, n, link, gamma)


SLICES: dict[str, Formula] = {
    "barrier": barrier,
    "all-reduce": _between_barriers(lambda p, n, link, gamma: (p - 1) / p * n * (gamma + link.beta_s_per_byte)),
    "reduce": _between_barriers(lambda p, n, link, gamma: (p - 1) / p * n * gamma),
    "broadcast": _between_barriers(lambda p, n, link, gamma: n * link.beta_s_per_byte),
    "all-gather": _between_barriers(lambda p, n, link, gamma: p * n * link.beta_s_per_byte),
    "reduce-scatter": _between_barriers(
        lambda p, n, link, gamma: n / p * link.beta_s_per_byte + (p - 1) / p * n * gamma
    ),
}
"""The formula of each call; messages between two threads take no part in it."""
