"""`weft up --otel` with a real collector's protocol: a job's whole life arrives, and a dead collector harms nothing."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.controller_process import Server
from tests.hang_limit import HANG_S


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Its URL, and the spans it has received."""
    received: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            message = ExportTraceServiceRequest.FromString(body)
            received.extend(s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


def test_the_life_of_a_job_reaches_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        server = Server(tmp_path, "--otel")
        job_id = server.submit(3)
        (job,) = server.client.wait([job_id], timeout_s=HANG_S)
        server.client.shutdown()
        assert server.end() == 0
    assert job["state"] == "COMPLETED"
    assert [span.name for span in received] == ["queued", "starting", "running", "attempt", "job"]
    assert len({span.trace_id for span in received}) == 1
    whole = received[-1]
    assert whole.end_time_unix_nano == pytest.approx(job["finished_s"] * 1e9, abs=1e3)
    assert whole.start_time_unix_nano == pytest.approx(job["submitted_s"] * 1e9, abs=1e3)


def test_a_controller_whose_collector_is_gone_works_and_shuts_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as (url, _):
        pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    server = Server(tmp_path, "--otel")
    (job,) = server.client.wait([server.submit(3)], timeout_s=HANG_S)
    assert job["state"] == "COMPLETED"
    server.client.shutdown()
    assert server.end() == 0
