"""Open dashboards see every change, and share the work of finding it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tests.hang_limit import HANG_S

from fake_controller import FakeController
from weft.daemon.api import board as board_module
from weft.daemon.api.board import Board
from weft.daemon.api.broadcast import Broadcast
from weft.daemon.api.sessions import Permission


class CountingBoard(Board):
    """Counts how often it is updated."""

    num_updates = 0

    def _update(self) -> None:
        self.num_updates += 1
        super()._update()


async def document_of(events: Any) -> Any:
    async with asyncio.timeout(HANG_S):
        while not (event := await anext(events)).startswith(b"event: board\ndata: "):
            pass
    assert event.endswith(b"\n\n")
    return json.loads(event.split(b"data: ", 1)[1])


def test_every_reader_gets_everything_once_and_then_each_change() -> None:
    async def watch() -> None:
        controller = FakeController()
        first = controller.add().id
        board = CountingBoard(controller)  # type: ignore[arg-type]
        broadcast = Broadcast(board)
        readers = [broadcast.events("", Permission.VIEW) for _ in range(5)]
        documents = [await document_of(reader) for reader in readers]
        assert all(document["whole"] and document["health"]["permission"] == "view" for document in documents)
        assert all([job["id"] for job in document["jobs"]] == [first] for document in documents)
        before, began_s = board.num_updates, time.monotonic()
        second = controller.add().id
        documents = [await document_of(reader) for reader in readers]
        assert all(not document["whole"] for document in documents)
        assert all([job["id"] for job in document["jobs"]] == [second] for document in documents)
        took_s = time.monotonic() - began_s
        assert board.num_updates - before <= 1 + took_s / board_module.UPDATE_EVERY_S  # not once per reader
        # One that comes back with its version gets only what it missed.
        third = controller.add().id
        late = await document_of(broadcast.events(documents[0]["version"], Permission.VIEW))
        assert [job["id"] for job in late["jobs"]] == [third]
        for reader in readers:
            await reader.aclose()

    asyncio.run(watch())
