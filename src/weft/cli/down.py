"""``weft down``: shut down the controller of this home."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from typing import Annotated

from weft.cli import render
from weft.cli.status import MAX_NAME, shortened
from weft.cli.verb import Json, connect
from weft.client import Client
from weft.core.command_line import Option
from weft.core.status_rows import JobRow
from weft.errors import ControllerError, NoControllerError

# Time for the controller to save its state; with --jobs, workers also get their grace period.
EXIT_TIMEOUT_S = 30.0
_MAX_SHOWN = 8


def down(
    jobs: Annotated[bool, Option("also stop running jobs; they stay in the queue")] = False,
    timeout_s: Annotated[float | None, Option("give up after this long", "30, with --jobs 180", min=0)] = None,
    as_json: Json = False,
) -> None:
    """Shut down the controller and return when it has exited.

    Jobs keep running without it, and the next `weft up` reconnects to them. With --jobs, their workers first save a
    checkpoint and stop; the jobs wait in the queue for the next `weft up`.
    """
    client = connect()
    home = client.home
    pid = home.holder()
    if not pid:
        if jobs:
            raise NoControllerError(
                f"no controller is running in {home.root}, so its jobs cannot be stopped: run `weft up`, then "
                "`weft down --jobs`"
            )
        _print(str(home.root), None, [], as_json=as_json)
        return
    running = [] if jobs else _running(client)
    limit_s = timeout_s if timeout_s is not None else EXIT_TIMEOUT_S * (6 if jobs else 1)
    with _exit_of(pid) as has_exited:
        client.shutdown(stop_jobs=jobs)
        if not has_exited(limit_s):
            raise ControllerError(
                f"the controller (process {pid}) was asked to shut down but did not exit within {limit_s:g} s: "
                f"see {home.log_file}"
            )
    _print(str(home.root), pid, running, as_json=as_json)


def _running(client: Client) -> list[JobRow]:
    """Jobs that keep their workers; none if the controller does not respond."""
    try:
        return [row for row in client.jobs() if row["workers"] and not row["finished_s"]]
    except ControllerError:
        return []


def _print(home: str, pid: int | None, running: list[JobRow], *, as_json: bool) -> None:
    if as_json:
        render.print_json({"home": home, "pid": pid, "running": [row["id"] for row in running]})
    elif pid is None:
        render.note(f"no controller is running in {home}: nothing to do")
    else:
        print(f"controller {pid} has shut down")
        if running:
            named = [f"{shortened(render.plain(row['name']), MAX_NAME)} ({row['id']})" for row in running[:_MAX_SHOWN]]
            shown = ", ".join(named) + (", ..." if len(running) > _MAX_SHOWN else "")
            keep, them = ("jobs keep", "them") if len(running) > 1 else ("job keeps", "it")
            render.print_text(f"{len(running)} {keep} running without it: {shown}", indent=2)
            render.print_text(f"`weft up` reconnects to {them}; to stop {them}: `weft up`, then `weft down --jobs`")


@contextlib.contextmanager
def _exit_of(pid: int) -> Iterator[Callable[[float], bool]]:
    """Whether a process that is not our child exits within some seconds; its pid cannot be reused in the meantime."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield lambda timeout_s: True
        return
    try:
        yield lambda timeout_s: bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)
