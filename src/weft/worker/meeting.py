"""The place where workers meet: a torch store at MASTER_ADDR:MASTER_PORT.

Worker 0 opens it, unless whoever started the workers already has (torchrun and ``weft run`` do).  Everybody signs in,
so that whoever is missing when time is up can be named.
"""

from __future__ import annotations

import datetime
import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from weft.errors import SessionError
from weft.worker.environment import WorkerEnvironment

_NAMED_AT_MOST = 8
_RETRY_S = 0.1


def meet(environment: WorkerEnvironment) -> Store:
    """The store that all workers have reached; names those that have not."""
    place = _Place(
        rank=environment.rank,
        world_size=environment.world_size,
        host=os.environ["MASTER_ADDR"],
        port=environment.master_port,
        limit_s=environment.start_timeout_s,
    )
    # torchrun's way of saying that the store is served by the parent of all workers.
    served_elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = place.open() if environment.rank == 0 and not served_elsewhere else place.enter(served_elsewhere)
    place.sign_in(store)
    return store


class _Place:
    def __init__(self, *, rank: int, world_size: int, host: str, port: int, limit_s: float) -> None:
        self._rank = rank
        self._world_size = world_size
        self._host = host
        self._port = port
        self._limit_s = max(limit_s, 1.0)
        self._deadline_s = time.monotonic() + self._limit_s

    def open(self) -> Store:
        """Worker 0: listen."""
        try:
            return self._store(is_master=True, listener=loopback_listener(self._host, self._port))
        except (dist.DistError, OSError) as error:
            if "EADDRINUSE" not in str(error) and getattr(error, "errno", None) != errno.EADDRINUSE:
                raise self._problem(f"worker 0 cannot open it ({_first_line(error)})", "check MASTER_ADDR") from error
            raise self._problem(
                f"port {self._port} is taken by another program on this host, perhaps by an earlier run that has not "
                "ended",
                "end that, or set MASTER_PORT to a free port for all workers (`weft run` chooses one by itself)",
            ) from error

    def enter(self, served_elsewhere: bool) -> Store:
        """Everybody else: wait until somebody listens, then greet."""
        host = "the program that started the workers" if served_elsewhere else "worker 0"
        self._wait_for_listener(host)
        entered: list[Store] = []
        refused: list[dist.DistError] = []
        # A thread: what listens there may be anything, and the greeting would wait for its answer for ever.
        greeting = threading.Thread(
            target=_note(lambda: self._store(is_master=False), entered, refused), name="weft-greeting", daemon=True
        )
        greeting.start()
        greeting.join(max(self._left_s(), 1.0))
        if entered:
            return entered[0]
        answer = f" ({_first_line(refused[0])})" if refused else ""
        raise self._problem(
            f"something listens there but does not answer as {host} would{answer}",
            "another program may have the port: set MASTER_PORT to a free port for all workers",
        )

    def sign_in(self, store: Store) -> None:
        """On return everybody is here."""
        everybody = [f"weft/here/{other}" for other in range(self._world_size)]
        try:
            store.set(everybody[self._rank], "1")
            store.wait(everybody, datetime.timedelta(seconds=max(self._left_s(), 1.0)))
        except dist.DistError as error:
            missing = self._missing(store, everybody)
            if not missing:
                raise self._problem(
                    f"the store was lost while waiting for the others ({_first_line(error)})",
                    "look for the first error in their output, worker 0's before all",
                ) from error
            named = ", ".join(map(str, missing[:_NAMED_AT_MOST])) + (", ..." if len(missing) > _NAMED_AT_MOST else "")
            raise self._problem(
                f"waited {self._limit_s:.0f} s for worker(s) {named}: they were not started, or failed before they "
                "joined",
                f"look for the first error in their output, and start all {self._world_size}",
            ) from error

    def _missing(self, store: Store, everybody: list[str]) -> list[int]:
        try:
            return [other for other, key in enumerate(everybody) if not store.check([key])]
        except dist.DistError:
            return []

    def _wait_for_listener(self, host: str) -> None:
        """Ask in our own words: torch's retries fill the log with its stack."""
        while True:
            try:
                socket.create_connection((self._host, self._port), timeout=max(self._left_s(), 1.0)).close()
                return
            except OSError as error:
                if self._left_s() <= 0.0:
                    raise self._problem(
                        f"waited {self._limit_s:.0f} s and nobody listens there ({error.strerror or error})",
                        f"{host} opens it: look for its first error, and check that MASTER_ADDR and MASTER_PORT are "
                        "the same for all workers and reachable from every host",
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
            f"worker {self._rank} of {self._world_size} meets the others at {self._host}:{self._port}: {what}; {advice}"
        )


def loopback_listener(host: str, port: int) -> int | None:
    """A socket for a store of this machine's own: by itself torch listens on all of its networks."""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
    if not is_loopback or port == 0:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024).detach()


def _note(make: Callable[[], Store], made: list[Store], failed: list[dist.DistError]) -> Callable[[], None]:
    def act() -> None:
        try:
            made.append(make())
        except dist.DistError as error:
            failed.append(error)

    return act


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
