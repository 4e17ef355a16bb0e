"""Start the lease server of this host, or find the one that runs; ask it, tell it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from weft.crossover.lease_messages import MAX_PACKET_BYTES, check_path, packed, unpacked
from weft.crossover.phases import Role
from weft.errors import LeaseError

SOCKET_NAME = "lease.sock"
LOG_NAME = "lease.log"
LINGER_S = 600.0
"""A server that nobody uses ends after this long; long enough for a job to import torch and find it."""
_START_WITHIN_S = 10.0
_ANSWER_WITHIN_S = 1.0
_END_WITHIN_S = 5.0


def ensure_server(home: Path, *, linger_s: float = LINGER_S) -> Path:
    """The socket of the lease server below ``home``; started if none answers.  Goes into WEFT_LEASE.

    The server outlives whoever started it.
    """
    home = home.absolute()
    path = home / SOCKET_NAME
    check_path(path)
    if _answers(path):
        return path
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-m", "weft.crossover.server", "--socket", str(path), "--linger-s", str(linger_s)]
    with open(home / LOG_NAME, "ab") as log:
        # --detach: it returns when the server listens, and leaves a process that is nobody's child.
        started = subprocess.run(
            [*command, "--detach"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
            timeout=_START_WITHIN_S,
        )
    if not _answers(path):  # of two started at once, one finds the other there and ends: that is well
        raise LeaseError(
            f"the lease server cannot be started at {path} (exit code {started.returncode}): see {home / LOG_NAME}"
        )
    return path


def status(path: Path) -> dict[str, Any]:
    """Who shares which device, by the server at ``path``."""
    answer = _ask(path, {"kind": "status"})
    if "devices" not in answer:
        raise LeaseError(f"the server at {path} did not say who shares: is it another version?")
    return answer


def set_role(path: Path, job: str, role: Role, weight: float = 1.0) -> None:
    """Change how a job shares from now on, on every device of this host."""
    _ask(path, {"kind": "role", "job": job, "role": role.value, "weight": weight})


def stop_server(path: Path) -> bool:
    """End the server at ``path`` if nobody uses it; whether there is none any more.

    Jobs of others may have come to it: it stays for them, and ends by itself when they are gone.
    """
    if not path.exists():
        return True
    try:
        answer = status(path)
        process = os.pidfd_open(int(answer["pid"]))
    except (LeaseError, KeyError, ProcessLookupError):
        return True  # left by one that was killed
    try:
        if answer["devices"]:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGTERM)
        return bool(select.select([process], [], [], _END_WITHIN_S)[0])
    finally:
        os.close(process)


def _ask(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_WITHIN_S)
        try:
            connection.connect(os.fspath(path))
            connection.send(packed(question))
            answer = unpacked(connection.recv(MAX_PACKET_BYTES))
        except OSError as error:
            raise LeaseError(f"no lease server answers at {path} ({error}): start one with `weft up`") from error
    if not isinstance(answer, dict):
        raise LeaseError(f"the server at {path} refused {question}: is it another user's?")
    return answer


def _answers(path: Path) -> bool:
    try:
        status(path)
    except LeaseError:
        return False
    return True
