"""When buckets of gradients that are exchanged while the backward pass still runs are done.

A bucket starts when it is ready and the one before it has ended: start = max(ready, end of last).
"""

import numpy as np
import numpy.typing as npt

from manyhands.model.links import Floats


def bucket_ends_s(ready_s: npt.ArrayLike, cost_s: npt.ArrayLike) -> Floats:
    """Return when each bucket ends; buckets lie along the last axis, in the order in which they are exchanged."""
    ready, cost = np.broadcast_arrays(np.asarray(ready_s, dtype=np.float64), np.asarray(cost_s, dtype=np.float64))
    after = np.cumsum(cost, axis=-1)
    # Without the cost of the buckets before it, a start is the latest moment at which any up to it was ready.
    ends: Floats = np.maximum.accumulate(ready - (after - cost), axis=-1) + after
    return ends


def last_end_s(ready_s: npt.ArrayLike, cost_s: npt.ArrayLike) -> Floats:
    """Return when the last bucket ends."""
    return np.asarray(bucket_ends_s(ready_s, cost_s)[..., -1])
