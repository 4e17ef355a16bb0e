"""When things happened in a step, noted as they happen; what ``report()`` and ``trace()`` are made from.

Compute times are measured.  The time a collective took is measured only where somebody had to wait for it; one
that finished unseen is drawn with the length the fitted link predicts, and its span says ``"estimated": true``.
The clock stands still while the worker waits for its turn on a device that it shares.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.profiler import record_function

from weft.core.chrome_trace import Span
from weft.core.turns import TURNS
from weft.overlap.bucket import Bucket

_KEPT_STEPS = 64


@dataclass(slots=True)
class StepTimes:
    """One step, from the end of the last ``step()`` to the end of this one."""

    number: int
    begin_s: float
    forward_begin_s: float = 0.0
    forward_end_s: float = 0.0
    backward_end_s: float = 0.0
    update_begin_s: float = 0.0
    end_s: float = 0.0
    forward_wait_s: float = 0.0
    backward_wait_s: float = 0.0
    clipping_wait_s: float = 0.0  # between backward and step: clipping and GradScaler want whole gradients
    step_wait_s: float = 0.0
    backward_update_s: float = 0.0
    ready_s: dict[int, float] = field(default_factory=dict)
    read_s: dict[int, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def exposed_s(self) -> float:
        return self.forward_wait_s + self.backward_wait_s + self.clipping_wait_s + self.step_wait_s

    @property
    def forward_s(self) -> float:
        return self.forward_end_s - self.forward_begin_s - self.forward_wait_s

    @property
    def backward_s(self) -> float:
        return self.backward_end_s - self.forward_end_s - self.backward_wait_s - self.backward_update_s

    @property
    def update_s(self) -> float:
        return self.end_s - self.update_begin_s - self.step_wait_s + self.backward_update_s


class StepClock:
    """Written to by the schedule; a handful of clock readings per bucket and parameter."""

    def __init__(self, rank: int, now: Callable[[], float] = TURNS.own_time_s) -> None:
        self._rank = rank
        self.now = now
        self.steps: deque[StepTimes] = deque(maxlen=_KEPT_STEPS)
        self.current = StepTimes(0, now())
        self.tracing = False
        # Seconds a collective of so many bytes takes; set when the link has been measured.
        self.predict: Callable[[int], float] = lambda num_bytes: 0.0
        self._in_step = False
        self._launched: dict[tuple[str, int], float] = {}
        self._link_free_s = 0.0

    def forward_began(self) -> None:
        if not self.current.forward_begin_s:
            self.current.forward_begin_s = self.now()

    def forward_ended(self) -> None:
        self.current.forward_end_s = self.now()

    def parameter_read(self, number: int) -> None:
        current = self.current
        if number not in current.read_s and current.forward_begin_s:
            current.read_s[number] = self.now() - current.forward_begin_s - current.forward_wait_s

    def gradient_ready(self, number: int) -> None:
        current = self.current
        waited = current.backward_wait_s + current.backward_update_s
        current.ready_s[number] = self.now() - current.forward_end_s - waited

    def expected_backward_end_s(self) -> float:
        """When this backward will have ended if it takes as long as the last one."""
        if not self.steps:
            return self.now()
        last = self.steps[-1]
        return self.current.forward_end_s + last.backward_end_s - last.forward_end_s

    def backward_ended(self) -> None:
        self.current.backward_end_s = self.now()

    def step_began(self) -> None:
        self._in_step = True
        self.current.update_begin_s = self.now()

    def step_ended(self) -> None:
        done = self.current
        done.end_s = self.now()
        self._in_step = False
        if self.tracing:
            self._compute_spans(done)
        self.steps.append(done)
        self.current = StepTimes(done.number + 1, done.end_s)

    def launched(self, kind: str, bucket: Bucket) -> None:
        self._launched[kind, bucket.plan.index] = self.now()

    @contextmanager
    def waiting(self, kind: str, bucket: Bucket | None = None) -> Iterator[None]:
        """Blocked until a collective is done: exposed communication."""
        began = self.now()
        with record_function(f"weft: wait {kind}"):
            yield
        ended = self.now()
        current = self.current
        if self._in_step:
            current.step_wait_s += ended - began
        elif current.backward_end_s:
            current.clipping_wait_s += ended - began
        elif current.forward_end_s:
            current.backward_wait_s += ended - began
        else:
            current.forward_wait_s += ended - began
        if self.tracing and bucket is not None:
            self._communication_span(kind, bucket, began, ended)

    @contextmanager
    def updating(self, bucket: Bucket) -> Iterator[None]:
        began = self.now()
        with record_function(f"weft: update bucket {bucket.plan.index}"):
            yield
        if not self._in_step:
            self.current.backward_update_s += self.now() - began

    def median(self, value: Callable[[StepTimes], float], last: int = _KEPT_STEPS) -> float:
        """Over the last steps; the first has no beginning."""
        values = [value(step) for step in list(self.steps)[-last:] if step.number > 0]
        return statistics.median(values) if values else 0.0

    def spans(self) -> list[Span]:
        """Everything noted since tracing was switched on, in time from its first step."""
        traced = [step for step in self.steps if step.spans]
        origin = traced[0].begin_s if traced else 0.0
        return [
            Span(span.process, span.track, span.name, span.start_s - origin, span.duration_s, span.args)
            for step in traced
            for span in step.spans
        ]

    def _span(self, track: str, name: str, begin_s: float, end_s: float, **args: object) -> None:
        if end_s > begin_s:
            step = self.current
            args["step"] = step.number
            step.spans.append(Span(f"worker {self._rank}", track, name, begin_s, end_s - begin_s, args))

    def _compute_spans(self, step: StepTimes) -> None:
        self._span("compute", "forward", step.forward_begin_s, step.forward_end_s)
        self._span("compute", "backward", step.forward_end_s, step.backward_end_s)
        self._span("compute", "update", step.update_begin_s, step.end_s)

    def _communication_span(self, kind: str, bucket: Bucket, waited_from_s: float, end_s: float) -> None:
        launched = self._launched.pop((kind, bucket.plan.index), None)
        if launched is None:
            return
        exchange = bucket.exchange
        num_bytes = exchange.reduce_bytes if kind == "reduce-scatter" else exchange.gather_bytes
        begin = max(launched, self._link_free_s)
        expected = begin + self.predict(num_bytes)
        seen = end_s - waited_from_s > 1e-4  # else it had finished before anybody looked
        end = end_s if seen else min(end_s, max(expected, begin))
        self._link_free_s = end
        self._span("communication", f"{kind} {bucket.plan.index}", begin, end, bytes=num_bytes, estimated=not seen)
        if seen:
            self._span("wait", f"wait {kind} {bucket.plan.index}", waited_from_s, end_s)
