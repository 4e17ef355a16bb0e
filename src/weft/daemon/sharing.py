"""The lease server of this host, as far as the controller has to do with it.

Every attempt is told where the server would be, so that a job can begin to share without a restart; the server itself
is started when the first pair is decided.  Telling it who leads and who fills may take a while (a process is started),
so that happens in a thread, and nothing waits for it: jobs whose roles are not known yet take turns.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from weft.control.state import State
from weft.core import worker_environment as names
from weft.crossover.launch import SOCKET_NAME, ensure_server, set_role
from weft.crossover.phases import Role
from weft.errors import LeaseError

_log = logging.getLogger(__name__)

_TRY_AGAIN_S = 1.0
_NUM_TRIES = 5


class Sharing:
    """Keeps the lease server's roles those of the state."""

    def __init__(self, folder: Path, *, enabled: bool) -> None:
        self._folder = folder
        self._enabled = enabled
        self._wanted: dict[str, Role] = {}
        self._told: dict[str, Role] = {}
        self._lock = threading.Lock()
        self._is_telling = False
        self._ending = threading.Event()

    def environment(self, devices: tuple[int, ...]) -> dict[str, str]:
        """What the workers of an attempt on these devices are told."""
        if not self._enabled:
            return {}
        return {
            names.LEASE: str(self._folder / SOCKET_NAME),
            names.LEASE_DEVICE: ",".join(map(str, devices)),
        }

    def follow(self, state: State) -> None:
        """The state may have changed: let the server know."""
        if not self._enabled:
            return
        roles = roles_of(state)
        if not roles and not self._told:
            return
        with self._lock:
            self._wanted = roles
            if self._is_telling or roles == self._told:
                return
            self._is_telling = True
        threading.Thread(target=self._tell, name="weft-sharing", daemon=True).start()

    def close(self) -> None:
        """Tell nobody any more."""
        self._ending.set()

    def _tell(self) -> None:
        num_failed = 0
        while not self._ending.is_set():
            with self._lock:
                wanted = dict(self._wanted)
                if wanted == self._told or num_failed == _NUM_TRIES:
                    self._is_telling = False
                    return
            try:
                path = ensure_server(self._folder)
                for job_id, role in wanted.items():
                    if self._told.get(job_id) is not role:
                        set_role(path, job_id, role)
            except (LeaseError, OSError) as error:
                num_failed += 1
                _log.warning("pairs take turns as equals for now: %s", error)
                self._ending.wait(_TRY_AGAIN_S)
            else:
                with self._lock:
                    self._told = wanted


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
