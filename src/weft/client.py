"""A client for a running controller, used by the command line and from notebooks.

    from weft.client import Client
    client = Client()                                   # the controller of WEFT_HOME (default: ~/.weft)
    job_id = client.submit_command("python train.py", workers="1:4")
    client.jobs()                                       # a table in a notebook, a list of dictionaries anywhere
    client.wait([job_id])

Wherever a job is expected, its id, a unique prefix of its id, and its name will do.

Talks to the controller over its unix socket, with the standard library only: no torch, no pydantic.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote, urlencode

from weft.core.nearest_name import unknown_name
from weft.core.status_rows import (
    FINAL_STATES,
    ChangesRow,
    DecisionRow,
    HealthRow,
    HistoryRow,
    JobDetail,
    JobRow,
    NodeRow,
    OutlookRow,
    OverviewRow,
    PurgeRow,
    SentenceRow,
    TimelineRow,
    WhatifRow,
)
from weft.core.submission import FIELDS, Submission, this_user, worker_range
from weft.daemon.home import Home, default_home
from weft.errors import ControllerError, NoControllerError, UsageError

TIMEOUT_S = 30.0
# Long polling: the controller holds a request for this long, then we repeat it.
_POLL_S = 20.0
_MAX_IDS_PER_REQUEST = 500
# While waiting for a job, tolerate an unreachable controller for this long.
_MAX_ABSENCE_S = 120.0
_RETRY_S = 0.5
_CHUNK_BYTES = 65536
_FORECAST_S = 40.0
_MAX_SOCKET_PATH_BYTES = 107

Row = TypeVar("Row", bound=JobRow)


class NotNowError(ControllerError):
    """The controller is shutting down, or cannot write to its disk.  Nothing was acknowledged; try again later."""


class JobRows(list[Row]):
    """A list of jobs that notebooks show as a table."""

    def _repr_html_(self) -> str:
        from weft.core.notebook_table import jobs_html

        return jobs_html(self)


class Client:
    """One controller, identified by its home.  Every call opens a new connection: thread-safe, nothing to close."""

    def __init__(self, home: Path | str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self.home = Home(default_home() if home is None else Path(home).expanduser().absolute())
        self._timeout_s = timeout_s

    def _repr_html_(self) -> str:
        """The jobs of this controller, in a notebook."""
        from weft.core.notebook_table import jobs_html

        return jobs_html(self.jobs())

    def health(self) -> HealthRow:
        """The controller's process, version, and policy."""
        return cast(HealthRow, self._ask("GET", "/healthz"))

    def submit(self, submission: Submission) -> str:
        """Submit a job; returns its id once the job is on disk."""
        return str(self._ask("POST", "/v1/jobs", submission.document())["id"])

    def submit_command(
        self, command: str | Sequence[str], *, workers: int | str = 1, cwd: str = "", **fields: Any
    ) -> str:
        """Submit a command to be run in ``cwd``, by default the current folder; returns the job's id.

        ``command``: words, or one line that is split into words as a shell would, without running one.  ``workers``: a
        number or ``"MIN:MAX"``.  ``fields``: keys of a job file, such as ``name``, ``weight``, ``total_steps``.
        """
        import shlex  # like everything that `weft status` does not need

        words = shlex.split(command) if isinstance(command, str) else list(command)
        low, high = worker_range(str(workers))
        for key in fields.keys() - FIELDS.keys():
            raise UsageError(unknown_name("key", key, FIELDS))
        place = {"command": words, "cwd": os.path.abspath(cwd), "user": this_user()}
        document = {**place, "min_workers": low, "max_workers": high, **fields}
        return self.submit(Submission.from_document(document))

    def outlook(self, submission: Submission) -> OutlookRow:
        """What the policy would give this job now.  Nothing is submitted."""
        return cast(OutlookRow, self._ask("POST", "/v1/outlook", submission.document()))

    def jobs(self) -> list[JobRow]:
        """All jobs in order of submission."""
        return JobRows(self._ask("GET", "/v1/jobs")["jobs"])

    def job_details(self) -> list[JobDetail]:
        """All jobs, with all their fields."""
        return JobRows(self._ask("GET", "/v1/jobs?detail=true")["jobs"])

    def overview(self, limit: int) -> OverviewRow:
        """The number of jobs in each state, and at most ``limit`` jobs: running, waiting, most recently finished."""
        return cast(OverviewRow, self._ask("GET", f"/v1/overview?limit={limit}"))

    def ids(self, jobs: Sequence[str]) -> list[str]:
        """The ids of these jobs."""
        from weft.core.job_choice import matching_id

        if len(jobs) == 1:
            return [self.job(jobs[0])["id"]]
        rows = self.jobs()
        known = {row["id"] for row in rows}
        return list(dict.fromkeys(job if job in known else matching_id(rows, job) for job in jobs))

    def job(self, job: str) -> JobDetail:
        """One job."""
        from weft.core.job_choice import matching_id  # `weft status` does not need them
        from weft.daemon.ids import is_id

        if is_id(job):
            try:
                return cast(JobDetail, self._ask("GET", _path(job)))
            except UsageError:
                pass  # a name can look like an id: resnet50
        return cast(JobDetail, self._ask("GET", _path(matching_id(self.jobs(), job))))

    def cancel(self, job: str) -> JobDetail:
        """Cancel a job; a second call kills its workers."""
        return cast(JobDetail, self._ask("POST", self._path(job, "cancel")))

    def change(self, job: str, **values: float) -> JobDetail:
        """Change ``weight``, ``priority``, ``min_workers``, or ``max_workers`` of a pending or running job."""
        return cast(JobDetail, self._ask("PATCH", self._path(job), values))

    def explain(self, job: str) -> list[SentenceRow]:
        """What happened to the job and why, oldest first.  The last sentence describes the present."""
        return cast(list[SentenceRow], self._ask("GET", self._path(job, "explain"))["sentences"])

    def history(self, job: str) -> HistoryRow:
        """The job's whole life in numbers: loss, step time, workers, and what changed them."""
        return cast(HistoryRow, self._ask("GET", self._path(job, "history")))

    def whatif(self, question: Mapping[str, Any] | None = None) -> WhatifRow:
        """The simulator's forecast for the current queue, without and with a different policy, devices, or job limits.

        ``question``: ``{"policy": P, "devices": N, "jobs": {JOB: {"weight": X, "min_workers": A, "max_workers": B}}}``.
        """
        asked = dict(question or {})
        if "jobs" in asked:
            asked["jobs"] = {self.job(job)["id"]: changes for job, changes in asked["jobs"].items()}
        return cast(WhatifRow, self._ask("POST", "/v1/whatif", asked, extra_s=_FORECAST_S))

    def nodes(self) -> list[NodeRow]:
        """Nodes, their devices, and the jobs on them."""
        return cast(list[NodeRow], self._ask("GET", "/v1/nodes")["nodes"])

    def drain(self, name: str, *, resume: bool = False) -> list[NodeRow]:
        """Take a node out of service, or return it to service with ``resume``; returns all nodes."""
        path = "/v1/nodes/resume" if resume else "/v1/nodes/drain"
        return cast(list[NodeRow], self._ask("POST", path, {"name": name})["nodes"])

    def timeline(self, since_s: float | None = None, until_s: float | None = None) -> TimelineRow:
        """Which job had which devices when; by default in the last 24 hours."""
        limits = {"since_s": since_s, "until_s": until_s}
        query = urlencode({name: value for name, value in limits.items() if value is not None})
        return cast(TimelineRow, self._ask("GET", f"/v1/timeline?{query}"))

    def decisions(self, last: int = 100) -> list[DecisionRow]:
        """The most recent decisions that changed something, oldest first."""
        return cast(list[DecisionRow], self._ask("GET", f"/v1/decisions?last={last}")["decisions"])

    def stream(self, since: str = "") -> Iterator[ChangesRow]:
        """Everything that changed since that version, then every change, until the controller exits."""
        with self._answer("GET", f"/v1/stream?{urlencode({'since': since})}", timeout_s=None) as answer:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield cast(ChangesRow, json.loads(line[6:]))

    def metrics(self) -> str:
        """Metrics in Prometheus format."""
        return self._read("GET", "/metrics").decode()

    def purge(self, older_than_s: float, *, dry_run: bool = False) -> PurgeRow:
        """Delete jobs that finished longer ago than this, with their logs and checkpoints."""
        return cast(PurgeRow, self._ask("POST", "/v1/purge", {"older_than_s": older_than_s, "dry_run": dry_run}))

    def shutdown(self, *, stop_jobs: bool = False) -> None:
        """Shut down the controller; workers keep running unless ``stop_jobs``."""
        self._ask("POST", "/v1/shutdown", {"stop_jobs": stop_jobs})

    def wait(self, jobs: Sequence[str], timeout_s: float | None = None) -> list[JobRow]:
        """Block until all jobs have finished or the timeout expires; returns their rows at that time.

        Tolerates a controller restart in the meantime: jobs keep running without it.
        """
        deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        job_ids = self.ids(jobs)
        rows: list[JobRow] = []
        for start in range(0, len(job_ids), _MAX_IDS_PER_REQUEST):
            rows += self._wait_for(job_ids[start : start + _MAX_IDS_PER_REQUEST], deadline_s)
        return rows

    def _wait_for(self, job_ids: Sequence[str], deadline_s: float) -> list[JobRow]:
        last_seen_s: float | None = None
        while True:
            # The first request does not block: it fails fast if there is no controller or no such job.
            one_s = 0.0 if last_seen_s is None else min(_POLL_S, max(deadline_s - time.monotonic(), 0.0))
            values = [*(("id", job_id) for job_id in job_ids), ("timeout_s", f"{one_s:.3f}")]
            query = urlencode(values, errors="surrogateescape")
            try:
                rows = cast(list[JobRow], self._ask("GET", f"/v1/wait?{query}", extra_s=one_s)["jobs"])
            except (NoControllerError, NotNowError):
                now_s = time.monotonic()
                if last_seen_s is None or now_s >= min(last_seen_s + _MAX_ABSENCE_S, deadline_s):
                    raise
                time.sleep(_RETRY_S)
                continue
            last_seen_s = time.monotonic()
            if all(row["state"] in FINAL_STATES for row in rows) or last_seen_s >= deadline_s:
                return rows

    def logs(
        self,
        job: str,
        *,
        attempt: int | None = None,
        rank: int = 0,
        stream: Literal["out", "err"] = "out",
        follow: bool = False,
    ) -> Iterator[bytes]:
        """The output of one worker, by default of its newest attempt.

        With ``follow``, continues with new output through all later attempts until the job is over.
        """
        job_id = self.job(job)["id"]
        if not follow:
            yield from self._log(job_id, attempt, rank, stream, follow=False)
            return
        current = attempt or self._begun(job_id, after=0)
        while current is not None:
            yield from self._log(job_id, current, rank, stream, follow=True)
            current = self._begun(job_id, after=current) if attempt is None else None

    def _log(self, job_id: str, attempt: int | None, rank: int, stream: str, *, follow: bool) -> Iterator[bytes]:
        query: dict[str, Any] = {"rank": rank, "stream": stream, "follow": str(follow).lower()}
        if attempt is not None:
            query["attempt"] = attempt
        # No timeout: a worker may be silent for hours.
        with self._answer("GET", _path(job_id, "logs") + "?" + urlencode(query), timeout_s=None) as answer:
            while data := answer.read1(_CHUNK_BYTES):
                yield data

    def _begun(self, job_id: str, after: int) -> int | None:
        """Wait for the first attempt after this one to start; ``None`` if the job ends without one."""
        while True:
            row = self.job(job_id)
            if row["attempt"] > after:
                return after + 1 if after else row["attempt"]
            if row["state"] in FINAL_STATES:
                return None
            self.wait([job_id], timeout_s=0.5)

    def _path(self, job: str, *rest: str) -> str:
        return _path(self.job(job)["id"], *rest)

    def _ask(self, method: str, path: str, body: Any = None, *, extra_s: float = 0.0) -> Any:
        data = self._read(method, path, body, extra_s=extra_s)
        try:
            return json.loads(data)
        except ValueError:
            raise ControllerError(
                f"the controller's response to {method} {path} is not JSON: is it a different version of weft?"
            ) from None

    def _read(self, method: str, path: str, body: Any = None, *, extra_s: float = 0.0) -> bytes:
        with self._answer(method, path, body, timeout_s=self._timeout_s + extra_s) as answer:
            return answer.read()

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, body: Any = None, *, timeout_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        """The response, to be read in the block; a controller that goes away meanwhile is an error of ours."""
        answer = self._send(method, path, body, timeout_s=timeout_s)
        try:
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        finally:
            answer.close()

    def _send(self, method: str, path: str, body: Any, *, timeout_s: float | None) -> http.client.HTTPResponse:
        connection = _UnixConnection(self._socket(), timeout_s)
        headers = {"Authorization": f"Bearer {self._token()}", "Connection": "close"}
        data = None
        if body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._gone(error) from error
        if answer.status >= 400:
            raise _refused(answer)
        return answer

    def _token(self) -> str:
        try:
            return self.home.token_file.read_text().strip()
        except FileNotFoundError as error:
            raise self._gone(error) from None
        except OSError as error:
            raise ControllerError(
                f"{self.home.token_file} cannot be read ({error.strerror}): set WEFT_HOME to the home of your own "
                "controller"
            ) from error

    def _socket(self) -> Path:
        """Where the controller listens."""
        record = self.home.read_record()
        return self.home.api_socket if record is None else Path(record.socket)

    def _gone(self, error: Exception) -> ControllerError:
        where = self._socket()
        if isinstance(error, TimeoutError):
            return ControllerError(f"the controller at {where} did not respond in time: see {self.home.log_file}")
        if isinstance(error, PermissionError):
            return ControllerError(f"{where}: permission denied: set WEFT_HOME to the home of your own controller")
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return NoControllerError(f"no controller is running at {where}: start one with `weft up`")
        return NoControllerError(
            f"the controller at {where} exited during the request: restart it with `weft up` "
            "(jobs keep running, and nothing that was acknowledged is lost)"
        )


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = str(path)

    def connect(self) -> None:
        if len(os.fsencode(self._path)) > _MAX_SOCKET_PATH_BYTES:
            raise FileNotFoundError(f"{self._path} is too long for a socket path")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _path(job_id: str, *rest: str) -> str:
    return "/".join(["/v1/jobs", quote(job_id, safe="", errors="surrogateescape"), *rest])


def _refused(answer: http.client.HTTPResponse) -> Exception:
    try:
        message = str(json.loads(answer.read())["error"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        message = f"the controller responded with {answer.status} {answer.reason}"
    finally:
        answer.close()
    if answer.status in (400, 404, 409, 422):
        return UsageError(message)
    return NotNowError(message) if answer.status == 503 else ControllerError(message)
