"""A step measured without communication, and the ways to add communication to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from weft.errors import UsageError


class Mode(StrEnum):
    DDP = "ddp"
    BARRIER = "barrier"
    EAGER = "eager"


@dataclass(frozen=True, slots=True)
class ParameterTiming:
    """When a parameter's gradient is ready and when its value is read, without any waits."""

    num_elements: int
    ready_s: float  # after the start of backward
    read_s: float  # after the start of forward


@dataclass(frozen=True, slots=True)
class StepProfile:
    """A measured step without communication; ``parameters`` in flat (ready) order."""

    parameters: tuple[ParameterTiming, ...]
    forward_s: float
    backward_s: float
    update_s_per_element: float
    element_bytes: int

    def __post_init__(self) -> None:
        if not self.parameters:
            raise UsageError("a step profile without parameters: there is nothing to communicate or to plan")
        times = [self.forward_s, self.backward_s, self.update_s_per_element]
        times += [time for p in self.parameters for time in (p.ready_s, p.read_s)]
        if not all(math.isfinite(time) and time >= 0 for time in times):
            raise UsageError("a step profile has a negative or infinite time: expected seconds, 0 or more")
        if self.element_bytes < 1 or min(p.num_elements for p in self.parameters) < 1:
            raise UsageError("a step profile needs at least one element per parameter and one byte per element")

    @property
    def num_elements(self) -> int:
        return sum(p.num_elements for p in self.parameters)
