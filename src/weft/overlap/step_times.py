"""Assembles the moments of a step into the times that ``report()``, ``trace()``, and the tuner read.

Compute times are measured.  The time of a collective is measured only if compute waited for it; otherwise it is drawn
with the length that the fitted link predicts, and its span has ``"estimated": true``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from weft.core.chrome_trace import Span
from weft.perf.link import Link

_MAX_STEPS = 64


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
    clipping_wait_s: float = 0.0  # between backward and step: clipping and GradScaler need all gradients
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


@dataclass(frozen=True, slots=True)
class Message:
    """A collective of one bucket.  Keeps no bucket alive: its plan may be gone by the time this is read."""

    kind: str
    bucket: int
    num_bytes: int
    bucket_bytes: int


class StepRecord:
    """The last steps.  Receives moments in the order in which they were noted, each with its time."""

    def __init__(self, rank: int, begin_s: float) -> None:
        self.steps: deque[StepTimes] = deque(maxlen=_MAX_STEPS)
        self.current = StepTimes(0, begin_s)
        self.link: Link | None = None
        self._rank = rank
        self._in_step = False
        self._wait_began_s = 0.0
        self._update_began_s = 0.0
        self._launched: dict[tuple[str, int], float] = {}
        self._link_free_s = 0.0

    def forward_began(self, at_s: float) -> None:
        if not self.current.forward_begin_s:
            self.current.forward_begin_s = at_s

    def forward_ended(self, at_s: float) -> None:
        self.current.forward_end_s = at_s

    def parameter_read(self, at_s: float, number: int) -> None:
        current = self.current
        if number not in current.read_s and current.forward_begin_s:
            current.read_s[number] = at_s - current.forward_begin_s - current.forward_wait_s

    def gradient_ready(self, at_s: float, number: int) -> None:
        current = self.current
        if not current.forward_end_s:  # only submodules of the model were called
            current.forward_end_s = at_s
            current.forward_begin_s = current.forward_begin_s or current.begin_s
        waited = current.backward_wait_s + current.backward_update_s
        current.ready_s[number] = at_s - current.forward_end_s - waited

    def backward_ended(self, at_s: float) -> None:
        self.current.backward_end_s = at_s

    def step_began(self, at_s: float) -> None:
        self._in_step = True
        self.current.update_begin_s = at_s

    def step_ended(self, at_s: float, is_traced: bool) -> None:
        done = self.current
        done.end_s = at_s
        self._in_step = False
        if is_traced:
            self._span("compute", "forward", done.forward_begin_s, done.forward_end_s)
            self._span("compute", "backward", done.forward_end_s, done.backward_end_s)
            self._span("compute", "update", done.update_begin_s, done.end_s)
        self.steps.append(done)
        self.current = StepTimes(done.number + 1, done.end_s)

    def launched(self, at_s: float, kind: str, bucket: int) -> None:
        self._launched[kind, bucket] = at_s

    def wait_began(self, at_s: float) -> None:
        self._wait_began_s = at_s

    def wait_ended(self, at_s: float, traced: Message | None) -> None:
        waited_s = at_s - self._wait_began_s
        current = self.current
        if self._in_step:
            current.step_wait_s += waited_s
        elif current.backward_end_s:
            current.clipping_wait_s += waited_s
        elif current.forward_end_s:
            current.backward_wait_s += waited_s
        else:
            current.forward_wait_s += waited_s
        if traced is not None:
            self._communication_spans(traced, self._wait_began_s, at_s)

    def update_began(self, at_s: float) -> None:
        """During backward; updates in step() are not noted separately."""
        self._update_began_s = at_s

    def update_ended(self, at_s: float) -> None:
        self.current.backward_update_s += at_s - self._update_began_s

    def forget_spans(self) -> None:
        for step in (*self.steps, self.current):
            step.spans.clear()

    def spans(self) -> list[Span]:
        """Everything traced since :meth:`forget_spans`; times are relative to the first step."""
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

    def _communication_spans(self, message: Message, waited_from_s: float, end_s: float) -> None:
        launched = self._launched.pop((message.kind, message.bucket), None)
        if launched is None:
            return
        begin = max(launched, self._link_free_s)
        expected = begin + self.link.seconds(message.num_bytes) if self.link else end_s
        seen = end_s - waited_from_s > 1e-4  # otherwise it had already finished
        end = end_s if seen else min(end_s, max(expected, begin))
        self._link_free_s = end
        name = f"{message.kind} {message.bucket}"
        # For `weft predict`, which needs the whole bucket and when it was ready, on whatever link and workers.
        sizes = {"bytes": message.num_bytes, "bucket_bytes": message.bucket_bytes, "queued_s": begin - launched}
        self._span("communication", name, begin, end, **sizes, estimated=not seen)
        if seen:
            self._span("wait", f"wait {name}", waited_from_s, end_s)
