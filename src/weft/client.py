"""Talk to a running controller: what the command line uses, and notebooks can.

    from weft.client import Client
    client = Client()                                   # the controller of WEFT_HOME, else of ~/.weft
    job_id = client.submit(Submission(Launch(("python", "train.py"), "/home/ana"), max_workers=4))
    client.wait([job_id])

Goes over the controller's unix socket with what the standard library has.  Needs neither torch nor pydantic.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode

from weft.core.status_rows import (
    FINAL_STATES,
    DecisionRow,
    HealthRow,
    JobDetail,
    JobRow,
    NodeRow,
    OutlookRow,
    SentenceRow,
)
from weft.core.submission import Submission
from weft.daemon.home import Home, default_home
from weft.errors import ControllerError, NoControllerError, UsageError

TIMEOUT_S = 30.0
# How long the controller holds a question that has no answer yet; then it is asked again.
_ONE_WAIT_S = 20.0
_WAIT_FOR_AT_ONCE = 500
# Who waits for a job puts up with a controller that is away for so long.
_ABSENCE_S = 120.0
_LOOK_AGAIN_S = 0.5
_CHUNK_BYTES = 65536


class NotNowError(ControllerError):
    """The controller goes down, or cannot write to its disk.  Nothing was acknowledged; it may be asked again."""


class Client:
    """One controller, known by its home.  Every call is a connection of its own: safe in threads, nothing to close."""

    def __init__(self, home: Path | str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self.home = Home(default_home() if home is None else Path(home).expanduser().absolute())
        self._timeout_s = timeout_s

    def health(self) -> HealthRow:
        """Who answers."""
        return cast(HealthRow, self._ask("GET", "/healthz"))

    def submit(self, submission: Submission) -> str:
        """Hand in a job; its id comes back when the job is on disk."""
        return str(self._ask("POST", "/v1/jobs", submission.document())["id"])

    def outlook(self, submission: Submission) -> OutlookRow:
        """What the policy would give this job now; nothing is submitted."""
        return cast(OutlookRow, self._ask("POST", "/v1/outlook", submission.document()))

    def jobs(self) -> list[JobRow]:
        """All jobs in order of submission."""
        return cast(list[JobRow], self._ask("GET", "/v1/jobs")["jobs"])

    def job_details(self) -> list[JobDetail]:
        """All jobs, with everything that is known of each."""
        return cast(list[JobDetail], self._ask("GET", "/v1/jobs?detail=true")["jobs"])

    def job(self, job_id: str) -> JobDetail:
        """One job."""
        return cast(JobDetail, self._ask("GET", _path(job_id)))

    def cancel(self, job_id: str) -> JobDetail:
        """Stop a job for good; asked again, its workers are killed."""
        return cast(JobDetail, self._ask("POST", _path(job_id, "cancel")))

    def explain(self, job_id: str) -> list[SentenceRow]:
        """What happened to the job and why, oldest first; the last sentence is about now."""
        return cast(list[SentenceRow], self._ask("GET", _path(job_id, "explain"))["sentences"])

    def nodes(self) -> list[NodeRow]:
        """Nodes, their devices and who has them."""
        return cast(list[NodeRow], self._ask("GET", "/v1/nodes")["nodes"])

    def decisions(self, last: int = 100) -> list[DecisionRow]:
        """The last decisions that changed something, oldest first."""
        return cast(list[DecisionRow], self._ask("GET", f"/v1/decisions?last={last}")["decisions"])

    def metrics(self) -> str:
        """Figures for Prometheus."""
        return self._read("GET", "/metrics").decode()

    def shutdown(self, *, stop_jobs: bool = False) -> None:
        """Let the controller go down; workers go on unless ``stop_jobs``."""
        self._ask("POST", "/v1/shutdown", {"stop_jobs": stop_jobs})

    def wait(self, job_ids: Sequence[str], timeout_s: float | None = None) -> list[JobRow]:
        """Block until all of them are over or the time is up; returns them as they are then.

        A controller that goes away meanwhile is waited for, too: the jobs go on without it.
        """
        deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        rows: list[JobRow] = []
        for start in range(0, len(job_ids), _WAIT_FOR_AT_ONCE):
            rows += self._wait_for(job_ids[start : start + _WAIT_FOR_AT_ONCE], deadline_s)
        return rows

    def _wait_for(self, job_ids: Sequence[str], deadline_s: float) -> list[JobRow]:
        last_seen_s: float | None = None
        while True:
            # The first look only makes sure that there is a controller, and that it knows the jobs.
            one_s = 0.0 if last_seen_s is None else min(_ONE_WAIT_S, max(deadline_s - time.monotonic(), 0.0))
            query = urlencode([*(("id", job_id) for job_id in job_ids), ("timeout_s", f"{one_s:.3f}")])
            try:
                rows = cast(list[JobRow], self._ask("GET", f"/v1/wait?{query}", extra_s=one_s)["jobs"])
            except (NoControllerError, NotNowError):
                now_s = time.monotonic()
                if last_seen_s is None or now_s >= min(last_seen_s + _ABSENCE_S, deadline_s):
                    raise
                time.sleep(_LOOK_AGAIN_S)
                continue
            last_seen_s = time.monotonic()
            if all(row["state"] in FINAL_STATES for row in rows) or last_seen_s >= deadline_s:
                return rows

    def logs(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        rank: int = 0,
        stream: Literal["out", "err"] = "out",
        follow: bool = False,
    ) -> Iterator[bytes]:
        """Output of one worker, by default of its newest attempt.

        With ``follow`` also what comes, through all later attempts, until the job is over.
        """
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
        # A worker may be silent for hours.
        answer = self._send("GET", _path(job_id, "logs") + "?" + urlencode(query), timeout_s=None)
        try:
            while data := answer.read1(_CHUNK_BYTES):
                yield data
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        finally:
            answer.close()

    def _begun(self, job_id: str, after: int) -> int | None:
        """The first attempt after this one, once it has begun; ``None`` when the job is over without one."""
        while True:
            row = self.job(job_id)
            if row["attempt"] > after:
                return after + 1 if after else row["attempt"]
            if row["state"] in FINAL_STATES:
                return None
            self.wait([job_id], timeout_s=0.5)

    def _ask(self, method: str, path: str, body: Any = None, *, extra_s: float = 0.0) -> Any:
        data = self._read(method, path, body, extra_s=extra_s)
        try:
            return json.loads(data)
        except ValueError:
            raise ControllerError(
                f"the controller's answer to {method} {path} is not JSON: is it of another version?"
            ) from None

    def _read(self, method: str, path: str, body: Any = None, *, extra_s: float = 0.0) -> bytes:
        answer = self._send(method, path, body, timeout_s=self._timeout_s + extra_s)
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error
        finally:
            answer.close()

    def _send(self, method: str, path: str, body: Any = None, *, timeout_s: float | None) -> http.client.HTTPResponse:
        connection = _UnixConnection(self.home.api_socket, timeout_s)
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
                f"{self.home.token_file} cannot be read ({error.strerror}): expected a controller of your own, "
                "set WEFT_HOME to its folder"
            ) from error

    def _gone(self, error: Exception) -> ControllerError:
        where = self.home.api_socket
        if isinstance(error, TimeoutError):
            return ControllerError(f"the controller at {where} does not answer in time: see {self.home.log_file}")
        if isinstance(error, PermissionError):
            return ControllerError(f"{where} may not be used by you: expected a controller of your own, see WEFT_HOME")
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return NoControllerError(f"no controller answers at {where}: start one with `weft up`")
        return NoControllerError(
            f"the controller at {where} went away while it was asked: start it again with `weft up` "
            "(jobs go on meanwhile, nothing acknowledged is lost)"
        )


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _path(job_id: str, *rest: str) -> str:
    return "/".join(["/v1/jobs", quote(job_id, safe=""), *rest])


def _refused(answer: http.client.HTTPResponse) -> Exception:
    try:
        message = str(json.loads(answer.read())["error"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        message = f"the controller answered {answer.status} {answer.reason}"
    finally:
        answer.close()
    if answer.status in (400, 404, 422):
        return UsageError(message)
    return NotNowError(message) if answer.status == 503 else ControllerError(message)
