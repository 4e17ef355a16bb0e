"""The lease server of this host, as far as the controller has to do with it.

Every attempt is told where the server would be, so that a job can begin to share without a restart; the server itself
is started when the first pair is decided.  A thread looks after it from then on: it starts the server again when it
died, and tells it who leads and who fills, also of workers that have come since.  Nothing waits for that thread:
without a server jobs run beside each other, and jobs whose roles are not known yet take turns.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from pathlib import Path
from typing import Any

from weft.control.state import Job, State
from weft.core import worker_environment as names
from weft.crossover.lease_launch import SOCKET_NAME, ensure_server, set_role, status, stop_server
from weft.crossover.phases import Role
from weft.errors import LeaseError

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class LeaseServers:
    """Keeps the lease server's roles those of the state."""

    def __init__(self, folder: Path, *, enabled: bool) -> None:
        self._folder = folder
        self._enabled = enabled
        self._wanted: dict[str, Role] = {}
        self._changed = threading.Condition()
        self._ending = False
        self._thread: threading.Thread | None = None
        self._trouble = ""

    def environment(self, job: Job, devices: tuple[int, ...]) -> dict[str, str]:
        """What the workers of an attempt on these devices are told."""
        if not self._enabled or not job.spec.may_share:
            return {}
        return {
            names.LEASE: str(self._folder / SOCKET_NAME),
            names.LEASE_DEVICE: ",".join(map(str, devices)),
            names.LEASE_ROLE: (Role.FILLER if job.fills else Role.FAIR).value,
        }

    def follow(self, state: State) -> None:
        """The state may have changed: let the server know."""
        if not self._enabled:
            return
        roles = roles_of(state)
        if roles == self._wanted:
            return
        with self._changed:
            self._wanted = roles
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_after, name="weft-sharing", daemon=True)
            self._thread.start()

    def close(self, *, stop: bool) -> None:
        """Look after it no more.  ``stop``: end the server too, also one of a controller before this one."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if stop and not stop_server(self._folder / SOCKET_NAME):
            _log.warning("the lease server in %s is still used: it ends when nobody needs it", self._folder)

    def _look_after(self) -> None:
        while True:
            with self._changed:
                wanted = self._wanted
                if self._ending:
                    return
            try:
                if wanted:
                    tell_roles(ensure_server(self._folder), wanted)
                self._trouble = ""
            except (LeaseError, OSError, subprocess.TimeoutExpired) as error:
                if str(error) != self._trouble:
                    _log.warning("pairs share without order for now: %s", error)
                self._trouble = str(error)
            with self._changed:
                if self._wanted is wanted and not self._ending:
                    self._changed.wait(_LOOK_EVERY_S if wanted else None)


def tell_roles(path: Path, wanted: dict[str, Role]) -> None:
    """Make the server at ``path`` hold these roles; who is in no pair any more shares as an equal."""
    for job_id, role in roles_held(status(path)).items():
        right = wanted.get(job_id, Role.FAIR)
        if role is not right:
            set_role(path, job_id, right)


def roles_held(answer: dict[str, Any]) -> dict[str, Role]:
    """The jobs at a server and how they share, by what it says itself."""
    return {member["job"]: Role(member["role"]) for device in answer["devices"].values() for member in device["jobs"]}


def roles_of(state: State) -> dict[str, Role]:
    """How each job of a pair shares."""
    active = state.jobs.active
    roles: dict[str, Role] = {}
    for job in active.values():
        if job.partner is None:
            continue
        partner = active.get(job.partner)
        if job.fills:
            roles[job.id] = Role.FILLER
        else:
            roles[job.id] = Role.PRIMARY if partner is not None and partner.fills else Role.FAIR
    return roles
