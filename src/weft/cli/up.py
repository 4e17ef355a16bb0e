"""``weft up``: start the controller of this home."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from typing import TYPE_CHECKING, Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Option
from weft.core.duration import parse_duration_s
from weft.daemon.home import Home, HomeTakenError, Record
from weft.daemon.options import ControllerOptions
from weft.errors import ControllerError, WeftError

if TYPE_CHECKING:
    from weft.client import Client

START_TIMEOUT_S = 60.0
RAY_START_TIMEOUT_S = 120.0
"""Processes are started on every node before the controller responds."""
# The controller is ready when it responds, so it is asked until it does.
_POLL_S = 0.05
_LOG_TAIL_BYTES = 4096


def up(
    options: ControllerOptions,
    foreground: Annotated[bool, Option("do not detach; log to this terminal")] = False,
    as_json: Json = False,
) -> None:
    """Start the controller and return when it responds. It restores its queue and reconnects to running jobs.

    All its state is in WEFT_HOME (default: ~/.weft). Controllers with different homes can run side by side.
    """
    client = connect()
    home = client.home
    _ = options.quotas  # reject bad ones before anything starts
    if options.keep is not None:
        parse_duration_s(options.keep, "--keep")
    home.prepare()
    home.token()  # created here: on a full disk, the controller could not even log what went wrong
    if foreground:
        from weft.daemon.controller_process import serve

        raise SystemExit(serve(home, options))
    pid = home.holder()
    if pid is not None:
        raise HomeTakenError(
            f"a controller is already running in {home.root} (process {pid or 'unknown'}): use it, shut it down with "
            "`weft down`, or set WEFT_HOME to start another one elsewhere"
        )
    record = _started(client, options)
    if as_json:
        render.print_json(
            {
                "home": str(home.root),
                "pid": record.pid,
                "url": record.url,
                "page": f"{record.url}/",
                "socket": record.socket,
                "policy": options.policy,
            }
        )
    else:
        render.print_text(f"controller {record.pid} is running in {home.root}, policy {options.policy}")
        render.print_text(f"dashboard, which asks for the token once (cat {shlex.quote(str(home.token_file))}):")
        print(f"{record.url}/")
    for words in client.health().get("warnings", []):
        render.note(words)


def _started(client: Client, options: ControllerOptions) -> Record:
    """Start it detached from this terminal and wait until it responds, or raise what it reported."""
    home = client.home
    log = os.open(home.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    begin = os.fstat(log).st_size
    try:
        process = subprocess.Popen(
            options.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "WEFT_HOME": str(home.root)},
        )
    finally:
        os.close(log)
    timeout_s = RAY_START_TIMEOUT_S if options.engine == "ray" else START_TIMEOUT_S
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            code = process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if _responds(client, process.pid):
                record = home.read_record()  # written after the first pass of the controller's loop
                if record is not None and record.pid == process.pid:
                    return record
            continue
        raise _StartError(_last_words(home, begin) or f"the controller exited immediately: see {home.log_file}", code)
    process.terminate()
    raise ControllerError(f"the controller did not respond within {timeout_s:g} s: see {home.log_file}")


def _responds(client: Client, pid: int) -> bool:
    try:
        return client.health()["pid"] == pid
    except WeftError:
        return False


class _StartError(WeftError):
    """The controller reported why it cannot start; its exit code becomes ours."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code if 0 < exit_code < 128 else 1


def _last_words(home: Home, begin: int) -> str:
    """The error it reported since it was started, or else the end of its log."""
    with home.log_file.open("rb") as file:
        file.seek(max(begin, os.path.getsize(home.log_file) - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    own = [line.removeprefix("weft: ") for line in lines if line.startswith("weft: ")]
    return own[-1] if own else "\n".join(lines[-5:])
