"""When to decide: soon after something happened, not too often, and again when a decision expires."""

from __future__ import annotations

import math

_GATHER_S = 0.05
"""What happens together is decided together."""
_MIN_GAP_S = 0.25
_REST_PER_DECISION = 10.0
"""Deciding takes at most a tenth of the time."""
_AFTER_FAILURE_S = 10.0


class DecisionTimer:
    """Of one loop; times are those of its clock."""

    def __init__(self) -> None:
        self._wanted_s = math.inf
        self._rested_s = -math.inf

    @property
    def due_s(self) -> float:
        return max(self._wanted_s, self._rested_s)

    def want(self, now_s: float) -> None:
        self._wanted_s = min(self._wanted_s, now_s + _GATHER_S)

    def begin(self) -> None:
        """A decision is being made: nothing is wanted until something happens."""
        self._wanted_s = math.inf

    def made(self, now_s: float, took_s: float, valid_until_s: float) -> None:
        self._rested_s = now_s + max(_MIN_GAP_S, _REST_PER_DECISION * took_s)
        self._wanted_s = max(valid_until_s, self._rested_s)

    def failed(self, now_s: float) -> float:
        """It could not be made; returns after how many seconds it is tried again."""
        self._wanted_s = self._rested_s = now_s + _AFTER_FAILURE_S
        return _AFTER_FAILURE_S

    def not_written(self, try_again_s: float) -> None:
        self._wanted_s = try_again_s
