"""The lease server of ``weft run --share``: found or started for the run, stopped by the last run that uses it."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from weft.core.worker_environment import JOB_ID, LEASE
from weft.crossover.lease_launch import ensure_server, roles_held, status, stop_server
from weft.errors import LeaseError

LOCK_NAME = "lease.runs"


@dataclass(frozen=True, slots=True)
class RunLease:
    """One run's use of the server."""

    path: Path
    job_id: str
    others: tuple[str, ...]
    """The runs that shared devices when this one began."""
    _users: int
    """A file that every run holds a shared lock on: the one that gets it alone is the last."""

    @classmethod
    def opened(cls, home: Path, job_id: str) -> RunLease:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        users = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(users, fcntl.LOCK_SH)  # before looking for a server, which is then not stopped anymore
            path = ensure_server(home)
            return cls(path, job_id, tuple(sorted(set(roles_held(status(path))) - {job_id})), users)
        except BaseException:
            os.close(users)
            raise

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make workers take turns."""
        return {LEASE: str(self.path), JOB_ID: self.job_id}

    def in_words(self) -> str:
        """Whether the run shares, and with which others."""
        if not self.others:
            return "no other run shares the devices now; those that start with --share will take turns with this one"
        return f"takes turns on the devices with {' and '.join(self.others)}"

    def close(self) -> None:
        """The run is over; stops the server unless another run uses it."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stop_server(self.path)
        except (BlockingIOError, LeaseError):
            pass  # the last run that uses it stops it
        finally:
            os.close(self._users)
