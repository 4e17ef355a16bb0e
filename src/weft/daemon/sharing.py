"""The controller's side of the lease servers: this host's, or those of an engine whose nodes have their own.

Every attempt gets the server's address, so that a job can start sharing without a restart; the server itself is started
when the first pair is formed.  From then on a thread restarts the server if it dies and keeps its roles (primary,
filler) up to date, also for workers that connect later.  Nothing waits for that thread: without a server jobs run
uncoordinated, and jobs whose roles are not known yet take equal turns.

An engine with its own lease servers (:class:`weft.core.engine.SharesOnNodes`) is only told the roles.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from weft.control.state import Job, State
from weft.core import worker_environment as names
from weft.core.engine import SharesOnNodes
from weft.crossover.lease_launch import SOCKET_NAME, ensure_server, stop_server, tell_roles
from weft.crossover.phases import Role
from weft.errors import LeaseError

_log = logging.getLogger(__name__)

_CHECK_EVERY_S = 1.0


class LeaseServers:
    """Keeps the lease server running and its roles up to date with the state."""

    def __init__(self, folder: Path, *, enabled: bool, nodes: SharesOnNodes | None = None) -> None:
        """``nodes``: keeps lease servers on its nodes running itself."""
        self._folder = folder
        self._nodes = nodes
        self._enabled = enabled
        self._wanted: dict[str, Role] = {}
        self._changed = threading.Condition()
        self._ending = False
        self._thread: threading.Thread | None = None
        self._trouble = ""

    def environment(self, job: Job, devices: tuple[int, ...]) -> dict[str, str]:
        """Environment variables of an attempt's workers on these devices."""
        if not self._enabled or not job.spec.may_share:
            return {}
        return {
            names.LEASE: str(self._folder / SOCKET_NAME),
            names.LEASE_DEVICE: ",".join(map(str, devices)),
            names.LEASE_ROLE: (Role.FILLER if job.fills else Role.FAIR).value,
        }

    def follow(self, state: State) -> None:
        """Update the server if the state's pairs have changed."""
        if not self._enabled:
            return
        roles = roles_of(state)
        if roles == self._wanted:
            return
        with self._changed:
            self._wanted = roles
            self._changed.notify_all()
        if self._nodes is not None:
            self._nodes.share({job_id: role.value for job_id, role in roles.items()})
        elif self._thread is None:
            self._thread = threading.Thread(target=self._maintain, name="weft-sharing", daemon=True)
            self._thread.start()

    def close(self, *, stop: bool) -> None:
        """Stop maintaining the server.  ``stop`` also ends it, even one that an earlier controller started."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if stop and self._nodes is None and not stop_server(self._folder / SOCKET_NAME):
            _log.warning("the lease server in %s is still in use: it ends when no job needs it", self._folder)

    def _maintain(self) -> None:
        while True:
            with self._changed:
                wanted = self._wanted
                if self._ending:
                    return
            try:
                if wanted:
                    tell_roles(ensure_server(self._folder), wanted)
                self._trouble = ""
            except (LeaseError, OSError) as error:
                if str(error) != self._trouble:
                    _log.warning("pairs share devices uncoordinated for now: %s", error)
                self._trouble = str(error)
            with self._changed:
                if self._wanted is wanted and not self._ending:
                    self._changed.wait(_CHECK_EVERY_S if wanted else None)


def roles_of(state: State) -> dict[str, Role]:
    """The role of each job in a pair."""
    active = state.jobs.active
    roles: dict[str, Role] = {}
    for job in active.values():
        if job.partner is not None:
            partner = active.get(job.partner)
            leads = partner is not None and partner.fills
            roles[job.id] = Role.FILLER if job.fills else Role.PRIMARY if leads else Role.FAIR
    return roles
