"""The time of an operation while no other program disturbs the machine."""

import numpy as np
import numpy.typing as npt


def undisturbed(samples: npt.ArrayLike) -> float:
    """Return the lower quartile: close to the median on a quiet machine, and robust against load on a busy one."""
    return float(np.quantile(np.asarray(samples, dtype=np.float64), 0.25))
