"""The test's end of ``controller_driver``: start it, ask it, see it die."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.hang_limit import HANG_S

ROOT = Path(__file__).parents[2]
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
        self._log = (folder / "controller.err").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.controller_driver", str(folder / "home"), str(num_devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | (environment or {}),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ready(self) -> DrivenController:
        self._answers[0].result(HANG_S)
        return self

    def ask(self, what: str, **values: Any) -> Any:
        assert self.process.stdin is not None
        with self._lock:
            self._number += 1
            number, answer = self._number, Future[Any]()
            self._answers[number] = answer
            if self._is_over:
                raise ControllerDied
            try:
                self.process.stdin.write(json.dumps({"number": number, "ask": what, **values}).encode() + b"\n")
                self.process.stdin.flush()
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

    @property
    def is_closed(self) -> bool:
        return self._log.closed

    def kill(self) -> None:
        """SIGKILL, as from the out-of-memory killer."""
        self.process.kill()
        self.close()

    def close(self) -> int:
        """Wait for the end of the process; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        code = self.process.wait(HANG_S)
        self._reader.join()
        with contextlib.suppress(OSError):  # something was left to be sent
            self.process.stdin.close()
        self.process.stdout.close()
        self._log.close()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
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
