"""How fast a job runs at each size: the only thing that policies know about its internals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from weft.errors import UsageError

MIN_GAP_HANDOVERS = 3.0
"""A gap shorter than this many handovers is not offered to another job, and not counted on in a prediction."""
MIN_STEP_S = 1e-6
MAX_STEP_S = 1e7
"""A step reported as shorter or longer than this is not a measurement; within the limits, products stay finite."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One training step: ``step_s`` in total, of which the device waits ``exposed_s`` for the network."""

    step_s: float
    exposed_s: float = 0.0

    @property
    def compute_s(self) -> float:
        return self.step_s - self.exposed_s


@dataclass(frozen=True, eq=False)
class SpeedCurve:
    """Step time by number of workers, measured or predicted.

    Compared by identity on purpose: jobs of one kind share one curve, and policies cache what they derive from it.

    >>> SpeedCurve({4: StepTime(0.4, 0.1), 1: StepTime(1.0)}).sizes
    (1, 4)
    """

    times: Mapping[int, StepTime]
    untried: frozenset[int] = frozenset()
    """Sizes whose time was not measured but predicted or assumed."""

    def __post_init__(self) -> None:
        if not self.times:
            raise UsageError("a speed curve without a size: expected at least one measured number of workers")
        for size, time in self.times.items():
            if size < 1 or not 0 < time.step_s < float("inf") or not 0 <= time.exposed_s <= time.step_s:
                raise UsageError(
                    f"at {size} workers a step takes {time.step_s} s, {time.exposed_s} s of it exposed: "
                    "expected positive finite times and exposed_s <= step_s"
                )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of workers with a known step time, smallest first."""
        return tuple(sorted(self.times))


def fastest(curves: Mapping[str, SpeedCurve]) -> SpeedCurve:
    """Of the curves by device kind, the one with the shortest step at its smallest size; the first of equals."""
    return min(curves.values(), key=lambda curve: curve.times[curve.sizes[0]].step_s * curve.sizes[0])
