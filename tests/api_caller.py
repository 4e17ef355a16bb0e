"""Requests to the api without a network: the application is called as a server would call it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fake_controller import TOKEN
from weft.daemon.api.guard import Application

PORT = 8477
Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def own_headers(**changes: str | None) -> list[tuple[str, str]]:
    """What a well-behaved client sends; ``None`` leaves a header out."""
    headers = {"host": f"127.0.0.1:{PORT}", "authorization": f"Bearer {TOKEN}", **changes}
    return [(name.replace("_", "-"), value) for name, value in headers.items() if value is not None]


def ask(app: Application, method: str, path: str, headers: Headers | None = None, body: bytes = b"") -> Answer:
    return asyncio.run(asked(app, method, path, headers, body))


async def asked(
    app: Application,
    method: str,
    path: str,
    headers: Headers | None = None,
    body: bytes = b"",
    *,
    chunk_bytes: int = 1 << 16,
) -> Answer:
    raw_path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(errors="replace"),
        "query_string": query.encode("latin-1", errors="replace"),
        "root_path": "",
        "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in (headers or own_headers())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
    }
    chunks = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)] or [b""]
    sent: list[dict[str, Any]] = []
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if chunks:
            return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            done.set()

    await app(scope, receive, send)
    head = sent[0]
    given = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
    return Answer(head["status"], given, b"".join(message.get("body", b"") for message in sent[1:]))
