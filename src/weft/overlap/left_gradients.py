"""Sharded gradients that are still in ``p.grad`` when a step has used them, on their way to another plan.

Their norms may be logged, and if they are not zeroed, the next backward adds to them.  They are in the memory of
exchanges, which belongs to the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from weft.overlap.gradient import ShardedGradient
from weft.overlap.sharded import ShardedSchedule
from weft.overlap.state_runs import StateRun, overlapping


class LeftGradients:
    """Copies of this worker's part; made under the old plan."""

    def __init__(self, schedule: ShardedSchedule) -> None:
        self._schedule = schedule
        left = {n for n, parameter in enumerate(schedule.parameters) if isinstance(parameter.grad, ShardedGradient)}
        buckets = [bucket for bucket in schedule.buckets if left and bucket.exchange.reduced is not None]
        self._dtypes = {bucket.plan.lane: bucket.reduced.dtype for bucket in buckets}
        # Every worker knows those of all parameters.
        self._use_counts: dict[int, torch.Tensor] = {}
        for bucket in buckets:
            self._use_counts.update(zip(bucket.plan.parameters, bucket.counts().clone(), strict=True))
        self.runs = [
            StateRun(piece.parameter, "gradient", piece.start, bucket.own_gradient_run(piece).clone())
            for bucket in buckets
            for piece in bucket.own
            if piece.parameter in left
        ]

    def make_room(self) -> None:
        """Under the new plan, before any :meth:`put`."""
        for bucket in self._schedule.buckets:
            if bucket.plan.lane in self._dtypes:
                send = bucket.exchange.send
                bucket.exchange.reduced = send.new_zeros(send.shape[1], dtype=self._dtypes[bucket.plan.lane])
                for position, parameter in enumerate(bucket.plan.parameters):
                    bucket.counts()[position] = self._use_counts[parameter]

    def put(self, runs: Iterable[StateRun]) -> None:
        """Write runs of any worker into the pieces that are now ours."""
        by_parameter: dict[int, list[StateRun]] = {}
        for run in runs:
            by_parameter.setdefault(run.parameter, []).append(run)
        for bucket in self._schedule.buckets:
            for piece in bucket.own:
                for part in overlapping(by_parameter.get(piece.parameter, ()), [piece]):
                    first = part.start - piece.start
                    bucket.own_gradient_run(piece)[first : first + len(part.values)] = part.values
