"""Which sizes each job of a snapshot may be given, as padded arrays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import JobView
from weft.core.speed import SpeedCurve

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_MAX_KEPT_MENUS = 20_000


class Growth(NamedTuple):
    """A change to a larger size."""

    column: int
    """The place of the larger size in the menu."""
    num_added: int
    saved_s: float
    """Time saved per step; negative if the larger size is slower."""


@dataclass(frozen=True, eq=False)
class Menu:
    """The sizes one kind of job may have on one cluster, smallest first, and its step times there."""

    sizes: tuple[int, ...]
    step_s: tuple[float, ...]
    exposed_s: tuple[float, ...]

    def nearest(self, wanted: int) -> int:
        """The largest size up to ``wanted``, or else the smallest size."""
        return self.sizes[max(0, bisect_right(self.sizes, wanted) - 1)]

    @cached_property
    def next_sizes(self) -> tuple[Growth | None, ...]:
        """For each size, the growth to the next one; None for the largest."""
        return tuple(
            self._growth(column, column + 1) if column + 1 < len(self.sizes) else None
            for column in range(len(self.sizes))
        )

    @cached_property
    def doublings(self) -> tuple[Growth | None, ...]:
        """For each size, the growth to :func:`doubled`; None if that is not allowed."""
        larger = [doubled(self.sizes, size) for size in self.sizes]
        return tuple(
            self._growth(column, self.sizes.index(size)) if size is not None else None
            for column, size in enumerate(larger)
        )

    def _growth(self, column: int, after: int) -> Growth:
        return Growth(after, self.sizes[after] - self.sizes[column], self.step_s[column] - self.step_s[after])


@dataclass(frozen=True, eq=False)
class MenuTable:
    """Menus of several jobs, padded to one width; column 0 is "no workers", padding has infinite step times."""

    sizes: IntArray
    step_s: FloatArray


class MenuBook:
    """Caches menus from decision to decision; similar jobs share one."""

    def __init__(self, *, aligned: bool) -> None:
        self._aligned = aligned
        self._cluster: Cluster | None = None
        self._rows: dict[tuple[SpeedCurve, int, int, tuple[int, ...]], int] = {}
        self._menus: list[Menu] = []
        self._table: MenuTable | None = None
        self._jobs: tuple[JobView, ...] = ()
        self._numbers: list[int] = []
        """Of ``_jobs``, those of the last question: a decision asks several times about the same jobs."""

    def menus(self, cluster: Cluster, jobs: tuple[JobView, ...]) -> list[Menu]:
        """The menu of each job; empty if the cluster is too small for it."""
        return [self._menus[row] for row in self._row_numbers(cluster, jobs)]

    def table(self, cluster: Cluster, jobs: tuple[JobView, ...]) -> MenuTable:
        """The menus of ``jobs`` as arrays with one row each."""
        numbers = self._row_numbers(cluster, jobs)
        if self._table is None:
            self._table = _padded(self._menus)
        table = self._table
        return MenuTable(table.sizes.take(numbers, axis=0), table.step_s.take(numbers, axis=0))

    def _row_numbers(self, cluster: Cluster, jobs: tuple[JobView, ...]) -> list[int]:
        if (cluster is not self._cluster and cluster != self._cluster) or len(self._rows) > _MAX_KEPT_MENUS:
            self._cluster = cluster
            self._rows.clear()
            self._menus.clear()
            self._table = None
        elif jobs is self._jobs:
            return self._numbers
        numbers = []
        for job in jobs:
            spec = job.spec
            key = (job.curve, spec.min_workers, spec.max_workers, spec.sizes)
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = len(self._menus)
                self._menus.append(menu_of(spec, job.curve, cluster, aligned=self._aligned))
                self._table = None
            numbers.append(row)
        self._jobs, self._numbers = jobs, numbers
        return numbers


def menu_of(spec: JobSpec, curve: SpeedCurve, cluster: Cluster, *, aligned: bool) -> Menu:
    """The sizes ``spec`` may have on ``cluster`` for which ``curve`` has a step time.

    ``aligned`` leaves out those that fill nodes with odd remainders, where similar sizes do better.
    """
    known = [size for size in spec.allowed_sizes(cluster.num_devices) if size in curve.times]
    allowed = offered_sizes(known, cluster, aligned=aligned)
    return Menu(
        tuple(allowed),
        tuple(curve.times[size].step_s for size in allowed),
        tuple(curve.times[size].exposed_s for size in allowed),
    )


def offered_sizes(allowed: Sequence[int], cluster: Cluster, *, aligned: bool) -> Sequence[int]:
    """Those of the ``allowed`` sizes, smallest first, that a policy considers.

    A size that packs badly is left out only if there is one that packs well in its place: more than half and less than
    twice as large.  Otherwise a job with a menu of powers of two could not grow beyond two workers on nodes of three.
    """
    if not aligned:
        return allowed
    node = max(cluster.devices_by_node)
    even = [size for size in allowed if packs_well(size, node)]

    def is_replaced(size: int) -> bool:
        place = bisect_right(even, size / 2)
        return place < len(even) and even[place] < 2 * size

    return [size for size in allowed if packs_well(size, node) or not is_replaced(size)]


def packs_well(size: int, node: int) -> bool:
    """Whether ``size`` divides a node, is a power of two inside one, a multiple of one, or, up to four nodes, of half.

    >>> [size for size in range(1, 25) if packs_well(size, node=4)]
    [1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24]
    >>> [size for size in range(1, 8) if packs_well(size, node=3)]
    [1, 2, 3, 6]
    """
    if size <= node:
        return node % size == 0 or size & (size - 1) == 0
    half = node // 2 if node % 2 == 0 else node
    return size % node == 0 or (size % half == 0 and size <= 4 * node)


def next_larger(sizes: Sequence[int], size: int) -> int | None:
    """The smallest of ``sizes`` above ``size``."""
    return next((larger for larger in sizes if larger > size), None)


def doubled(sizes: Sequence[int], size: int) -> int | None:
    """The next power of two, or else twice ``size``, if it is one of ``sizes``.

    >>> [doubled(range(1, 13), size) for size in (1, 2, 3, 4, 8)], doubled((3, 6, 12), 3)
    ([2, 4, 4, 8, None], 6)
    """
    return next((larger for larger in (1 << size.bit_length(), 2 * size) if larger in sizes), None)


def _padded(menus: list[Menu]) -> MenuTable:
    width = 1 + max(1, *(len(menu.sizes) for menu in menus))
    sizes = np.zeros((len(menus), width), dtype=np.int64)
    step_s = np.full((len(menus), width), np.inf)
    for row, menu in enumerate(menus):
        num = len(menu.sizes)
        sizes[row, 1 : num + 1] = menu.sizes
        step_s[row, 1 : num + 1] = menu.step_s
    return MenuTable(sizes, step_s)
