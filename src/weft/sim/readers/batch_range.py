"""Jobs whose global batch size may change while they train, from profiles with gradient noise.

The unit of work is progress: one step at the smallest measured batch size.  A step at a larger one makes

    gain(B) = (var + sqr) / (var / scale + sqr),   scale = B / smallest B

of it, with the gradient's squared norm and variance of the current epoch (as in Pollux).  At every size, the job trains
with the batch that makes the most progress per second.  Changing it costs nothing, as in the published numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.core.cluster import Shape
from weft.core.speed import StepTime
from weft.sim.readers.pollux_profile import PolluxApplication
from weft.sim.workload import JobStage

FloatArray = NDArray[np.float64]
NUM_BATCHES = 24
"""How many batch sizes are considered, at equal ratios between the smallest and the largest."""


@dataclass(frozen=True, eq=False)
class BatchRange:
    """An application that may use any global batch size it was measured at."""

    application: PolluxApplication
    _times: dict[Shape, tuple[FloatArray, FloatArray]] = field(default_factory=dict, repr=False)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        known = self.application.batch_sizes
        grid = np.geomspace(max(known[0], self.application.min_local_batch), known[-1], NUM_BATCHES)
        return tuple(sorted({*known, *(round(batch) for batch in grid)}))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(range(1, self.application.max_workers(self.batches[-1]) + 1))

    def times(self, shape: Shape) -> tuple[FloatArray, FloatArray]:
        """Step times and exposed times on ``shape`` by batch size; infinite where workers would get too little."""
        found = self._times.get(shape)
        if found is None:
            fewest = sum(shape) * self.application.min_local_batch
            times = [
                self.application.step_time(shape, batch) if batch >= fewest else StepTime(float("inf"))
                for batch in self.batches
            ]
            found = np.array([time.step_s for time in times]), np.array([time.exposed_s for time in times])
            self._times[shape] = found
        return found

    @cached_property
    def stages(self) -> tuple[JobStage, ...]:
        """One per epoch."""
        ends = [end for end, _ in self.application.steps_per_epoch(self.application.batch_sizes[0])]
        stages = []
        for epoch, end in enumerate(ends):
            if end > (ends[epoch - 1] if epoch else 0.0):
                gains = np.array([self.application.gain(batch, epoch) for batch in self.batches])
                stages.append(JobStage(ends[-1] - end, EpochProfile(self, gains)))
        return tuple(stages)

    @cached_property
    def total_progress(self) -> float:
        return self.application.steps_per_epoch(self.application.batch_sizes[0])[-1][0]

    @cached_property
    def optimistic(self) -> EpochProfile:
        """At least as fast as every stage: for lower bounds."""
        profiles = [stage.profile for stage in self.stages]
        gains = np.max([profile.gains for profile in profiles if isinstance(profile, EpochProfile)], axis=0)
        return EpochProfile(self, gains)


@dataclass(frozen=True, eq=False)
class EpochProfile:
    """Progress in one epoch, at the best batch size for each shape."""

    range: BatchRange
    gains: FloatArray
    _known: dict[Shape, StepTime] = field(default_factory=dict, repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.range.sizes

    def step_time(self, shape: Shape) -> StepTime:
        time = self._known.get(shape)
        if time is None:
            step_s, exposed_s = self.range.times(shape)
            best = int(np.argmin(step_s / self.gains))
            gain = float(self.gains[best])
            time = self._known[shape] = StepTime(float(step_s[best]) / gain, float(exposed_s[best]) / gain)
        return time

    def best_step_time(self, num_workers: int) -> StepTime:
        """The shortest step and, independently, the least compute over all shapes, for lower bounds."""
        times = [self.step_time(shape) for shape in self.range.application.steps.shapes_of(num_workers)]
        step_s = min(time.step_s for time in times)
        return StepTime(step_s, step_s - min(step_s, *(time.compute_s for time in times)))
