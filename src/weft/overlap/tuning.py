"""Fusion tuned while training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.overlap.rounds import Rounds


class Tuner:
    def __init__(self, schedule: Rounds, bucket_bytes: int | None, tune: bool) -> None:
        self.relayout: Callable[[Sequence[int], Sequence[Sequence[int]]], None]
        self._schedule = schedule

    def after_step(self) -> None:
        pass
