"""``weft up``: start the controller of this home."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated

from weft.cli import render
from weft.cli.verb import Json, Option, Verb, connect
from weft.core.nearest_name import unknown_name
from weft.daemon.home import Home, HomeTakenError, Record
from weft.errors import ControllerError, UsageError, WeftError

if TYPE_CHECKING:
    from weft.client import Client


ENGINES = ("local",)
START_TIMEOUT_S = 60.0
# The controller tells that it is ready by answering; until then somebody has to look.
_LOOK_EVERY_S = 0.05
_LOG_TAIL_BYTES = 4096


def up(
    engine: Annotated[str, Option(help="what runs the workers: local")] = "local",
    devices: Annotated[int | None, Option(min=1, help="how many [default: every GPU, or every core]")] = None,
    policy: Annotated[str, Option(help="who gets how many workers; see docs/policies.md")] = "balanced",
    port: Annotated[int | None, Option(min=0, max=65535, help="of 127.0.0.1; 0 takes any that is free")] = None,
    grace_s: Annotated[float | None, Option(min=0, help="time for workers to save when stopped")] = None,
    hold_s: Annotated[float | None, Option(min=0, help="leave a job alone for so long after a change")] = None,
    cold: Annotated[bool, Option(help="start workers without the warm pool")] = False,
    no_share: Annotated[bool, Option(help="never let two jobs take turns on a device")] = False,
    paranoid: Annotated[bool, Option(help="check every invariant after every event")] = False,
    foreground: Annotated[bool, Option(help="do not detach; log to this terminal")] = False,
    as_json: Json = False,
) -> None:
    """Start the controller and return when it answers. It finds its queue and running jobs again.

    Everything is kept in WEFT_HOME (default ~/.weft); several homes may live side by side.
    """
    if engine not in ENGINES:
        raise UsageError(unknown_name("engine", engine, ENGINES))
    client = connect()
    home = client.home
    home.prepare()
    options = _arguments(
        engine=engine,
        devices=devices,
        policy=policy,
        port=port,
        grace_s=grace_s,
        hold_s=hold_s,
        cold=cold,
        no_share=no_share,
        paranoid=paranoid,
    )
    command = [sys.executable, "-m", "weft.daemon", str(home.root), *options]
    if foreground:
        os.execv(sys.executable, command)
    pid = home.holder()
    if pid is not None:
        raise HomeTakenError(
            f"a controller runs in {home.root} already (process {pid or 'unknown'}): use it, stop it with `weft down`, "
            "or start this one with another WEFT_HOME"
        )
    record = _started(client, command)
    if as_json:
        render.print_json(
            {
                "home": str(home.root),
                "pid": record.pid,
                "url": record.url,
                "page": f"{record.url}/",
                "socket": record.socket,
                "policy": policy,
            }
        )
    else:
        print(f"controller {record.pid} is up in {home.root}, policy {policy}")
        print(f"page  {record.url}/  (asks once for the token: cat {shlex.quote(str(home.token_file))})")


def _arguments(**values: object) -> list[str]:
    """What was said, for the controller; what was not said it knows better."""
    words: list[str] = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words


def _started(client: Client, command: list[str]) -> Record:
    """Start it apart from this terminal and wait until it answers, or say why it does not."""
    home = client.home
    log = os.open(home.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    begin = os.fstat(log).st_size
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    finally:
        os.close(log)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            code = process.wait(_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            if _answers(client, process.pid):
                record = home.read_record()
                if record is not None:
                    return record
            continue
        raise _StartError(_last_words(home, begin) or f"the controller ended at once, see {home.log_file}", code)
    process.terminate()
    raise ControllerError(f"the controller did not answer within {START_TIMEOUT_S:g} s: see {home.log_file}")


def _answers(client: Client, pid: int) -> bool:
    try:
        return client.health()["pid"] == pid
    except WeftError:
        return False


class _StartError(WeftError):
    """The controller said itself why it cannot start; its exit code is ours."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code if 0 < exit_code < 128 else 1


def _last_words(home: Home, begin: int) -> str:
    """What it has told since it was started: its own error line, else the end of what it wrote."""
    with home.log_file.open("rb") as file:
        file.seek(max(begin, os.path.getsize(home.log_file) - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    own = [line.removeprefix("weft: ") for line in lines if line.startswith("weft: ")]
    return own[-1] if own else "\n".join(lines[-5:])


app = Verb(up)
