"""Time of a training step by number of workers and kind of overlap, from first principles.

    none   F + B + R + G
    ddp    F + max(B, R + G)             all-reduce hidden under the backward pass
    dear   max(B, R) + max(F, G)         reduce-scatter under backward, all-gather under the next forward

These are ideals: what remains when every byte that can be hidden is hidden.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weft.core.speed import StepTime
from weft.errors import UsageError
from weft.perf.collectives import Algorithm, Link, all_gather_s, reduce_scatter_s


class Overlap(enum.Enum):
    """How much of the communication runs under the computation."""

    NONE = "none"
    DDP = "ddp"
    DEAR = "dear"


@dataclass(frozen=True, slots=True)
class StepParts:
    """Forward, backward, reduce-scatter and all-gather of one step, each alone."""

    forward_s: float
    backward_s: float
    reduce_scatter_s: float
    all_gather_s: float

    def __post_init__(self) -> None:
        if min(self.forward_s, self.backward_s, self.reduce_scatter_s, self.all_gather_s) < 0:
            raise UsageError(f"{self}: expected times >= 0")


@dataclass(frozen=True, slots=True)
class TrainingModel:
    """What a step consists of, whatever the number of workers: compute per sample, and bytes to reduce."""

    forward_s_per_sample: float
    backward_s_per_sample: float
    num_bytes: float
    fixed_s: float = 0.0
    """Part of the forward pass that does not shrink with the batch."""

    def parts(self, num_workers: int, global_batch: int, algorithm: Algorithm, link: Link) -> StepParts:
        """The parts of a step with ``global_batch`` split over ``num_workers``."""
        share = -(-global_batch // num_workers)
        return StepParts(
            self.forward_s_per_sample * share + self.fixed_s,
            self.backward_s_per_sample * share,
            reduce_scatter_s(algorithm, num_workers, self.num_bytes, link),
            all_gather_s(algorithm, num_workers, self.num_bytes, link),
        )


def step_time(parts: StepParts, overlap: Overlap) -> StepTime:
    """A whole step, and how much of it the device waits for the network.

    >>> step_time(StepParts(1.0, 2.0, 1.5, 1.5), Overlap.DDP)
    StepTime(step_s=4.0, exposed_s=1.0)
    >>> step_time(StepParts(1.0, 2.0, 1.5, 1.5), Overlap.DEAR).step_s
    3.5
    """
    forward_s, backward_s = parts.forward_s, parts.backward_s
    reduce_s, gather_s = parts.reduce_scatter_s, parts.all_gather_s
    if overlap is Overlap.NONE:
        total_s = forward_s + backward_s + reduce_s + gather_s
    elif overlap is Overlap.DDP:
        total_s = forward_s + max(backward_s, reduce_s + gather_s)
    else:
        total_s = max(backward_s, reduce_s) + max(forward_s, gather_s)
    return StepTime(total_s, total_s - forward_s - backward_s)
