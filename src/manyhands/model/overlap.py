"""When buckets of gradients that are exchanged while the backward pass still runs are done.

A bucket starts when it is ready and the one before it has ended: start = max(ready, end of last).
"""

import numpy as np
import numpy.typing as npt

from manyhands.model.links import Floats


def bucket_end_s(ready_s: npt.ArrayLike, last_end_s: npt.ArrayLike, cost_s: npt.ArrayLike) -> Floats:
    """Return when a bucket ends, given when it is ready and when the one before it ended; for arrays of each."""
    return np.asarray(np.maximum(ready_s, last_end_s) + cost_s)
