"""A port for the workers' rendezvous that nobody else can take in the meantime."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import TracebackType


class ReservedPort:
    """A port, bound but not listening, so that the kernel gives it to nobody who did not ask for it.

    Rank 0's store binds the same number: Linux allows that to sockets that both set SO_REUSEADDR as long as
    none of them listens yet. Asking for a free port and closing it again would leave a gap in which another job's
    worker can be given the same one.

    >>> with ReservedPort() as reserved:
    ...     reserved.port > 1023
    True
    """

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.port: int = self._socket.getsockname()[1]

    def serve(self, environment: Mapping[str, str], cores: tuple[int, ...]) -> None:
        """Rank 0 will."""

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
