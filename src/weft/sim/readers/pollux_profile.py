"""Profiles of the Pollux artifact: one folder per application.

``placements.csv`` and ``scalability.csv`` have step times, ``validation-B.csv`` the progress of training at global
batch size B, one row per epoch.  They determine the time of a step on any placement, and the number of steps of a job
with a fixed global batch size, by the rules of the authors' simulator.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from weft.core.cluster import Shape
from weft.core.speed import StepTime
from weft.errors import InputError, UsageError
from weft.sim.readers.step_tables import BatchCurve, StepTable, canonical
from weft.sim.readers.tables import Row, read_table

# Constants of that simulator: the batch per device that fits on a T4, and a job that never scales out.
MAX_LOCAL_BATCH = {"yolov3": 8}
MAX_WORKERS = {"ncf": 1}


@dataclass(frozen=True, slots=True)
class EpochRow:
    """The end of an epoch at one batch size."""

    progress: float
    grad_sqr: float
    grad_var: float


@dataclass(frozen=True, eq=False)
class PolluxApplication:
    """One application: how long its steps take, and how many it needs."""

    name: str
    steps: StepTable
    epochs_by_batch: dict[int, tuple[EpochRow, ...]]
    min_local_batch: int
    max_local_batch: int

    def check_batch_size(self, batch_size: int) -> None:
        low, high = min(self.epochs_by_batch), max(self.epochs_by_batch)
        if not max(low, self.min_local_batch) <= batch_size <= high:
            raise UsageError(f"{self.name} has no profile at batch size {batch_size}: expected {low} to {high}")

    def profile(self, batch_size: int) -> PolluxJobProfile:
        """Its behavior at one global batch size."""
        return PolluxJobProfile(self, batch_size)

    def max_workers(self, batch_size: int) -> int:
        """The maximum number of workers that each get at least the smallest measured batch."""
        allowed = min(batch_size // self.min_local_batch, self.steps.max_devices)
        return max(1, min(allowed, MAX_WORKERS.get(self.name, allowed)))

    def step_time(self, shape: Shape, batch_size: int) -> StepTime:
        """A step of the whole ``batch_size`` on ``shape``, in several passes if it does not fit in memory."""
        num_workers = sum(shape)
        local = math.ceil(batch_size / num_workers)
        extra_passes = math.ceil(local / self.max_local_batch) - 1
        if num_workers == 1 and batch_size > self.min_local_batch:
            extra_passes = max(1, extra_passes)
        one_pass = self.steps.at(shape, math.ceil(local / (extra_passes + 1)))
        return StepTime(one_pass.step_s + extra_passes * (one_pass.step_s - one_pass.exposed_s), one_pass.exposed_s)

    def total_steps(self, batch_size: int) -> float:
        """Steps to the end of the last epoch at a fixed global batch size."""
        return self.steps_per_epoch(batch_size)[-1][1]

    def steps_per_epoch(self, batch_size: int) -> list[tuple[float, float]]:
        """(progress, steps) at the end of each epoch, both cumulative."""
        num_epochs = min(len(rows) for rows in self.epochs_by_batch.values())
        done_progress = done_steps = 0.0
        ends = []
        for epoch in range(num_epochs):
            end_progress = min(rows[epoch].progress for rows in self.epochs_by_batch.values())
            done_steps += max(0.0, end_progress - done_progress) / self.gain(batch_size, epoch)
            done_progress = max(done_progress, end_progress)
            ends.append((done_progress, done_steps))
        return ends

    def gain(self, batch_size: int, epoch: int) -> float:
        """Progress of one step, in steps at the smallest batch size."""
        grad_sqr, grad_var = self._gradient_noise(batch_size, epoch)
        noise = grad_var * min(self.epochs_by_batch) / batch_size + grad_sqr
        return (grad_var + grad_sqr) / noise if noise else 1.0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The global batch sizes with a progress curve."""
        return tuple(sorted(self.epochs_by_batch))

    def _gradient_noise(self, batch_size: int, epoch: int) -> tuple[float, float]:
        known = sorted(self.epochs_by_batch)
        right = bisect_left(known, batch_size)
        high = self.epochs_by_batch[known[right]][epoch]
        if known[right] == batch_size:
            return high.grad_sqr, high.grad_var
        low = self.epochs_by_batch[known[right - 1]][epoch]
        share = (batch_size - known[right - 1]) / (known[right] - known[right - 1])
        sqr = low.grad_sqr + share * (high.grad_sqr - low.grad_sqr)
        return sqr, low.grad_var + share * (high.grad_var - low.grad_var)


@dataclass(frozen=True, eq=False)
class PolluxJobProfile:
    """An application at one global batch size; caches step times."""

    application: PolluxApplication
    batch_size: int
    _known: dict[Shape, StepTime] = field(default_factory=dict, repr=False)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(range(1, self.application.max_workers(self.batch_size) + 1))

    def step_time(self, shape: Shape) -> StepTime:
        time = self._known.get(shape)
        if time is None:
            time = self._known[shape] = self.application.step_time(shape, self.batch_size)
        return time

    def best_step_time(self, num_workers: int) -> StepTime:
        """The shortest step and, independently, the least compute over all shapes, for lower bounds."""
        times = [self.step_time(shape) for shape in self.application.steps.shapes_of(num_workers)]
        step_s = min(time.step_s for time in times)
        return StepTime(step_s, step_s - min(step_s, *(time.compute_s for time in times)))


def read_pollux_application(folder: Path) -> PolluxApplication:
    placements: dict[Shape, list[Row]] = {}
    for row in read_table(folder / "placements.csv", required=("placement", "local_bsz", "step_time", "sync_time")):
        placements.setdefault(_shape(row), []).append(row)
    if not placements:
        raise InputError("no measured placement: expected at least one row", file=str(folder / "placements.csv"))
    pairs: dict[tuple[int, int], list[Row]] = {}
    if (folder / "scalability.csv").exists():
        columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        for row in read_table(folder / "scalability.csv", required=columns):
            pairs.setdefault((row.count("num_nodes"), row.count("num_replicas")), []).append(row)
    table = StepTable(
        {placement: _curve(rows) for placement, rows in placements.items()},
        {pair: _curve(rows) for pair, rows in pairs.items()},
    )
    largest = table.local_batches[-1]
    return PolluxApplication(
        folder.name,
        table,
        _read_epochs(folder),
        table.local_batches[0],
        min(largest, MAX_LOCAL_BATCH.get(folder.name, largest)),
    )


def _shape(row: Row) -> Shape:
    text = row.text("placement")
    if not text.isdecimal() or "0" in text:
        raise row.error(f"placement is {text!r}: expected devices per node as digits 1-9, like 44")
    return canonical(tuple(int(digit) for digit in text))


def _curve(rows: list[Row]) -> BatchCurve:
    times: dict[int, StepTime] = {}
    for row in rows:
        batch = row.count("local_bsz")
        step_s, sync_s = row.positive("step_time"), row.non_negative("sync_time")
        if sync_s > step_s:
            raise row.error(f"sync_time {sync_s} is more than step_time {step_s}, which includes it")
        if batch in times:
            raise row.error(f"local_bsz {batch} occurs twice for this placement: remove one")
        times[batch] = StepTime(step_s, sync_s)
    batches = sorted(times)
    return BatchCurve(tuple(batches), tuple(times[batch] for batch in batches))


def _read_epochs(folder: Path) -> dict[int, tuple[EpochRow, ...]]:
    epochs: dict[int, tuple[EpochRow, ...]] = {}
    for path in sorted(folder.glob("validation-*.csv")):
        size = path.stem.removeprefix("validation-")
        if not size.isdecimal() or int(size) == 0:
            raise InputError("expected a file name like validation-128.csv, with the batch size", file=str(path))
        rows = []
        last = 0.0
        for row in read_table(path, required=("progress", "grad_sqr", "grad_var")):
            progress = row.positive("progress")
            if progress <= last:
                raise row.error(f"progress {progress} is not above the previous row's: it is cumulative")
            rows.append(EpochRow(progress, row.non_negative("grad_sqr"), row.non_negative("grad_var")))
            last = progress
        if not rows:
            raise InputError("no epochs: expected one row per epoch", file=str(path))
        epochs[int(size)] = tuple(rows)
    if not epochs:
        raise InputError("no validation-B.csv: expected a progress curve for each batch size B", file=str(folder))
    return epochs
