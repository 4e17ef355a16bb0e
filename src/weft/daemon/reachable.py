"""Files by which a controller is reached, made again when somebody deletes them while it runs: it could otherwise
neither be asked nor be shut down, and would not hear from its workers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path

from weft.daemon.home import Home, Record
from weft.daemon.listeners import OwnerSocket, Reserve, listen_unix
from weft.errors import WeftError

LOOK_EVERY_S = 2.0

_log = logging.getLogger(__name__)


async def keep_reachable(
    home: Home,
    record: Record,
    reserve: Reserve,
    serve: Callable[[OwnerSocket], Awaitable[None]],
    rebind_channel: Callable[[], Future[None]],
) -> None:
    """Look again and again; ``serve`` lets the server listen on one socket more.

    A deleted token stays deleted: that is how a new one is asked for.
    """

    async def listen() -> None:
        await serve(listen_unix(home.api_socket, reserve))

    async def rebind() -> None:
        await asyncio.wrap_future(rebind_channel())

    async def write_record() -> None:
        home.write_record(record)

    makers = {home.api_socket: listen, home.channel_socket: rebind, home.record_file: write_record}
    made = {path: _identity(path) for path in makers}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        for path, make in makers.items():
            try:
                if made[path] is None or _identity(path) != made[path]:
                    home.prepare()
                    await make()
                    made[path] = _identity(path)
                    _log.warning("%s was gone: made again", path)
            except (OSError, WeftError) as error:
                _log.warning("%s, by which the controller is reached, cannot be looked after: %s", path, error)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino
