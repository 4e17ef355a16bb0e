"""One connection at the server."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from weft.crossover.lease_messages import BELL, MAX_PACKET_BYTES, Join, packed
from weft.crossover.shared_page import Page, make_page


class Peer:
    """A process of the same user: a worker once it has joined, else somebody with a question."""

    page: Page

    def __init__(self, connection: socket.socket, pidfd: int | None, pid: int) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.pidfd = pidfd
        self.pid = pid
        self.join: Join | None = None
        self.is_gone = False

    def welcome(self, join: Join, limits: dict[str, float]) -> None:
        """Make it a member: it gets its page."""
        descriptor = make_page()
        try:
            self.page = Page(descriptor)
            self.join = join
            with self._must_get_through():
                socket.send_fds(self.connection, [packed({"kind": "welcome", **limits})], [descriptor])
        finally:
            os.close(descriptor)

    def ring(self) -> None:
        """Have it look at its page."""
        self.send(BELL)

    def send(self, packet: bytes) -> None:
        """A packet that does not get through is the end of the peer: its socket holds thousands of them."""
        with self._must_get_through():
            self.connection.send(packet)

    def packets(self) -> Iterator[bytes]:
        """All it has said since."""
        while not self.is_gone:
            try:
                packet = self.connection.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self.is_gone = True
                return
            yield packet

    def close(self) -> None:
        self.connection.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self.join is not None:
            self.page.close()

    @contextlib.contextmanager
    def _must_get_through(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.is_gone = True
