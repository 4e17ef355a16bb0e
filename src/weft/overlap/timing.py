"""Notes the moments of a step as they happen; ``step_times.py`` assembles them.

The clock stops while the worker waits for its turn on a shared device.

[Note: device time]  On a device with streams, the host only queues work: when it notes a moment, the device may be far
behind.  So a moment is an event on the current stream, and its time is known once the device has passed it.  At the end
of each step, the clock checks which events have passed (without waiting) and passes those to the record, in the order
in which they were noted.  A wait for a collective is the stall between two events on the waiting stream.  Notes hold no
tensors: the plan may change, and the old plan's memory must be freed in time.

``catch_up()`` does make the host wait.  trace() calls it once, at its end, and the tuner in steps in which the workers
agree on a plan and wait for each other anyway.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.profiler import record_function

from weft.core.chrome_trace import Span
from weft.overlap.bucket import Bucket
from weft.overlap.device import CPU, Device
from weft.overlap.step_times import Message, StepRecord, StepTimes
from weft.perf.link import Link
from weft.process.turns import TURNS


class StepClock:
    """Called by the schedule: a few clock readings per bucket, and per parameter while the tuner needs them."""

    def __init__(self, rank: int, now: Callable[[], float] = TURNS.own_time_s, device: Device = CPU) -> None:
        self.now = now
        # Whether the tuner needs the times of each parameter.
        self.profiling = True
        self._record = StepRecord(rank, now())
        self._on_device = DeviceMoments(device, now()) if device.has_streams else None
        self._tracing = False
        self._backward_began = False
        self._in_step = False

    def _note(self, moment: Callable[..., None], *what: object) -> None:
        if self._on_device:
            self._on_device.note(moment, *what)
        else:
            moment(self.now(), *what)

    # ---- moments

    def forward_began(self) -> None:
        self._note(self._record.forward_began)

    def forward_ended(self) -> None:
        self._note(self._record.forward_ended)

    def parameter_read(self, number: int) -> None:
        if self.profiling:
            self._note(self._record.parameter_read, number)

    def gradient_ready(self, number: int) -> None:
        if self.profiling or not self._backward_began:
            self._backward_began = True
            self._note(self._record.gradient_ready, number)

    def backward_ended(self) -> None:
        self._backward_began = False
        self._note(self._record.backward_ended)

    def step_began(self) -> None:
        self._in_step = True
        self._note(self._record.step_began)

    def step_ended(self) -> None:
        self._in_step = False
        self._note(self._record.step_ended, self._tracing)
        if self._on_device:
            self._on_device.tell()

    def launched(self, kind: str, bucket: Bucket) -> None:
        self._note(self._record.launched, kind, bucket.plan.index)

    @contextmanager
    def waiting(self, kind: str, bucket: Bucket | None = None) -> Iterator[None]:
        """Blocked until a collective is done: exposed communication."""
        self._note(self._record.wait_began)
        with record_function(f"weft: wait {kind}"):
            yield
        traced = None
        if self._tracing and bucket is not None:
            exchange = bucket.exchange
            num_bytes = exchange.reduce_bytes if kind == "reduce-scatter" else exchange.gather_bytes
            region = exchange.region
            traced = Message(kind, bucket.plan.index, num_bytes, region.numel() * region.element_size())
        self._note(self._record.wait_ended, traced)

    @contextmanager
    def updating(self, bucket: Bucket) -> Iterator[None]:
        in_backward = not self._in_step
        if in_backward:
            self._note(self._record.update_began)
        with record_function(f"weft: update bucket {bucket.plan.index}"):
            yield
        if in_backward:
            self._note(self._record.update_ended)

    # ---- results

    @property
    def steps(self) -> Sequence[StepTimes]:
        """The last steps; on a device with streams, those known to have finished."""
        if self._on_device:
            self._on_device.tell()
        return self._record.steps

    def catch_up(self) -> None:
        """Include all steps so far in :attr:`steps`; on a device with streams, the host waits for them."""
        if self._on_device:
            self._on_device.tell(wait=True)

    @property
    def link(self) -> Link | None:
        """The link as measured once by the tuner; kept only here."""
        return self._record.link

    @link.setter
    def link(self, link: Link) -> None:
        self._record.link = link

    def expected_backward_end_s(self) -> float:
        """When this backward will end if it takes as long as the last one."""
        if not self._record.steps:
            return self.now()
        last = self._record.steps[-1]
        return self._record.current.forward_end_s + last.backward_end_s - last.forward_end_s

    def median(self, value: Callable[[StepTimes], float]) -> float:
        """Over the last steps, except the first, whose beginning is unknown."""
        values = [value(step) for step in self.steps if step.number > 0]
        return statistics.median(values) if values else 0.0

    def start_trace(self) -> None:
        self._record.forget_spans()
        self._tracing = True

    def end_trace(self) -> list[Span]:
        """The spans since :meth:`start_trace`; on a device with streams, the host waits for them."""
        self._tracing = False
        self.catch_up()
        return self._record.spans()


class DeviceMoments:
    """Moments on a device's streams, reported once the device has passed them; see [Note: device time]."""

    def __init__(self, device: Device, begin_s: float) -> None:
        self._device = device
        self._told_s = begin_s
        self._last: Any = device.timestamp()
        self._turn_wait_s = TURNS.turn_wait_s
        self._noted: deque[tuple[Any, float, Callable[..., None], tuple[object, ...]]] = deque()

    def note(self, moment: Callable[..., None], *what: object) -> None:
        if not self._device.capturing():  # replays do not record our events
            self._noted.append((self._device.timestamp(), TURNS.turn_wait_s, moment, what))

    def tell(self, wait: bool = False) -> None:
        if self._device.capturing():  # querying an event would break the capture
            return
        while self._noted and (wait or self._noted[0][0].query()):
            event, turn_wait_s, moment, what = self._noted.popleft()
            if wait:
                event.synchronize()
            # From one event to the next: longer times would be too coarse as milliseconds in single precision.
            elapsed_s = self._last.elapsed_time(event) * 1e-3
            # While the host waited for its turn, the device first finished what it had.
            stood_still_s = min(turn_wait_s - self._turn_wait_s, max(elapsed_s, 0.0))
            self._told_s += elapsed_s - stood_still_s
            self._last, self._turn_wait_s = event, turn_wait_s
            moment(self._told_s, *what)
