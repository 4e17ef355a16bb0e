"""The assignment problem, behind the one import that is slow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def load() -> None:
    """Import what the first call would import, for those who measure how long a decision takes."""
    import scipy.optimize  # noqa: F401


def best_assignment(weight: NDArray[np.float64]) -> list[int]:
    """A different column for each row of a square table, with the greatest total weight.

    >>> best_assignment(np.array([[1.0, 5.0], [2.0, 3.0]]))
    [1, 0]
    """
    # Takes half a second to load, and most decisions do not need it; a controller should answer sooner.
    from scipy.optimize import linear_sum_assignment

    columns: list[int] = linear_sum_assignment(weight, maximize=True)[1].tolist()
    return columns
