"""Confidence intervals for ratios of two step times.  Pure.

Contenders take turns round after round, so a slow minute of the machine affects all of them.  Their times in one
round are a pair; the logarithm of its ratio is one sample.  The ratio is the geometric mean over rounds, its interval
Student's t: few rounds give a wide interval instead of a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

CONFIDENCE = 0.95
NO_INTERVAL = "A measured ratio without an interval is of one round, which says nothing about the spread."


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its confidence interval; infinite where one round says nothing about the spread."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.high)

    def __str__(self) -> str:
        if not self.has_interval:
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


def ratio_range(ratios: Iterable[Ratio]) -> str:
    """The least and the largest, each with its interval.

    >>> ratio_range([Ratio(1.2, 1.1, 1.3), Ratio(1.5, 1.4, 1.6), Ratio(1.1, 0.9, 1.3)])
    '1.10x (0.90-1.30) to 1.50x (1.40-1.60)'
    """
    found = sorted(ratios, key=lambda ratio: ratio.value)
    return " to ".join(dict.fromkeys(map(str, (found[0], found[-1])))) if found else "-"


def interval_note(ratios: Iterable[Ratio | None]) -> list[str]:
    """Lines below a table that say why some of its ratios have no interval; none if all have one."""
    lacks = any(ratio is not None and not ratio.has_interval for ratio in ratios)
    return ["", NO_INTERVAL] if lacks else []
