"""What something takes while other programs leave the machine alone."""

import numpy as np
import numpy.typing as npt

QUIET = 0.25
"""Of repeated measurements, the share that other programs hardly ever disturb."""


def undisturbed(samples: npt.ArrayLike) -> float:
    """Return the lower quartile: nearly the median on a quiet machine, and still what the work takes on a busy one."""
    return float(np.quantile(np.asarray(samples, dtype=np.float64), QUIET))
