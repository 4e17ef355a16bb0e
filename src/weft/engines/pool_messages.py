"""Whole JSON messages, with open files, over a stream socket between the supervisor and its pool."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("!I")
MAX_FILES = 8


def send(channel: socket.socket, message: dict[str, Any], files: Sequence[int] = ()) -> None:
    body = json.dumps(message).encode()
    # Send the files with the header alone: the kernel delivers them with the first byte of the message they were in.
    socket.send_fds(channel, [HEADER.pack(len(body))], list(files))
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message, or None if the other side is gone."""
    try:
        header, files, _, _ = socket.recv_fds(channel, HEADER.size, MAX_FILES)
        if len(header) < HEADER.size:
            return None
        body = _exactly(channel, HEADER.unpack(header)[0])
    except ConnectionError:
        return None
    return None if body is None else (json.loads(body), list(files))


def _exactly(channel: socket.socket, num_bytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < num_bytes:
        part = channel.recv(num_bytes - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
