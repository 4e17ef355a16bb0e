"""A browser is where strangers' pages run: the controller's own page must not become their way in."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from api_caller import PORT, Answer, ask, own_headers
from fake_controller import TOKEN, FakeController
from weft import web
from weft.daemon.api.app import make_app
from weft.daemon.api.guard import Application
from weft.daemon.api.sessions import MAX_SESSIONS, VALID_S, Sessions

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
FILES = ["/", *(f"/web/{name}" for name in web.modules())]
# What the page asks for, and everything else there is.
LOOKS = [
    "/healthz",
    "/v1/changes?since=",
    "/v1/overview",
    "/v1/jobs?detail=true",
    "/v1/nodes",
    "/v1/decisions?last=50",
    "/metrics",
]
ORIGIN = f"http://127.0.0.1:{PORT}"


class Visit:
    """A browser that has logged in."""

    def __init__(self, app: Application | None = None) -> None:
        self.app = app or make_app(FakeController(), TOKEN, port=PORT)
        self.login = ask(self.app, "POST", "/v1/login", own_headers(origin=ORIGIN))
        self.key = self.login.json()["key"]
        self.cookie = self.login.headers["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, **headers: str | None) -> Answer:
        """With the key and the cookie."""
        return ask(self.app, method, path, self.headers(**headers))

    def headers(self, **changes: str | None) -> list[tuple[str, str]]:
        return own_headers(**{"authorization": f"Bearer {self.key}", "cookie": self.cookie, **changes})


def test_a_browser_without_a_session_is_asked_for_the_token() -> None:
    app = make_app(FakeController(), TOKEN, port=PORT)
    for path in ("/", "/login", "/v1/jobs", "/nothing"):
        answer = ask(app, "GET", path, own_headers(authorization=None, accept=HTML))
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"].startswith("text/html")
        assert b'id="token"' in answer.body
    for headers in (own_headers(authorization=None), own_headers(authorization=None, accept="*/*")):
        assert "error" in ask(app, "GET", "/", headers).json()


def test_the_login_form_sends_the_token_only_in_a_header() -> None:
    body = web.login().body.decode()
    fields = re.findall(r"<input[^>]*>", body)
    assert not [field for field in fields if " name=" in field]
    assert ['type="password"' in field for field in fields] == [True, False]
    policy = ask(make_app(FakeController(), TOKEN, port=PORT), "GET", "/", own_headers(authorization=None, accept=HTML))
    assert "form-action 'none'" in policy.headers["content-security-policy"]


@pytest.mark.parametrize("path", FILES)
def test_dashboard_files_are_served_only_to_logged_in_users(path: str) -> None:
    visit = Visit()
    assert ask(visit.app, "GET", path, own_headers(authorization=None)).status == 401
    assert ask(visit.app, "GET", path, own_headers(authorization=None, cookie="weft_page_8477=x")).status == 401
    answer = visit.ask("GET", path, authorization=None)
    assert answer.status == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
    for closed in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "trusted-types 'none'"):
        assert closed in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", [*LOOKS, "/v1/wait?id=k3v9x2qa", "/openapi.json"])
def test_the_cookie_alone_gives_access_only_to_static_files(path: str) -> None:
    """Browsers send cookies of 127.0.0.1 to servers on all of its ports."""
    visit = Visit()
    assert visit.ask("GET", path, authorization=None).status == 401
    value = visit.cookie.partition("=")[2]
    assert visit.ask("GET", path, authorization=f"Bearer {value}").status == 401
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert visit.ask(method, "/", authorization=None).status == 401


def test_the_cookie_is_hidden_from_scripts_and_other_sites_and_contains_no_token() -> None:
    visit = Visit()
    cookie = visit.login.headers["set-cookie"]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={int(VALID_S)}"} == attributes
    assert TOKEN not in cookie
    assert visit.key not in cookie
    assert TOKEN not in visit.login.body.decode()
    # Two controllers of one machine have one jar of cookies between them.
    other = ask(make_app(FakeController(), TOKEN, port=9), "POST", "/v1/login", own_headers(host="127.0.0.1:9"))
    assert other.headers["set-cookie"].partition("=")[0] != visit.cookie.partition("=")[0]


def test_a_browser_session_can_view_and_cancel() -> None:
    controller = FakeController()
    job_id = controller.add().id
    visit = Visit(make_app(controller, TOKEN, port=PORT))
    for path in (*LOOKS, f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/explain", f"/v1/jobs/{job_id}/history"):
        assert visit.ask("GET", path).status == 200
    assert visit.ask("POST", f"/v1/jobs/{job_id}/cancel", origin=ORIGIN).status == 202
    assert controller.by_id[job_id].state.value == "CANCELLED"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "NONSENSE"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/shutdown", "/v1/outlook", "/v1/login", "/v1/jobs/", "/"])
def test_a_stolen_browser_session_can_neither_run_programs_nor_be_extended(method: str, path: str) -> None:
    controller = FakeController()
    visit = Visit(make_app(controller, TOKEN, port=PORT))
    answer = visit.ask(method, path, origin=ORIGIN, content_type="application/json")
    assert answer.status == 403
    assert "token" in answer.json()["error"]
    assert controller.by_id == {}
    assert controller.went_down == []


@pytest.mark.parametrize("path", [*FILES, *LOOKS, "/v1/login", "/v1/logout"])
def test_another_site_cannot_use_a_session(path: str) -> None:
    visit = Visit()
    for method in ("GET", "POST"):
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            assert visit.ask(method, path, origin=origin).status == 403
        for site in ("cross-site", "same-site"):
            assert visit.ask(method, path, sec_fetch_site=site).status == 403
        assert visit.ask(method, path, host="evil.example").status == 421


def test_logging_out_ends_the_session_and_no_other() -> None:
    one = Visit()
    two = Visit(one.app)
    assert one.ask("POST", "/v1/logout", origin=ORIGIN).status == 204
    assert one.ask("GET", "/v1/jobs").status == 401
    assert one.ask("GET", "/", authorization=None).status == 401
    assert two.ask("GET", "/v1/jobs").status == 200
    assert ask(one.app, "POST", "/v1/logout").status == 204
    assert two.ask("GET", "/v1/jobs").status == 401


def test_a_browser_session_ends_with_its_controller() -> None:
    visit = Visit()
    visit.app = make_app(FakeController(), TOKEN, port=PORT)
    assert visit.ask("GET", "/v1/jobs").status == 401
    assert visit.ask("GET", "/", authorization=None).status == 401


def test_browser_sessions_expire_after_twelve_hours_and_do_not_accumulate() -> None:
    now_s = 0.0
    sessions = Sessions(lambda: now_s)
    first = sessions.begin()
    assert sessions.of_key(first.key.encode()) is not None
    for _ in range(MAX_SESSIONS):
        last = sessions.begin()
    assert sessions.of_key(first.key.encode()) is None
    assert not sessions.knows_cookie(first.cookie.encode())
    now_s = VALID_S - 1
    assert sessions.of_key(last.key.encode()) is not None
    now_s = VALID_S
    assert sessions.of_key(last.key.encode()) is None
    assert not sessions.knows_cookie(last.cookie.encode())


@pytest.mark.parametrize(
    "path",
    [
        "/web/",
        "/web/__init__.py",
        "/web/login.html",
        "/web/../token",
        "/web/..%2f..%2ferrors.py",
        "/web/%2e%2e/py.typed",
    ],
)
def test_only_listed_files_are_served(path: str) -> None:
    assert Visit().ask("GET", path).status == 404


def test_every_served_file_is_listed() -> None:
    """One that is missing there is missing in the browser."""
    there = {entry.name for entry in resources.files(web).iterdir() if not entry.name.startswith("__")}
    assert there == {"index.html", "login.html", *web.modules()}
    imported = {
        name for file in web.modules().values() for name in re.findall(r'from "\./([a-z]+\.js)"', file.body.decode())
    }
    assert imported <= set(web.modules())


def test_the_dashboard_parses_no_html_and_loads_nothing_from_other_sites() -> None:
    parsing = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    )
    for name, file in {"index.html": web.index(), "login.html": web.login(), **web.modules()}.items():
        text = file.body.decode()
        assert not parsing.search(text), name
        addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
    index = web.index().body.decode()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", index)
    assert re.findall(r"<script[^>]*>([^<]*)", index) == [""]


def test_the_end_of_a_long_log_can_be_read_alone() -> None:
    controller = FakeController()
    job = controller.add(attempt=1)
    controller.output[job.id, 1, "out"] = b"first\n" * 1000 + b"last\n"
    visit = Visit(make_app(controller, TOKEN, port=PORT))
    answer = visit.ask("GET", f"/v1/jobs/{job.id}/logs?tail_bytes=5")
    assert answer.body == b"last\n"
    assert answer.headers["x-weft-skipped-bytes"] == "6000"
    assert visit.ask("GET", f"/v1/jobs/{job.id}/logs?tail_bytes=-1").status == 422


def test_only_a_session_with_permission_can_change_anything() -> None:
    controller = FakeController()
    job_id = controller.add().id
    app = make_app(controller, TOKEN, port=PORT)
    json_type = {"origin": ORIGIN, "content_type": "application/json"}
    changes = (
        ("PATCH", f"/v1/jobs/{job_id}", b'{"weight": 2.0}'),
        ("POST", "/v1/jobs", b'{"command": ["true"], "cwd": "/"}'),
        ("POST", "/v1/nodes/drain", b'{"name": "here"}'),
        ("POST", "/v1/nodes/resume", b'{"name": "here"}'),
        ("POST", "/v1/outlook", b'{"command": ["true"], "cwd": "/"}'),
    )
    never = (("POST", "/v1/shutdown"), ("POST", "/v1/purge"), ("POST", "/v1/login"), ("DELETE", f"/v1/jobs/{job_id}"))
    for body, permission in (
        (b"", "view"),
        (b'{"permission": "view"}', "view"),
        (b'{"permission": "change"}', "change"),
    ):
        login = ask(app, "POST", "/v1/login", own_headers(**json_type), body)
        assert login.json()["permission"] == permission
        headers = own_headers(**{**json_type, "authorization": f"Bearer {login.json()['key']}"})
        assert ask(app, "GET", "/healthz", headers).json()["permission"] == permission
        assert ask(app, "GET", "/v1/changes?since=", headers).json()["health"]["permission"] == permission
        assert ask(app, "POST", "/v1/whatif", headers, b"{}").status == 200
        for method, path, document in changes:
            answer = ask(app, method, path, headers, document)
            assert (answer.status in (200, 201)) == (permission == "change"), (method, path, answer.body)
            assert answer.status != 403 or "token" in answer.json()["error"]
        for method, path in never:
            assert ask(app, method, path, headers, b"{}").status == 403
    assert controller.by_id[job_id].spec.weight == 2.0
    assert controller.went_down == []
    assert ask(app, "POST", "/v1/login", own_headers(**json_type), b'{"permission": "everything"}').status == 422
    assert ask(app, "GET", "/healthz", own_headers()).json()["permission"] == "change"
