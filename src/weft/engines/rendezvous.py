"""Where the workers of one attempt find each other: a torch store that exists before any of them looks for it.

Usually rank 0 opens the store.  A worker that connects before that is refused and retries half a second later, which is
as long as the rest of a warm start.  So the supervisor starts listening before it starts the first worker, and early
workers wait in the accept queue.  A separate process takes over the socket and serves the store, because the supervisor
does not import torch.  Scripts find it by torchrun's rules (``TORCHELASTIC_USE_AGENT_STORE``).

Only a process with torch loaded can do this.  For cold workers, rank 0 opens the store on a :class:`ReservedPort`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Self

from weft.engines.pool import INHERITED
from weft.engines.pool_client import PoolClient, StartedWorker
from weft.engines.worker_launch import SERVES_WORKERS, GangPart, Script, Worker

SERVED_ELSEWHERE = {"TORCHELASTIC_USE_AGENT_STORE": "True"}

MODULE = "weft.engines.rendezvous"


class MeetingPlace:
    """Where the workers of an attempt find each other: a port, and what they are told about it."""

    def __init__(self, port: int, environment: Mapping[str, str]) -> None:
        self.port = port
        self.environment = environment

    def serve(self, environment: Mapping[str, str], cores: tuple[int, ...]) -> None:
        """Start serving, if that is up to us.  Call it after starting the workers: they do not need it until they
        connect."""

    def close(self) -> None:
        """Release it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Rendezvous(MeetingPlace):
    """A store for one attempt; ``port`` is open from the start, on ``address`` alone."""

    def __init__(self, pool: PoolClient, address: str = "127.0.0.1") -> None:
        self._pool = pool
        self._process: StartedWorker | None = None
        self._address = address
        self._listener = socket.create_server((address, 0), backlog=1024)
        super().__init__(self._listener.getsockname()[1], SERVED_ELSEWHERE)

    def serve(self, environment: Mapping[str, str], cores: tuple[int, ...]) -> None:
        script = Script(MODULE, (str(self.port), self._address), is_module=True)
        store = Worker(SERVES_WORKERS, script=script, environment=dict(environment), cores=cores)
        nowhere = os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)
        self._process = self._pool.start(store, nowhere, inherited=[self._listener.fileno()])
        self._listener.close()

    def close(self) -> None:
        self._listener.close()
        if self._process is not None:
            os.close(self._process.report)
            if self._process.exit_code is None:
                self._pool.signal(self._process, signal.SIGKILL)


class ReservedPort(MeetingPlace):
    """A port that is bound but not listening, so that the kernel assigns it to no other socket; rank 0 serves there.

    Rank 0's store binds the same number: Linux allows that if both sockets set SO_REUSEADDR and neither listens yet.
    If we closed the port first, another job's worker could get it before rank 0 does.

    >>> with ReservedPort() as reserved:
    ...     reserved.port > 1023
    True
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        super().__init__(self._socket.getsockname()[1], {})

    def close(self) -> None:
        self._socket.close()


def opened_elsewhere(part: GangPart) -> MeetingPlace:
    """A meeting place that another node has opened, and serves."""
    return MeetingPlace(part.master_port, SERVED_ELSEWHERE if part.store_is_served else {})


def serve() -> None:
    """Serve the store on the inherited socket until killed."""
    from torch._C._distributed_c10d import TCPStore

    port, address, listener = int(sys.argv[1]), sys.argv[2], int(os.environ[INHERITED])
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener)
    while store is not None:
        signal.pause()


if __name__ == "__main__":
    serve()
