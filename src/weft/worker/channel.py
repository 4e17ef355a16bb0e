"""The job channel: reports go out, stop requests come in, and training never waits for either.

A Unix datagram socket.  Each report is one JSON datagram, dropped if the controller is slow, gone, or not up yet.  The
controller answers to the address a report came from.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from weft.core.plain_json import parse_object
from weft.core.step_report import MAX_MESSAGE_BYTES

_RECONNECT_EVERY_S = 1.0
# Per call, so that an endless sender cannot hold up training.
_MAX_MESSAGES = 64


class Channel:
    """This worker's end."""

    def __init__(self, path: str, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._socket: socket.socket | None = None
        self._next_try_s = float("-inf")

    def send(self, message: dict[str, Any]) -> bool:
        """Whether the message was sent rather than dropped."""
        connection = self._connected()
        if connection is not None:
            try:
                connection.send(json.dumps(message).encode())
                return True
            except BlockingIOError:
                pass  # the controller is not keeping up; the next report supersedes this one
            except OSError:
                self.close()
        return False

    def receive(self) -> list[dict[str, Any]]:
        """Messages since the last call; anything that is not one is ignored."""
        connection = self._connected()
        messages: list[dict[str, Any]] = []
        if connection is None:
            return messages
        for _ in range(_MAX_MESSAGES):
            try:
                data = connection.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                break
            message = parse_object(data)
            if message is not None:
                messages.append(message)
        return messages

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket | None:
        if self._socket is None and self._now() >= self._next_try_s:
            self._next_try_s = self._now() + _RECONNECT_EVERY_S
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            try:
                connection.bind("")  # the kernel picks an address, which the controller can answer
                connection.connect(self._path)
            except OSError:
                connection.close()
            else:
                self._socket = connection
        return self._socket
