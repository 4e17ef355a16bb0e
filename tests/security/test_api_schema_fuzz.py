"""The api as its own description says it is, and as it says it is not: requests made from the OpenAPI document.

They go over a real socket to a real controller process that starts real workers.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hang_limit import HANG_S

from controller_process import Server
from hostile import LONG_MODE_S, hostile_json, hostile_scalars, hostile_values, looking

BUDGETS = pytest.mark.parametrize(
    "num_requests", [400, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(LONG_MODE_S)])]
)
LEFT_OUT = {("post", "/v1/shutdown")}
"""It would do what the request asks, so only invalid bodies are sent there."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.client.shutdown(stop_jobs=True)
    assert made.end() == 0, made.log_file.read_text()


class Caller:
    """Asks over the unix socket, as the owner."""

    def __init__(self, server: Server) -> None:
        self._path = server.record.socket
        self._token = server.home.token()

    def ask(self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json") -> Any:
        connection = http.client.HTTPConnection("localhost", timeout=HANG_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(HANG_S)
        connection.sock.connect(self._path)
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
            connection.request(method.upper(), path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def values_of(schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What the schema allows, with its limits and the values right beside them."""
    if "$ref" in schema:
        return values_of(components[schema["$ref"].rsplit("/", 1)[-1]], components)
    if "anyOf" in schema:
        return st.one_of([values_of(one, components) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", -(2**53)), schema.get("maximum", 2**53)
        edges = [low, high, low - 1, high + 1, 0, 1, 2]
        numbers = st.sampled_from([int(edge) for edge in edges])
        return numbers if kind == "integer" else st.one_of(numbers, st.floats(low, high))
    if kind == "boolean":
        return st.booleans()
    if kind == "null":
        return st.none()
    if kind == "array":
        return st.lists(values_of(schema.get("items", {}), components), max_size=3)
    if kind == "object":
        required, named = schema.get("required", []), schema.get("properties", {})
        fields = {name: values_of(one, components) for name, one in named.items()}
        if not fields:
            return st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
        return st.fixed_dictionaries(
            {name: fields[name] for name in required},
            optional={name: one for name, one in fields.items() if name not in required},
        )
    return st.one_of(st.text(max_size=20), st.sampled_from(["true", "/", "/tmp", "python"]))


def bodies(operation: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[bytes | None]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return st.none() | hostile_json
    right = values_of(content["schema"], components)
    broken = st.tuples(right, st.dictionaries(st.text(max_size=8), hostile_values, max_size=2)).map(
        lambda both: {**both[0], **both[1]} if isinstance(both[0], dict) else both[1]
    )
    changed = st.tuples(right, hostile_values, st.integers(0, 20)).map(lambda parts: _with_one_changed(*parts))
    # Most run quickly and end: a job that is taken in should not fill the machine.
    runnable = st.builds(lambda weight, priority: {"weight": weight, "priority": priority}, *_orders()).map(
        lambda order: {"command": ["true"], "cwd": "/", **order}
    )
    documents = st.one_of(right, broken, changed, runnable) if "priority" in str(components) else right
    return st.one_of(documents.map(lambda document: json.dumps(document).encode()), hostile_json)


def _orders() -> tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]:
    return st.sampled_from([1e-6, 1.0, 1e6]), st.sampled_from([-(10**6), 0, 400, 10**6])


def _with_one_changed(document: Any, value: Any, place: int) -> Any:
    if isinstance(document, dict) and document:
        name = list(document)[place % len(document)]
        return {**document, name: value}
    return value


def requests(document: dict[str, Any], ids: list[str]) -> st.SearchStrategy[tuple[str, str, bytes | None]]:
    components = document["components"]["schemas"]
    return st.one_of(
        [
            _one_operation(method, path, operation, components, ids)
            for path, operations in document["paths"].items()
            if path != "/v1/stream"  # endless: tests/unit/daemon/test_stream.py
            for method, operation in operations.items()
        ]
    )


def _one_operation(
    method: str, path: str, operation: dict[str, Any], components: dict[str, Any], ids: list[str]
) -> st.SearchStrategy[tuple[str, str, bytes | None]]:
    queries = {}
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "query" and parameter["name"] not in ("follow", "timeout_s"):
            right = values_of(parameter["schema"], components)
            queries[parameter["name"]] = st.one_of(right, hostile_scalars, st.sampled_from(ids))
    query = st.fixed_dictionaries({}, optional=queries).map(
        lambda values: urlencode(
            {**values, **({"timeout_s": 0} if path == "/v1/wait" else {})}, doseq=True, errors="replace"
        )[:60_000]
    )
    job_id = st.one_of(st.sampled_from(ids), st.text(max_size=12), st.sampled_from(["..", "%00", "x" * 3000]))
    body = st.just(b'{"stop_jobs": 7}') | hostile_json.filter(lambda data: data not in (b"", b"null", b"{}"))
    if (method, path) not in LEFT_OUT:
        body = st.none() if method == "get" else bodies(operation, components)
    return st.tuples(
        st.just(method),
        st.tuples(job_id, query).map(
            lambda parts: (
                path.replace("{job_id}", quote(parts[0], safe="", errors="replace"))
                + (f"?{parts[1]}" if parts[1] else "")
            )
        ),
        body,
    )


@BUDGETS
def test_no_request_made_from_the_schema_is_answered_with_a_server_error(server: Server, num_requests: int) -> None:
    caller = Caller(server)
    status, body = caller.ask("get", "/openapi.json")
    assert status == 200
    document = json.loads(body)
    ids = [server.submit(2), server.submit(2)]
    seen: dict[int, int] = {}
    slow: list[str] = []

    @looking(num_requests)
    @given(request=requests(document, ids))
    def fuzz(request: tuple[str, str, bytes | None]) -> None:
        method, path, sent = request
        try:
            status, answer = caller.ask(method, path, sent)
        except TimeoutError:
            slow.append(f"{method} {path}")
            raise
        seen[status] = seen.get(status, 0) + 1
        assert status < 500, (answer, server.log_file.read_text()[-3000:])

    fuzz()
    assert not slow
    assert server.process.poll() is None
    # They were not all refused at the first glance.
    assert {200, 201, 202, 400, 404, 422} <= seen.keys(), seen
    print(f"\n{sum(seen.values())} requests: {dict(sorted(seen.items()))}")
