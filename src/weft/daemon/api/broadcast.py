"""One stream of changes for all open dashboards, as server-sent events.

One task looks for changes, at most every :data:`LOOK_EVERY_S` and only while someone listens; readers that are up to
date all get the same bytes.  So a reader costs next to nothing while nothing changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from weft.daemon.api.board import Board
from weft.daemon.api.sessions import Permission

LOOK_EVERY_S = 1.0
_COMMENT_EVERY_S = 15.0
"""A comment in a quiet stream shows both ends that the other one is still there."""


class Broadcast:
    """Used by the server's event loop only."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._news = asyncio.Event()
        self._num_readers = 0
        self._looking: asyncio.Task[None] | None = None

    async def events(self, since: str, permission: Permission) -> AsyncIterator[bytes]:
        """Everything that changed since that version, then every change, until the reader leaves."""
        self._num_readers += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            version = since
            while True:
                news = self._news
                if version != self._board.version:
                    version, data = await asyncio.to_thread(self._board.latest, version, permission)
                    yield b"event: board\ndata: %s\n\n" % data
                try:
                    async with asyncio.timeout(_COMMENT_EVERY_S):
                        await news.wait()
                except TimeoutError:
                    yield b": nothing new\n\n"
        finally:
            self._num_readers -= 1

    async def _look(self) -> None:
        while self._num_readers:
            before = self._board.version
            await asyncio.to_thread(self._board.refresh)
            if self._board.version != before:
                news, self._news = self._news, asyncio.Event()
                news.set()
            await asyncio.sleep(LOOK_EVERY_S)
