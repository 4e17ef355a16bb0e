"""The cost of a restart, learned from a job's earlier ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.errors import UsageError

DEFAULT_S = 30.0
_PRIOR_WEIGHT = 2.0
_MAX_KEPT = 20


@dataclass(frozen=True, slots=True)
class RestartCost:
    """A prior and the most recent restarts of a job.

    >>> RestartCost().estimate_s, RestartCost().observed(10.0).observed(10.0).estimate_s
    (30.0, 20.0)
    """

    prior_s: float = DEFAULT_S
    seen_s: tuple[float, ...] = ()

    @property
    def estimate_s(self) -> float:
        """The prior counts as much as two restarts."""
        return (self.prior_s * _PRIOR_WEIGHT + math.fsum(self.seen_s)) / (_PRIOR_WEIGHT + len(self.seen_s))

    def observed(self, restart_s: float) -> RestartCost:
        """With one more restart; the oldest are forgotten."""
        if not (math.isfinite(restart_s) and restart_s >= 0):
            raise UsageError(f"a restart took {restart_s} s: expected a finite number >= 0")
        return RestartCost(self.prior_s, (*self.seen_s, restart_s)[-_MAX_KEPT:])
