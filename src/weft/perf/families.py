"""What jobs of one family have in common, so that something is known about a job that has never run.

A family is the jobs of one owner whose names differ only in a number at the end.  An estimate from the family counts
only until the job itself has been measured.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping

from weft.core.cluster import Shape
from weft.core.speed import StepTime

MAX_FAMILIES = 500
"""The least recently measured are forgotten first."""
MAX_SHAPES = 16
UNKNOWN_STEP_S = 1.0
_NUMBER_AT_END = re.compile(r"[-_. ]?\d+$")


def family_of(user: str, name: str) -> str:
    """The family of a job.

    >>> family_of("ana", "cifar10-17"), family_of("ana", "train.py")
    ('ana/cifar10', 'ana/train.py')
    """
    return f"{user}/{_NUMBER_AT_END.sub('', name) or name}"


class FamilySpeeds:
    """Step times by shape, as measured last in any job of a family."""

    def __init__(self) -> None:
        self._families: dict[str, dict[Shape, StepTime]] = {}

    def measured(self, family: str, shape: Shape, time: StepTime) -> None:
        """A job of the family takes ``time`` for a step on devices of ``shape``."""
        times = self._families.pop(family, {})
        times.pop(shape, None)
        times[shape] = time
        self._families[family] = times
        if len(times) > MAX_SHAPES:
            del times[next(iter(times))]
        if len(self._families) > MAX_FAMILIES:
            del self._families[next(iter(self._families))]

    def of(self, family: str) -> Mapping[Shape, StepTime]:
        """What is known about the family; empty if nothing is."""
        return self._families.get(family, {})

    @property
    def usual_step_s(self) -> float:
        """The median step of one worker over all families, rounded; a second if nothing was measured."""
        times_s = [time.step_s * sum(shape) for times in self._families.values() for shape, time in times.items()]
        return float(f"{statistics.median(times_s):.1g}") if times_s else UNKNOWN_STEP_S

    def document(self) -> dict[str, list[list[object]]]:
        """Plain data for a JSON file."""
        return {
            family: [[list(shape), time.step_s, time.exposed_s] for shape, time in times.items()]
            for family, times in self._families.items()
        }

    def restore(self, document: Mapping[str, list[list[object]]]) -> None:
        """Take over a document; raises ``ValueError`` and the like on an invalid one."""
        for family, times in document.items():
            for shape, step_s, exposed_s in times:
                time = StepTime(float(step_s), float(exposed_s))  # type: ignore[arg-type]
                self.measured(str(family), tuple(map(int, shape)), time)  # type: ignore[call-overload]
