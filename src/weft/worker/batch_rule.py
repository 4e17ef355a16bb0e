"""``run.loader(..., batch_size=256, batch_rule="linear")``: the script's batch size, and what may replace it.

A job submitted with ``--batch MIN:MAX`` trains each attempt with the batch size that the controller has chosen within
the range; the rule says what happens to the learning rates.  Without a range the script's own batch size is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weft.errors import UsageError

RULES: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {"linear": lambda ratio: ratio, "sqrt": math.sqrt, "none": lambda ratio: 1.0}
)
"""By name: the factor for every learning rate when the batch is ``ratio`` times the script's own."""


@dataclass(frozen=True, slots=True)
class RuledBatch:
    """The batch size of this attempt, and the one in the script."""

    size: int
    script_size: int
    rate_factor: float


def ruled_batch(rule: str, script_size: int, limits: tuple[int, int] | None, chosen: int | None) -> RuledBatch:
    """The batch size to train with.

    >>> ruled_batch("sqrt", 256, limits=(256, 2048), chosen=1024)
    RuledBatch(size=1024, script_size=256, rate_factor=2.0)
    >>> ruled_batch("linear", 128, limits=(256, 2048), chosen=None)
    RuledBatch(size=256, script_size=128, rate_factor=2.0)
    >>> ruled_batch("linear", 128, limits=None, chosen=None)
    RuledBatch(size=128, script_size=128, rate_factor=1.0)
    """
    if rule not in RULES:
        raise UsageError(f"batch_rule is {rule!r}: expected one of {', '.join(RULES)}")
    if not isinstance(script_size, int) or script_size < 1:
        raise UsageError(f"batch_size is {script_size!r}, expected a positive whole number of samples")
    size = script_size
    if limits is not None:
        low, high = limits
        size = min(max(script_size if chosen is None else chosen, low), high)
    return RuledBatch(size, script_size, RULES[rule](size / script_size))
