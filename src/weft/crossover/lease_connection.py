"""A client's connection to the lease server: the socket and the shared page."""

from __future__ import annotations

import contextlib
import os
import select
import socket

from weft.crossover import lease_kernel
from weft.crossover.lease_messages import MAX_PACKET_BYTES, Join, TurnMessage, unpacked
from weft.crossover.shared_page import Page
from weft.errors import LeaseError

_ANSWER_WITHIN_S = 1.0


class LeaseConnection:
    """One membership; reconnecting creates a new one."""

    def __init__(self, connection: socket.socket, page: Page, hard_s: float, handover_s: float) -> None:
        self._connection = connection
        self.page = page
        self.words = page.words
        self.hard_s = hard_s
        self.handover_s = handover_s
        self.token = 0
        """Of the last turn; grants that are not newer are ignored."""
        self.is_overdue = False
        """Whether the server has not answered for so long that the job continues without it."""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: TurnMessage) -> bool:
        """Whether it could be sent."""
        try:
            self._connection.send(message.packed())
        except OSError:
            return False
        return True

    def wait_for_bell(self, timeout_s: float) -> bool:
        """Wait for a bell; ``False`` if the server is gone."""
        try:
            if self._poll.poll(timeout_s * 1000):
                while self._connection.recv(MAX_PACKET_BYTES):
                    pass
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def wait_for_end(self, waker: int) -> None:
        """Wait until the server is gone or ``waker`` is readable.  Not for the computing thread."""
        ends = select.poll()
        ends.register(self._connection, select.POLLRDHUP)
        ends.register(waker, select.POLLIN)
        ends.poll()

    def hang_up(self) -> None:
        """Leave, without closing: the computing thread may be about to wait on it, and must notice the end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close only this process's descriptor; after a fork, the parent keeps using the connection."""
        self._connection.close()


def connect(path: str, join: Join) -> LeaseConnection:
    """Become a member; raises LeaseError if no server accepts us."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_ANSWER_WITHIN_S)
        connection.connect(path)
        lease_kernel.accept_barriers()
        connection.send(join.packed())
        packet, descriptors, _, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, 1)
        answer = unpacked(packet)
        if not isinstance(answer, dict) or answer.get("kind") != "welcome" or not descriptors:
            for descriptor in descriptors:
                os.close(descriptor)
            raise LeaseError(f"the server at {path} refused job {join.job}: does it belong to another user?")
        try:
            page = Page(descriptors[0])
        finally:
            os.close(descriptors[0])
        connection.setblocking(False)
        return LeaseConnection(connection, page, float(answer["hard_s"]), float(answer["handover_s"]))
    except OSError as error:
        connection.close()
        raise LeaseError(
            f"no lease server at {path} ({error}): job {join.job} runs unshared until there is one"
        ) from error
    except LeaseError:
        connection.close()
        raise
