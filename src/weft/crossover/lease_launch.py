"""Start or find this host's lease server; query and control it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.crossover.lease_messages import MAX_PACKET_BYTES, check_path, packed, unpacked
from weft.crossover.phases import Role
from weft.errors import LeaseError

SOCKET_NAME = "lease.sock"
LOG_NAME = "lease.log"
LINGER_S = 600.0
"""An unused server exits after this long: enough for a job to import torch and connect."""
_START_WITHIN_S = 10.0
_ANSWER_WITHIN_S = 1.0
_END_WITHIN_S = 5.0


def ensure_server(home: Path, *, linger_s: float = LINGER_S, environment: Mapping[str, str] | None = None) -> Path:
    """Start the lease server in ``home`` unless one answers; returns its socket, for WEFT_LEASE.

    The server outlives the process that started it.  ``environment``: its own, by default that of this process.
    """
    home = home.absolute()
    path = home / SOCKET_NAME
    check_path(path)
    if _answers(path):
        return path
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", "weft.crossover.server", "--socket", str(path), "--linger-s", str(linger_s)]
    with open(home / LOG_NAME, "ab") as log:
        try:
            # --detach: returns once the server listens, which is then not our child.
            started = subprocess.run(
                [*command, "--detach"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                env=None if environment is None else dict(environment),
                timeout=_START_WITHIN_S,
            )
            outcome = f"exit code {started.returncode}"
        except subprocess.TimeoutExpired:
            outcome = f"it did not listen within {_START_WITHIN_S:g} s"
    if not _answers(path):  # an exit code is fine if another server was started at the same time
        raise LeaseError(f"the lease server could not be started at {path} ({outcome}): see {home / LOG_NAME}")
    return path


def status(path: Path, within_s: float = _ANSWER_WITHIN_S) -> dict[str, Any]:
    """Which jobs share which device, according to the server at ``path``."""
    answer = _ask(path, {"kind": "status"}, within_s)
    if "devices" not in answer:
        raise LeaseError(f"the server at {path} did not report its devices: is it a different version?")
    return answer


def set_role(path: Path, job: str, role: Role) -> None:
    """Change how a job shares from now on, on every device of this host; its weight stays."""
    _ask(path, {"kind": "role", "job": job, "role": role.value})


def tell_roles(path: Path, wanted: Mapping[str, Role]) -> None:
    """Set these roles at the server; jobs that are no longer in a pair share as equals."""
    for job_id, roles in roles_held(status(path)).items():
        right = wanted.get(job_id, Role.FAIR)
        if roles != {right}:
            set_role(path, job_id, right)


def roles_held(answer: Mapping[str, Any]) -> dict[str, set[Role]]:
    """The roles of the jobs at a server, from its status.

    A job has several while some of its workers have joined, with the role that they started with, after it changed.
    """
    found: dict[str, set[Role]] = {}
    for device in answer["devices"].values():
        for member in device["jobs"]:
            found.setdefault(member["job"], set()).add(Role(member["role"]))
    return found


def lead_address(path: Path, device: str, host: str) -> str:
    """Where the server will lead the group whose rank 0 has this device; it holds the port from now on."""
    address = str(_ask(path, {"kind": "lead", "device": device, "host": host}).get("address", ""))
    if not address:
        raise LeaseError(f"the lease server cannot listen on {host}: does this host have that address?")
    return address


def stop_server(path: Path) -> bool:
    """Stop the server at ``path`` if no job uses it; returns whether none is left.

    Jobs started elsewhere may be using it; then it exits on its own when they are gone.
    """
    if not path.exists():
        return True
    try:
        answer = status(path, _END_WITHIN_S)
        process = os.pidfd_open(int(answer["pid"]))
    except (LeaseError, KeyError, ProcessLookupError) as error:
        # Nobody listens at the socket of a server that was killed; one that is only slow does.
        return not isinstance(error.__cause__, TimeoutError)
    try:
        if answer["devices"]:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGTERM)
        return bool(select.select([process], [], [], _END_WITHIN_S)[0])
    finally:
        os.close(process)


def _ask(path: Path, question: dict[str, Any], within_s: float = _ANSWER_WITHIN_S) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(within_s)
        try:
            connection.connect(os.fspath(path))
            connection.send(packed(question))
            answer = unpacked(connection.recv(MAX_PACKET_BYTES))
        except OSError as error:
            raise LeaseError(f"no lease server answers at {path} ({error}): start one with `weft up`") from error
    if not isinstance(answer, dict):
        raise LeaseError(f"the server at {path} refused {question}: does it belong to another user?")
    return answer


def _answers(path: Path) -> bool:
    try:
        status(path)
    except LeaseError:
        return False
    return True
