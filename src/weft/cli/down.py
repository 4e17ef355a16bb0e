"""``weft down``: stop the controller of this home."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, Option, Verb, connect
from weft.errors import ControllerError, NoControllerError

# What the controller needs to write down where it stands; with --jobs the workers' grace comes on top.
LEAVE_TIMEOUT_S = 30.0


def down(
    jobs: Annotated[bool, Option(help="stop the running jobs too; they stay in the queue")] = False,
    timeout_s: Annotated[float | None, Option(min=0, help="default: 30, with --jobs 180")] = None,
    as_json: Json = False,
) -> None:
    """Stop the controller and return when it is gone. Jobs go on without it and are found again by `weft up`.

    With --jobs their workers are stopped first, after a checkpoint; the jobs wait in the queue for the next `weft up`.
    """
    client = connect()
    home = client.home
    pid = home.holder()
    if not pid:
        if jobs:
            raise NoControllerError(
                f"no controller runs in {home.root}, so nobody can stop its jobs: `weft up`, then `weft down --jobs`"
            )
        _say(str(home.root), None, as_json=as_json)
        return
    with contextlib.closing(_Handle(pid)) as process:
        client.shutdown(stop_jobs=jobs)
        limit_s = timeout_s if timeout_s is not None else LEAVE_TIMEOUT_S * (6 if jobs else 1)
        if not process.ended_within(limit_s):
            raise ControllerError(
                f"the controller (process {pid}) was asked to go and has not gone within {limit_s:g} s: "
                f"see {home.log_file}"
            )
    _say(str(home.root), pid, as_json=as_json)


def _say(home: str, pid: int | None, *, as_json: bool) -> None:
    if as_json:
        render.print_json({"home": home, "pid": pid})
    elif pid is None:
        render.note(f"no controller runs in {home}: nothing to do")
    else:
        print(f"controller {pid} is down")


class _Handle:
    """A process that is not ours to wait for, held so that its pid cannot become somebody else's."""

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._descriptor = None

    def ended_within(self, timeout_s: float) -> bool:
        if self._descriptor is None:
            return True
        return bool(select.select([self._descriptor], [], [], timeout_s)[0])

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


app = Verb(down)
