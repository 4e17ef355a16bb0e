"""OpenTelemetry traces of jobs (`weft up --otel`, extra ``otel``): sends the spans that ``lifecycle_spans.py`` makes.

The controller's loop only puts states into a bounded queue.  A thread makes spans of them, and the SDK's batch
processor sends them from another thread.  If the collector is slow or gone, spans are dropped, and nothing waits.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.control.state import State
from weft.daemon.lifecycle_spans import LifecycleSpans, LifeSpan
from weft.errors import MissingToolError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

MAX_WAITING = 10_000
"""Batches of events whose spans are not made yet."""
CLOSE_S = 3.0
"""How long a controller that shuts down waits for the last spans to be sent."""

_log = logging.getLogger(__name__)


def otlp_exporter() -> SpanExporter:
    """Sends to a collector over HTTP, configured by ``OTEL_EXPORTER_OTLP_ENDPOINT`` and related variables."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise MissingToolError(
            "--otel needs the OpenTelemetry SDK, which is not installed: pip install 'weft[otel]'"
        ) from None
    return OTLPSpanExporter()


class JobTraces:
    """The loop's thread passes on states; two other threads do the work."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._processor = BatchSpanProcessor(exporter)
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the name.
        self._resource = Resource.create({"service.name": "weft"}).merge(OTELResourceDetector().detect())
        self._waiting: queue.Queue[tuple[State, Sequence[State]] | None] = queue.Queue(MAX_WAITING)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="weft-traces", daemon=True)
        self._thread.start()

    def happened(self, before: State, states: Sequence[State]) -> None:
        """Never waits.  ``states``: the one after each event."""
        try:
            self._waiting.put_nowait((before, states))
        except queue.Full:
            self._num_dropped += 1
            _log.warning("traces are falling behind: spans of %d batches of events were dropped", self._num_dropped)

    def close(self) -> None:
        """Send what is left, unless that takes too long."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        spans = LifecycleSpans()
        while (item := self._waiting.get()) is not None:
            state, states = item
            try:
                for after in states:
                    for span in spans.ended(state, after):
                        self._processor.on_end(_readable(span, self._resource))
                    state = after
            except Exception:
                _log.exception("spans of some events could not be made")
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _readable(span: LifeSpan, resource: Resource) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Status, StatusCode

    return ReadableSpan(
        span.name,
        _context(span.job_id, span.key),
        None if span.parent is None else _context(span.job_id, span.parent),
        resource,
        attributes=span.attributes,
        status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=round(span.start_s * 1e9),
        end_time=round(span.end_s * 1e9),
    )


def _context(job_id: str, key: str) -> SpanContext:
    """Ids that follow from the job: a parent is sent after its children, perhaps by another controller."""
    from opentelemetry.trace import SpanContext, TraceFlags

    trace_id = hashlib.sha256(f"weft {job_id}".encode()).digest()
    span_id = hashlib.sha256(f"weft {job_id} {key}".encode()).digest()
    return SpanContext(
        int.from_bytes(trace_id[:16], "big"),
        int.from_bytes(span_id[:8], "big"),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
