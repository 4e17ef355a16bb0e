"""The test's end of ``controller_driver``: start it, ask it, see it die."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.crash.driver_forks import ROOT, DriverForks
from tests.hang_limit import HANG_S

JOB = Path(__file__).with_name("counting_job.py")


class ControllerDied(Exception):
    """The process ended before it answered."""


class DrivenController:
    """One controller process; ``ask`` from any thread."""

    def __init__(self, folder: Path, num_devices: int = 2, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._answers: dict[int, Future[Any]] = {0: Future()}
        self._lock = threading.Lock()
        self._number = 0
        self._is_over = False
        self.is_closed = False
        requests, to_driver = os.pipe2(os.O_CLOEXEC)
        from_driver, answers = os.pipe2(os.O_CLOEXEC)
        log = os.open(folder / "controller.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        values = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | dict(environment or {})
        self._forks = DriverForks.of_this_process()
        self.pid = self._forks.start([str(folder / "home"), str(num_devices)], values, [requests, answers, log])
        for file in (requests, answers, log):
            os.close(file)
        self._requests, self._replies = os.fdopen(to_driver, "wb"), os.fdopen(from_driver, "rb")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ready(self) -> DrivenController:
        self._answers[0].result(HANG_S)
        return self

    def ask(self, what: str, **values: Any) -> Any:
        with self._lock:
            self._number += 1
            number, answer = self._number, Future[Any]()
            self._answers[number] = answer
            if self._is_over:
                raise ControllerDied
            try:
                self._requests.write(json.dumps({"number": number, "ask": what, **values}).encode() + b"\n")
                self._requests.flush()
            except OSError:
                raise ControllerDied from None
        return answer.result(2 * HANG_S)

    def submit(self, num_steps: int, step_s: float = 0.02, *, stubborn: bool = False, **options: Any) -> str:
        """A counting job; returns its id once acknowledged."""
        argv = [sys.executable, str(JOB), str(num_steps), str(step_s), str(self.folder / "diary")]
        return self.submit_command([*argv, *(["stubborn"] if stubborn else [])], **options)

    def submit_command(self, argv: list[str], *, max_restarts: int = 0, **options: Any) -> str:
        """``options``: of a :class:`Submission`."""
        values = {"cwd": str(self.folder), "environment": {}, "options": options}
        job_id: str = self.ask("submit", argv=argv, max_restarts=max_restarts, **values)
        return job_id

    def job(self, job_id: str) -> dict[str, Any]:
        return next(job for job in self.ask("jobs") if job["id"] == job_id)

    def until(self, job_id: str, states: set[str], step: int = 0) -> dict[str, Any]:
        """Poll until the job is in one of these states and has reached this step, or has ended."""
        deadline_s = time.monotonic() + HANG_S
        while (job := self.job(job_id))["state"] not in states or (job["step"] < step and not job["finished_s"]):
            assert time.monotonic() < deadline_s, f"{job} never came to {states} and step {step}"
            # ``wait`` returns early when anything ends: a pause that ends when there may be news.
            self.ask("wait", job_ids=[job_id], timeout_s=0.05)
        return job

    def end_everything(self) -> None:
        """Cancel every job twice and shut down."""
        self.ready()
        ids = [job["id"] for job in self.ask("jobs")]
        for job_id in ids * 2:
            self.ask("cancel", job_id=job_id)
        self.leave()

    def leave(self) -> None:
        """Shut down and stop all jobs; they stay in the queue."""
        self.ask("shutdown", stop_jobs=True)
        assert self.close() == 0

    def kill(self) -> None:
        """SIGKILL, as from the out-of-memory killer."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def close(self) -> int:
        """Wait for the end of the process; its exit code."""
        code = self._forks.wait(self.pid)
        self._reader.join()
        with contextlib.suppress(OSError):  # something was left to be sent
            self._requests.close()
        self._replies.close()
        self.is_closed = True
        return code

    def _read(self) -> None:
        for line in self._replies:
            answer = json.loads(line)
            if "error" in answer:
                self._answers[answer["number"]].set_exception(RuntimeError(answer["error"]))
            else:
                self._answers[answer["number"]].set_result(answer["result"])
        with self._lock:
            self._is_over = True
            for waiting in self._answers.values():
                if not waiting.done():
                    waiting.set_exception(ControllerDied())


def diary(folder: Path) -> list[list[str]]:
    path = folder / "diary"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def check_diary(folder: Path) -> None:
    """No worker was started twice, and no device was used by two jobs."""
    lines = diary(folder)
    starts = Counter(tuple(line[1:4]) for line in lines if line[0] == "start")
    assert not [worker for worker, num in starts.items() if num > 1], f"started twice: {starts}"
    assert not [line for line in lines if line[0] == "conflict"], "a device was given twice"
