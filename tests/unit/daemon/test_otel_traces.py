"""A job's life as OpenTelemetry spans, with the real SDK: true times, one trace per job, no harm to the controller."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.hang_limit import HANG_S

from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import (
    CancelRequested,
    DevicesAssigned,
    Event,
    Fate,
    JobSubmitted,
    ProgressReported,
    WorkersExited,
    WorkersStarted,
)
from weft.core.job import JobSpec
from weft.core.step_report import Progress
from weft.daemon import otel_traces
from weft.daemon.otel_traces import JobTraces, otlp_exporter
from weft.errors import MissingToolError

RESIZED: list[Event] = [
    JobSubmitted(10.0, JobSpec("a", 10.0, max_workers=2), name="spirals"),
    DevicesAssigned(12.0, {"a": (0,)}),
    WorkersStarted(13.0, "a", 1),
    ProgressReported(15.0, "a", 1, Progress(40)),
    DevicesAssigned(20.0, {"a": (0, 1)}),
    WorkersExited(21.0, "a", 1, Fate.STOPPED, 75),
    WorkersStarted(22.0, "a", 2),
    ProgressReported(29.0, "a", 2, Progress(100)),
    WorkersExited(30.0, "a", 2, Fate.COMPLETED),
]
TREE = [
    ("queued", "job", 10.0, 12.0),
    ("starting", "attempt", 12.0, 13.0),
    ("running", "attempt", 13.0, 20.0),
    ("stopping", "attempt", 20.0, 21.0),
    ("attempt", "job", 12.0, 21.0),
    ("starting", "attempt", 21.0, 22.0),
    ("running", "attempt", 22.0, 30.0),
    ("attempt", "job", 21.0, 30.0),
    ("job", None, 10.0, 30.0),
]


def after(events: Sequence[Event], state: State | None = None) -> tuple[State, list[State]]:
    """The state before these events, and the one after each."""
    before = state or State(Cluster.uniform(1, 2))
    states = [before]
    for event in events:
        states.append(reduce(states[-1], event)[0])
    return before, states[1:]


def exported(events: Sequence[Event]) -> tuple[ReadableSpan, ...]:
    memory = InMemorySpanExporter()
    traces = JobTraces(memory)
    traces.happened(*after(events))
    traces.close()
    return memory.get_finished_spans()


def shown(spans: Sequence[ReadableSpan]) -> list[tuple[str, str | None, float, float]]:
    names = {span.context.span_id: span.name for span in spans if span.context}
    return [
        (
            span.name,
            names[span.parent.span_id] if span.parent else None,
            (span.start_time or 0) / 1e9,
            (span.end_time or 0) / 1e9,
        )
        for span in spans
    ]


def test_a_resized_job_is_one_trace_with_each_phase_of_each_attempt() -> None:
    spans = exported(RESIZED)
    assert shown(spans) == TREE
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    assert len({span.context.span_id for span in spans if span.context}) == len(spans)
    first, second = (span for span in spans if span.name == "attempt")
    assert (first.attributes or {})["weft.workers"] == 1
    assert (second.attributes or {})["weft.workers"] == 2
    assert (second.attributes or {})["weft.step"] == 100
    whole = spans[-1].attributes or {}
    assert (whole["weft.job.name"], whole["weft.state"], whole["weft.restarts"]) == ("spirals", "COMPLETED", 1)
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
    assert spans[0].resource.attributes["service.name"] == "weft"


@pytest.mark.parametrize("restarted_after", range(1, len(RESIZED)))
def test_a_restarted_controller_continues_the_trace(restarted_after: int) -> None:
    """The same spans, under the same ids, each sent once; only the time of a stop request is not in the state."""
    memory = InMemorySpanExporter()
    _, states = after(RESIZED)
    for before, its_states in (
        (State(Cluster.uniform(1, 2)), states[:restarted_after]),
        (states[restarted_after - 1], states[restarted_after:]),
    ):
        one = JobTraces(memory)
        one.happened(before, its_states)
        one.close()
        memory._stopped = False
    spans = memory.get_finished_spans()
    if restarted_after == 5:  # between the request to stop and the exit
        without = [one for one in TREE if one[0] != "stopping"]
        assert shown(spans) == [(*one[:3], 21.0) if one[:3] == ("running", "attempt", 13.0) else one for one in without]
    else:
        assert shown(spans) == TREE
    assert [span.context for span in spans if span.name != "stopping"] == [
        span.context for span in exported(RESIZED) if span.name != "stopping"
    ]


def test_failures_and_jobs_that_never_ran_have_spans() -> None:
    failed: list[Event] = [*RESIZED[:3], WorkersExited(20.0, "a", 1, Fate.FAILED, 3, "worker 0: exit code 3")]
    spans = exported(failed)
    assert [span.name for span in spans] == ["queued", "starting", "running", "attempt", "job"]
    assert [span.status.status_code for span in spans[-2:]] == [StatusCode.ERROR] * 2
    assert "exit code 3" in (spans[-1].status.description or "")
    canceled = exported([RESIZED[0], CancelRequested(14.0, "a")])
    assert shown(canceled) == [("queued", "job", 10.0, 14.0), ("job", None, 10.0, 14.0)]
    assert (canceled[-1].attributes or {})["weft.state"] == "CANCELLED"


class Stuck(SpanExporter):
    """A collector that never answers, or one that refuses everything."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked, self.released = error, threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        if self.error is not None:
            raise self.error
        self.released.wait(HANG_S)
        return SpanExportResult.FAILURE


def test_a_collector_that_never_responds_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel_traces, "CLOSE_S", 0.01)
    monkeypatch.setattr(otel_traces, "MAX_WAITING", 2)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    stuck = Stuck()
    traces = JobTraces(stuck)
    before, states = after(RESIZED)
    traces.happened(before, states)
    assert stuck.asked.wait(HANG_S)
    for _ in range(100):
        traces.happened(before, states)
    traces.close()
    assert not stuck.released.is_set()
    stuck.released.set()


def test_a_collector_that_refuses_everything_is_only_logged() -> None:
    stuck = Stuck(OSError("connection refused"))
    traces = JobTraces(stuck)
    traces.happened(*after(RESIZED))
    traces.close()
    assert stuck.asked.is_set()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingToolError, match=r"weft\[otel\]"):
        otlp_exporter()
