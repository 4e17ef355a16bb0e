"""A client's connection to the lease server: the socket, the shared page, and how to get them."""

from __future__ import annotations

import contextlib
import os
import select
import socket

from weft.crossover import lease_kernel
from weft.crossover.lease_messages import MAX_PACKET_BYTES, Join, Saying, unpacked
from weft.crossover.shared_page import Page
from weft.errors import LeaseError

_ANSWER_WITHIN_S = 1.0


class LeaseConnection:
    """One membership; a server that comes back means a new one."""

    def __init__(self, connection: socket.socket, page: Page, hard_s: float, handover_s: float) -> None:
        self._connection = connection
        self.page = page
        self.words = page.words
        self.hard_s = hard_s
        self.handover_s = handover_s
        self.token = 0
        """Of the last turn; an older grant than that is none."""
        self.is_overdue = False
        """Whether the server owes an answer for so long that the job goes on without."""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def say(self, saying: Saying) -> bool:
        """Whether the server will get it."""
        try:
            self._connection.send(saying.packed())
        except OSError:
            return False
        return True

    def wait_for_bell(self, timeout_s: float) -> bool:
        """Until the server has something to say, or so long; ``False`` if it is gone."""
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
        """Until the server is gone, or somebody writes to ``waker``.  For another thread than the one that computes."""
        ends = select.poll()
        ends.register(self._connection, select.POLLRDHUP)
        ends.register(waker, select.POLLIN)
        ends.poll()

    def hang_up(self) -> None:
        """Leave.  Not closed yet: the thread that computes may be about to wait on it, and shall hear of the end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close this process's end without a word; after a fork the parent goes on using the connection."""
        self._connection.close()


def connect(path: str, join: Join) -> LeaseConnection:
    """Become a member; raises LeaseError if there is no server that would have us."""
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
            raise LeaseError(f"the server at {path} does not let job {join.job} in: is it another user's?")
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
