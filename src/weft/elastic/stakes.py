"""The inputs of the utility policies: the jobs of a snapshot as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.elastic.menu import MenuTable

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stakes:
    """The jobs of a snapshot as arrays: what each could have, and what a change would cost it."""

    table: MenuTable
    remaining_steps: FloatArray
    restart_s: FloatArray
    workers: FloatArray
    weights: FloatArray
    is_length_known: NDArray[np.bool_]
    is_present: NDArray[np.bool_]
    """By job and column: whether this is what the job has now."""
    num_devices: float
    """The number of devices, counted like ``counted_sizes``."""
    kinds: IntArray | None = None
    """With several device kinds: the kind of each column's devices, -1 for no workers."""
    kind_speeds: FloatArray | None = None
    """How fast each of those kinds is, compared with the first."""

    @cached_property
    def times_s(self) -> FloatArray:
        """Remaining time by job and column, without restarts; infinite if the job would not run."""
        times_s: FloatArray = self.remaining_steps[:, None] * self.table.step_s
        return times_s

    @cached_property
    def counted_sizes(self) -> FloatArray | IntArray:
        """Devices by job and column; one that is twice as fast as the first kind counts as two."""
        if self.kinds is None or self.kind_speeds is None:
            return self.table.sizes
        counted: FloatArray = self.table.sizes * np.append(0.0, self.kind_speeds[self.kinds[1:]])
        return counted

    def least_size_s(self, times_s: FloatArray) -> FloatArray:
        """The ``times_s`` at the smallest size, on the kind where that is fastest."""
        if self.kinds is None:
            return times_s[:, 1]
        first = np.flatnonzero(np.diff(self.kinds)) + 1
        least: FloatArray = times_s[:, first].min(axis=1)
        return least

    def of(self, rows: Sequence[int]) -> Stakes:
        """The same for some of the jobs."""
        table = MenuTable(self.table.sizes[rows], self.table.step_s[rows])
        return Stakes(
            table,
            self.remaining_steps[rows],
            self.restart_s[rows],
            self.workers[rows],
            self.weights[rows],
            self.is_length_known[rows],
            self.is_present[rows],
            self.num_devices,
            self.kinds,
            self.kind_speeds,
        )
