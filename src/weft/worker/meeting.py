"""How the workers find each other: a torch store at MASTER_ADDR:MASTER_PORT.

Worker 0 serves it, unless the launcher already does (as torchrun and ``weft run`` do).  Every worker signs in, so that
a timeout can name the missing ones.
"""

from __future__ import annotations

import datetime
import errno
import ipaddress
import os
import socket
import time

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from weft.errors import SessionError
from weft.process.native_threads import NativeThread
from weft.worker.environment import WorkerEnvironment

_MAX_NAMED = 8
_RETRY_S = 0.1


def meet(environment: WorkerEnvironment) -> Store:
    """Connect to the store and wait for all workers; the error on timeout names the missing ones."""
    place = _Place(environment)
    # Set by torchrun: the launcher serves the store.
    served_elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = place.open() if environment.rank == 0 and not served_elsewhere else place.enter(served_elsewhere)
    place.sign_in(store)
    return store


class _Place:
    def __init__(self, environment: WorkerEnvironment) -> None:
        self._rank = environment.rank
        self._world_size = environment.world_size
        self._host = os.environ["MASTER_ADDR"]
        self._port = environment.master_port
        self._limit_s = max(environment.start_timeout_s, 1.0)
        self._deadline_s = time.monotonic() + self._limit_s

    def open(self) -> Store:
        """Worker 0: listen."""
        try:
            return self._store(is_master=True, listener=loopback_listener(self._host, self._port))
        except (dist.DistError, OSError) as error:
            if "EADDRINUSE" not in str(error) and getattr(error, "errno", None) != errno.EADDRINUSE:
                raise self._problem(f"the port cannot be opened ({_first_line(error)})", "check MASTER_ADDR") from error
            raise self._problem(
                f"port {self._port} is in use by another program on this host, perhaps an earlier run",
                "stop it, or set MASTER_PORT to a free port for all workers (`weft run` chooses one on its own)",
            ) from error

    def enter(self, served_elsewhere: bool) -> Store:
        """All other workers: wait until the store's port is open, then connect."""
        server = "the program that started the workers" if served_elsewhere else "worker 0"
        self._wait_for_listener(server)
        entered: list[Store] = []
        refused: list[dist.DistError] = []

        def connect() -> None:
            try:
                entered.append(self._store(is_master=False))
            except dist.DistError as error:
                refused.append(error)

        # In a thread: if another program has the port, torch may wait forever for its answer.
        greeting = NativeThread(connect, name="weft-greeting")
        greeting.start()
        greeting.join(max(self._left_s(), 1.0))
        if entered:
            return entered[0]
        answer = f" ({_first_line(refused[0])})" if refused else ""
        raise self._problem(
            f"something listens there, but it does not answer like {server}{answer}",
            "another program may be using the port: set MASTER_PORT to a free port for all workers",
        )

    def sign_in(self, store: Store) -> None:
        """Wait until all workers have signed in."""
        keys = [f"weft/here/{other}" for other in range(self._world_size)]
        try:
            store.set(keys[self._rank], "1")
            store.wait(keys, datetime.timedelta(seconds=max(self._left_s(), 1.0)))
        except dist.DistError as error:
            missing = self._missing(store, keys)
            if not missing:
                raise self._problem(
                    f"the store was lost while waiting for the others ({_first_line(error)})",
                    "look for the first error in their output, starting with worker 0's",
                ) from error
            named = ", ".join(map(str, missing[:_MAX_NAMED])) + (", ..." if len(missing) > _MAX_NAMED else "")
            raise self._problem(
                f"waited {self._limit_s:.0f} s for worker(s) {named}: they were not started, or failed before they "
                "joined",
                f"look for the first error in their output, and start all {self._world_size}",
            ) from error

    def _missing(self, store: Store, keys: list[str]) -> list[int]:
        try:
            return [other for other, key in enumerate(keys) if not store.check([key])]
        except dist.DistError:
            return []

    def _wait_for_listener(self, server: str) -> None:
        """Retry here: torch's own retries fill the log with stack traces."""
        while True:
            try:
                socket.create_connection((self._host, self._port), timeout=max(self._left_s(), 1.0)).close()
                return
            except OSError as error:
                if self._left_s() <= 0.0:
                    raise self._problem(
                        f"after {self._limit_s:.0f} s, nothing listens there ({error.strerror or error})",
                        f"{server} should open the port: look for its first error, and check that MASTER_ADDR and "
                        "MASTER_PORT are the same for all workers and reachable from every host",
                    ) from error
                time.sleep(_RETRY_S)

    def _store(self, *, is_master: bool, listener: int | None = None) -> Store:
        return TCPStore(
            self._host,
            self._port,
            self._world_size,
            is_master,
            timeout=datetime.timedelta(seconds=self._limit_s),
            wait_for_workers=False,
            multi_tenant=is_master,
            master_listen_fd=listener,
        )

    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def _problem(self, what: str, advice: str) -> SessionError:
        return SessionError(
            f"worker {self._rank} of {self._world_size} cannot join the others at {self._host}:{self._port}: {what}; "
            f"{advice}"
        )


def loopback_listener(host: str, port: int) -> int | None:
    """A loopback-only socket for the store of a single-machine job: by default torch listens on all interfaces."""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
    if not is_loopback or port == 0:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024).detach()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
