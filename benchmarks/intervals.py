"""Confidence intervals for ratios of two step times.  Pure.

Contenders take turns round after round, so a slow minute of the machine affects all of them.  Their times in one
round are a pair; the logarithm of its ratio is one sample.  The ratio is the geometric mean over rounds, its interval
Student's t: few rounds give a wide interval instead of a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its confidence interval; infinite where one round says nothing about the spread."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{self.value:.2f}x"
        return f"{self.value:.2f}x ({self.low:.2f}-{self.high:.2f})"


def paired_ratio(slower: Sequence[float], faster: Sequence[float]) -> Ratio:
    """How many times as fast ``faster`` was, from the times of both in the same rounds.

    >>> print(paired_ratio([2.0, 2.2, 1.8], [1.0, 1.1, 0.9]))
    2.00x (2.00-2.00)
    >>> print(paired_ratio([1.5], [1.0]))
    1.50x
    """
    logs = [math.log(above / below) for above, below in zip(slower, faster, strict=True)]
    if not logs:
        raise ValueError("a ratio needs at least one round in which both were measured")
    middle = fmean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(middle), 0.0, math.inf)
    reach = float(stdtrit(len(logs) - 1, 0.5 + CONFIDENCE / 2)) * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))
