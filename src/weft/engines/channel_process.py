"""A child process with one end of a socket pair, over which it receives orders and sends news."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def launch(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path | None = None,
    launcher: Sequence[str] = (),
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a module with the descriptor of its end as the last argument; returns our end.

    ``log``: a file for its output, which is inherited by default.  ``launcher``: words to put before the command, such
    as those that enter another network namespace.
    """
    ours, theirs = socket.socketpair()
    # -P: the current folder may contain a file that shadows one of our modules.
    command = [*launcher, sys.executable, "-P", "-m", module, *arguments, str(theirs.fileno())]
    with theirs, contextlib.ExitStack() as files:
        output = None
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            files.callback(os.close, output)
        process = subprocess.Popen(
            command,
            env=dict(environment),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C goes to us, and we decide what it means
        )
    return ours, process


def wait_or_kill(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Let it finish what it is doing, but not forever."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
