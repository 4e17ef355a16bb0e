"""A client past the guard could run any program as the controller's owner: no one gets past it without the token."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import pytest

from api_caller import PORT, ask, asked, own_headers
from fake_controller import TOKEN, FakeController
from weft.daemon.api.app import make_app
from weft.daemon.api.guard import MAX_BODY_BYTES, Application

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "NONSENSE")
AGENTS = ("curl/8", "Mozilla/5.0 (X11; Linux)", "weft", "")


@functools.cache
def app() -> Application:
    """One for all tests: no one logs in here, so it keeps no state."""
    return make_app(FakeController(), TOKEN, port=PORT)


def known_paths() -> list[str]:
    paths = ask(app(), "GET", "/openapi.json").json()["paths"]
    return sorted(path.replace("{job_id}", "k3v9x2qa") for path in paths)


# The page's files are not part of the api, so the description does not list them.
FILES = ["/", "/web/main.js", "/web/style.css", "/web/icon.svg", "/web/nothing.js", "/login"]
PATHS = [*known_paths(), *FILES, "/openapi.json", "/docs", "/no-such-thing", "/v1/jobs/../../healthz", "//healthz"]


def test_every_route_is_tested_here() -> None:
    assert {"/v1/jobs", "/v1/shutdown", "/metrics", "/healthz", "/v1/nodes", "/v1/decisions"} < set(PATHS)
    assert {"/v1/login", "/v1/logout", "/v1/changes", "/v1/overview", "/v1/purge"} < set(PATHS)
    assert {"/v1/jobs/k3v9x2qa/history", "/v1/timeline", "/v1/whatif", "/v1/stream"} < set(PATHS)
    assert len(known_paths()) == 23


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_every_route_and_method_is_closed(path: str, method: str) -> None:
    async def all_of_them() -> None:
        guarded = app()
        for agent in AGENTS:
            for wrong in (None, "", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN):
                headers = own_headers(authorization=wrong, user_agent=agent)
                answer = await asked(guarded, method, path, headers)
                assert answer.status == 401, (agent, wrong)
                assert answer.headers["www-authenticate"] == "Bearer"

    asyncio.run(all_of_them())


@pytest.mark.parametrize("path", ["/v1/jobs", "/healthz"])
def test_the_token_is_accepted_only_in_its_header(path: str) -> None:
    for place in (f"{path}?token={TOKEN}", f"{path}?access_token={TOKEN}", f"{path}?authorization=Bearer%20{TOKEN}"):
        assert ask(app(), "GET", place, own_headers(authorization=None)).status == 401
    assert ask(app(), "GET", path, own_headers(authorization=None, cookie=f"token={TOKEN}")).status == 401
    twice = [*own_headers(), ("authorization", f"Bearer {TOKEN}")]
    assert ask(app(), "GET", path, twice).status == 401


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", f"127.0.0.1.evil.example:{PORT}", "0.0.0.0", "[::1]", ""],
)
def test_dns_rebinding_is_rejected(path: str, host: str) -> None:
    for agent in AGENTS:
        assert ask(app(), "GET", path, own_headers(host=host, user_agent=agent)).status == 421


def test_a_request_without_a_host_or_with_two_is_refused() -> None:
    assert ask(app(), "GET", "/healthz", own_headers(host=None)).status == 400
    assert ask(app(), "GET", "/healthz", [*own_headers(), ("host", f"127.0.0.1:{PORT}")]).status == 400


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1", "http://localhost"]
)
def test_another_site_is_rejected_even_with_the_token(path: str, origin: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = ask(app(), method, path, own_headers(origin=origin, user_agent="curl/8"))
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers


def test_a_cross_site_request_is_refused_where_the_browser_says_so() -> None:
    assert ask(app(), "GET", "/healthz", own_headers(sec_fetch_site="cross-site")).status == 403
    assert ask(app(), "GET", "/healthz", own_headers(sec_fetch_site="same-origin")).status == 200


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LOCALHOST:{PORT}", "localhost"])
def test_the_owner_is_let_in(host: str) -> None:
    answer = ask(app(), "GET", "/healthz", own_headers(host=host, origin=f"http://127.0.0.1:{PORT}"))
    assert answer.status == 200
    assert answer.json()["status"] == "ok"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_oversized_body_is_not_read_to_the_end() -> None:
    body = b'{"name": "' + b"x" * MAX_BODY_BYTES + b'"}'
    json_headers = own_headers(content_type="application/json")
    assert ask(app(), "POST", "/v1/jobs", json_headers, body).status == 413
    for length in (str(MAX_BODY_BYTES + 1), "9" * 400):
        headers = own_headers(content_type="application/json", content_length=length)
        assert ask(app(), "POST", "/v1/jobs", headers, b"{}").status == 413
    assert ask(app(), "POST", "/v1/jobs", own_headers(content_length="-1"), b"{}").status == 400


def test_websockets_are_rejected_before_they_are_accepted() -> None:
    sent: list[Any] = []

    async def knock() -> None:
        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(name.encode(), value.encode()) for name, value in own_headers()]
        await app()({"type": "websocket", "path": "/v1/jobs", "headers": headers}, receive, send)

    asyncio.run(knock())
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_an_internal_error_is_logged_and_answered_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    controller = FakeController()
    controller.failure = RuntimeError("something nobody thought of")
    broken = make_app(controller, TOKEN, port=PORT)
    body = b'{"command": ["true"], "cwd": "/"}'
    headers = own_headers(content_type="application/json")
    sent: list[Any] = []

    async def provoke() -> None:
        try:
            sent.append(await asked(broken, "POST", "/v1/jobs", headers, body))
        except RuntimeError as error:
            # The server gets the exception too, and logs it.
            logging.getLogger("server").error("failed", exc_info=error)

    with caplog.at_level(logging.DEBUG):
        asyncio.run(provoke())
    assert "something nobody thought of" in caplog.text
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(sent)
