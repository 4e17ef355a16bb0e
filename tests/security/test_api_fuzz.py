"""Thousands of malformed requests, none of which may crash the controller."""

from __future__ import annotations

import asyncio
import json
import random
import string
from urllib.parse import quote

import pytest

from api_caller import PORT, Answer, ask, asked, own_headers
from fake_controller import TOKEN, FakeController
from weft.daemon.api.app import make_app
from weft.errors import StoreError

NUM_REQUESTS = 10_000
CONCURRENT = 32
TRAVERSALS = [
    "..",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/token",
    "....//....//token",
    "..\\..\\token",
    "%5c..%5c..",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "k3v9x2qa%00",
    "k3v9x2qa/../../token",
    "k3v9x2qa%2f..%2f..%2ftoken",
    "file:///etc/passwd",
    "~root",
    "%c0%ae%c0%ae/",
    "\uff0e\uff0e/token",
    "k3v9x2qa\n",
    "K3V9X2QA",
    "$(id)",
    "'; DROP TABLE jobs; --",
    "",
    " ",
    "a" * 5000,
]
VALUES = [
    None,
    True,
    0,
    -1,
    1,
    4,
    2**31,
    2**63,
    10**30,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "1:4",
    "\0",
    "\n",
    "\ud800",
    "\u202e",
    "$(reboot)",
    "x" * 5000,
    [],
    {},
    [[]],
    [1, 2],
    ["python", "train.py"],
    ["\0"],
    ["\ud800"],
    {"A": "b"},
    {"A=": "b"},
    {"A": "\0"},
    {"": ""},
]
FIELDS = [
    "command",
    "cwd",
    "name",
    "environment",
    "max_restarts",
    "min_workers",
    "max_workers",
    "requested_workers",
    "sizes",
    "user",
    "weight",
    "priority",
    "may_share",
    "total_steps",
    "comand",
    "__class__",
]
QUERIES = [
    "since",
    "limit",
    "attempt",
    "rank",
    "stream",
    "follow",
    "id",
    "timeout_s",
    "last",
    "detail",
    "tail_bytes",
    "token",
    "x",
]
# No `follow` of a job that never ends and no long waiting in here: those are not errors, they only take long.
QUERY_VALUES = ["", "0", "1", "-1", "9" * 30, "nan", "inf", "1e400", "true", "out", "err", "%00", "%ff", "../x", "é"]


def random_path(rng: random.Random, ids: list[str]) -> str:
    job_id = rng.choice([*ids, *TRAVERSALS, quote(rng.choice(TRAVERSALS), safe="")])
    path = rng.choice(
        [
            "/v1/jobs",
            "/v1/outlook",
            f"/v1/jobs/{job_id}",
            f"/v1/jobs/{job_id}/cancel",
            f"/v1/jobs/{job_id}/logs",
            f"/v1/jobs/{job_id}/explain",
            "/v1/wait",
            "/v1/nodes",
            "/v1/decisions",
            "/v1/changes",
            "/v1/overview",
            "/v1/shutdown",
            "/metrics",
            "/healthz",
            "/openapi.json",
            "/",
            "/v1/login",
            "/v1/logout",
            f"/web/{job_id}",
            "/" + "".join(rng.choices(string.printable, k=rng.randrange(12))),
        ]
    ).replace("?", "%3F")
    num = rng.choice([0, 0, 1, 2, 5])
    query = "&".join(f"{rng.choice(QUERIES)}={rng.choice([*QUERY_VALUES, *ids])}" for _ in range(num))
    if path == "/v1/wait":
        query += "&timeout_s=0"
    return f"{path}?{query}" if query else path


def random_body(rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return rng.choice(
            [b"", b"{", b"[" * 2000, b'{"a":' * 2000, b"null", b"NaN", b'"\\ud800"', b"1" * 5000, b"\xff"]
        )
    document = {"command": ["python", "train.py"], "cwd": "/tmp"} if rng.random() < 0.7 else {}
    for _ in range(rng.randrange(5)):
        document[rng.choice(FIELDS)] = rng.choice(VALUES)  # type: ignore[assignment]
    return json.dumps(document).encode()


def random_headers(rng: random.Random) -> list[tuple[str, str]]:
    headers = own_headers(content_type=rng.choice(["application/json", "text/plain", "x", "multipart/form-data", ""]))
    if rng.random() < 0.1:
        name = rng.choice(["accept", "range", "if-match", "expect", "cookie", "content-encoding", "te", "user-agent"])
        headers.append((name, "".join(rng.choices(string.printable[:95], k=rng.randrange(40)))))
    return headers


def test_ten_thousand_malformed_requests_cause_no_server_error() -> None:
    rng = random.Random(20_26)
    controller = FakeController()
    ids = [controller.add().id for _ in range(3)]
    app = make_app(controller, TOKEN, port=PORT)
    methods = ["GET", "GET", "GET", "POST", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "\x00"]
    requests = [
        (rng.choice(methods), random_path(rng, ids), random_headers(rng), random_body(rng)) for _ in range(NUM_REQUESTS)
    ]
    answers: list[Answer] = []

    async def client(mine: list[tuple[str, str, list[tuple[str, str]], bytes]]) -> None:
        for method, path, headers, body in mine:
            answer = await asked(app, method, path, headers, body if method != "GET" else b"")
            assert answer.status < 500, (method, path, body, answer)
            answers.append(answer)

    async def all_clients() -> None:
        await asyncio.gather(*(client(requests[number::CONCURRENT]) for number in range(CONCURRENT)))

    asyncio.run(all_clients())
    assert len(answers) == NUM_REQUESTS
    # It was not all refused at the first glance: some of every kind.
    seen = {answer.status for answer in answers}
    assert {200, 201, 202, 400, 404, 405, 422} <= seen


@pytest.mark.parametrize("text", TRAVERSALS)
@pytest.mark.parametrize("rest", ["", "/cancel", "/logs", "/explain"])
def test_an_invalid_id_never_reaches_the_controller(text: str, rest: str) -> None:
    controller = FakeController()
    app = make_app(controller, TOKEN, port=PORT)
    for written in (text, quote(text, safe="")):
        answer = ask(app, "POST" if rest == "/cancel" else "GET", f"/v1/jobs/{written}{rest}")
        assert answer.status in (404, 405, 307) or (answer.status == 200 and not text.strip("/"))
    ask(app, "GET", f"/v1/wait?id={quote(text, safe='')}&timeout_s=0")
    assert controller.asked == []


def test_a_full_disk_is_reported_and_not_blamed_on_the_job() -> None:
    controller = FakeController()
    controller.failure = StoreError("the disk is full: make room, then submit again")
    app = make_app(controller, TOKEN, port=PORT)
    body = json.dumps({"command": ["true"], "cwd": "/"}).encode()
    answer = ask(app, "POST", "/v1/jobs", own_headers(content_type="application/json"), body)
    assert answer.status == 503
    assert answer.json() == {"error": "the disk is full: make room, then submit again"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"comand": ["x"]}, "there is no field 'comand': did you mean 'command'?"),
        ({"min_workers": "1"}, "min_workers: Input should be a valid integer"),
        ({"max_workers": 10**9}, "max_workers is 1000000000: expected a number from 1 to 10000"),
        ({"min_workers": 3}, "job this-job asks for 3 to 1 workers"),
        ({"cwd": "relative"}, "the job's folder is 'relative': expected an absolute path"),
        ({"command": []}, "the job has no command"),
        ({"command": ["a\0b"]}, "a word of the command contains a NUL character"),
        ({"environment": {"A B": "x"}}, "'A B' is not a valid environment variable name"),
        ({"weight": 0}, "weight is 0.0: expected a number from"),
        ({"name": "x" * 1001}, "the job's name is 1001 bytes long: expected at most 1000"),
    ],
)
def test_an_invalid_job_is_explained_in_a_sentence(change: dict[str, object], expected: str) -> None:
    document = {"command": ["true"], "cwd": "/", **change}
    headers = own_headers(content_type="application/json")
    answer = ask(
        make_app(FakeController(), TOKEN, port=PORT), "POST", "/v1/jobs", headers, json.dumps(document).encode()
    )
    assert answer.status in (400, 422)
    assert answer.json()["error"].startswith(expected)
