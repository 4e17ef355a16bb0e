"""The place where workers meet: a torch store that is there before any of them looks for it.

Usually rank 0 opens it. Whoever comes earlier is refused and tries again half a second later, which is as long as
all the rest of a warm start. So the supervisor listens itself, from before the first worker is started; early
workers wait in its queue. A process of its own takes the socket over and serves the store: the supervisor knows
nothing of torch. Scripts find it by torchrun's rules (``TORCHELASTIC_USE_AGENT_STORE``).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from types import TracebackType

from weft.engines.pool import INHERITED
from weft.engines.pool_client import PoolClient, StartedWorker
from weft.engines.worker_launch import SERVES_WORKERS, Script, Worker

SERVED_ELSEWHERE = {"TORCHELASTIC_USE_AGENT_STORE": "True"}

MODULE = "weft.engines.rendezvous"


class Rendezvous:
    """A store for one attempt; ``port`` is open from the start."""

    def __init__(self, pool: PoolClient) -> None:
        self.environment = SERVED_ELSEWHERE
        self._pool = pool
        self._process: StartedWorker | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]

    def serve(self, environment: Mapping[str, str], cores: tuple[int, ...]) -> None:
        """Start the serving process. Better after the workers: they need it only when they have joined the queue."""
        script = Script(MODULE, (str(self.port),), is_module=True)
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

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve() -> None:
    """Serve the store on the socket we were given, until we are killed."""
    from torch._C._distributed_c10d import TCPStore

    port, listener = int(sys.argv[1]), int(os.environ[INHERITED])
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener)
    while store is not None:
        signal.pause()


if __name__ == "__main__":
    serve()
