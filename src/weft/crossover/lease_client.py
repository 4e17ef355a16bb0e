"""The gate of a job that shares its device: a client of the lease server.

While no other job waits, acquiring and releasing the device only access shared memory, without a system call; see
[Note: two writers, no locks] in ``shared_page``.  Without a server, or with one that does not answer, the job computes
unshared.

[Note: the second thread]
It sleeps until the server dies, then tries to reconnect, so that the computing thread does not have to.  A forked child
has neither this thread nor a connection: its gate is open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Mapping

from weft.core.worker_environment import JOB_ID, LEASE, LEASE_DEVICE, LEASE_KEY, LEASE_LEAD, LEASE_ROLE, LEASE_WEIGHT
from weft.crossover.lease_connection import LeaseConnection, connect
from weft.crossover.lease_messages import Join, LeaseVerb, TurnMessage
from weft.crossover.phases import GapWatch, Role, TurnLimits
from weft.crossover.shared_page import (
    ASKED_BACK,
    COMPUTING,
    IDLE,
    NUM_EQUALS,
    NUM_WAITING,
    PAUSED,
    STATE,
    TOKEN,
    TURN,
    WAITING,
)
from weft.errors import LeaseError, UsageError
from weft.process.gate import OPEN, Gate

_log = logging.getLogger("weft.crossover")

RECONNECT_EVERY_S = 0.1
LOOK_EVERY_S = 0.5
"""Before the first connection: under a controller, most jobs never share."""
SERVER_SLACK_S = 0.5


class LeaseGate:
    """One worker's gate, used by one thread.

    Every call may return without the device if the server is gone, stuck, or has overruled us.
    """

    def __init__(self, path: str, join: Join, on_contention: Callable[[], None] = lambda: None) -> None:
        """``on_contention`` is called once, by the computing thread, when another job first wants the device."""
        self._path = path
        self._join = join
        self._on_contention = on_contention
        self._was_contended = False
        self._link: LeaseConnection | None = None
        self._ended: LeaseConnection | None = None
        self._turn = 0
        self._is_computing = False
        self._gap_since_s: float | None = None
        self._gaps = GapWatch(TurnLimits().handover_s)
        self._is_closed = False
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._is_warned = False
        self._connect()
        self._thread = threading.Thread(target=self._stay_connected, name="weft-lease", daemon=True)
        self._thread.start()
        _gates.add(self)

    @property
    def contended(self) -> bool:
        link = self._link
        return link is not None and link.words[NUM_EQUALS] > 0

    @property
    def would_wait(self) -> bool:
        link = self._link
        return link is not None and (not link.words[TOKEN] or link.words[NUM_WAITING] > 0)

    @property
    def is_shared(self) -> bool:
        """Whether a server is connected."""
        return self._link is not None

    def acquire(self) -> None:
        link = self._link
        self._is_computing = True
        if self._gap_since_s is not None:
            self._gaps.saw(time.monotonic() - self._gap_since_s)
            self._gap_since_s = None
        if link is None:
            return
        words = link.words
        words[STATE] = COMPUTING  # before reading the token
        token = words[TOKEN]
        if token and not words[ASKED_BACK]:
            link.token = token
            link.is_overdue = False
        elif not (link.is_overdue and not token):
            self._wait_for_turn(link, token)

    def release(self, *, briefly: bool = False) -> None:
        if not self._is_computing or self._gap_since_s is not None:
            return
        self._turn += 1
        self._gap_since_s = time.monotonic()
        link = self._link
        if link is None:
            self._is_computing = False
            return
        words = link.words
        words[TURN] = self._turn
        if words[NUM_WAITING]:
            self._note_contention()
        is_for_fillers = words[NUM_WAITING] > 0 and not words[NUM_EQUALS]
        if (self._gaps.is_too_short or (briefly and is_for_fillers)) and not words[ASKED_BACK]:
            words[STATE] = PAUSED  # we will want the device back before another job could use it
            return
        self._is_computing = False
        words[STATE] = IDLE  # before reading who waits
        if words[NUM_WAITING]:
            token = words[TOKEN]
            if token:
                link.send(TurnMessage(LeaseVerb.RELEASE, token, self._turn))

    def close(self) -> None:
        """Leave the server; the gate is open from now on."""
        self._is_closed = True
        link, self._link = self._link, None
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")
        if self._thread is not threading.current_thread():
            self._thread.join()
        if link is not None:
            link.hang_up()
            link.forget()
        if self._ended is not None:
            self._ended.forget()
        for end in (self._wake, self._waker):
            with contextlib.suppress(OSError):  # closed twice
                os.close(end)

    def _note_contention(self) -> None:
        if not self._was_contended:
            self._was_contended = True
            self._on_contention()

    def _wait_for_turn(self, link: LeaseConnection, token: int) -> None:
        words = link.words
        if words[NUM_WAITING] or words[NUM_EQUALS]:
            self._note_contention()
        words[STATE] = WAITING
        link.token = max(link.token, token)  # only a newer one is a grant
        try:
            if link.send(TurnMessage(LeaseVerb.YIELD if token else LeaseVerb.ASK, token, self._turn)):
                self._sleep_until_ours(link)
        except BaseException:
            self._is_computing = False
            words[STATE] = IDLE  # so that a late grant can be taken back
            raise
        words[STATE] = COMPUTING

    def _sleep_until_ours(self, link: LeaseConnection) -> None:
        # A working server overrules each holder ahead of us after the hard limit.
        patience_s = link.hard_s * (1 + link.words[NUM_WAITING]) + SERVER_SLACK_S
        give_up_s = time.monotonic() + patience_s
        while not self._claim(link):
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                link.is_overdue = True
                _log.warning("the lease server has not answered for %.1f s: continuing unshared", patience_s)
                return
            if not link.wait_for_bell(left_s):
                return

    def _claim(self, link: LeaseConnection) -> bool:
        token = link.words[TOKEN]
        if token <= link.token:
            return False
        link.words[STATE] = COMPUTING
        if link.words[TOKEN] != token:  # overruled before we woke
            link.words[STATE] = WAITING
            return False
        link.token = token
        link.is_overdue = False
        return True

    def _connect(self) -> None:
        try:
            link = connect(self._path, self._join)
        except LeaseError as error:
            if not self._is_warned and os.path.exists(self._path):
                _log.warning("%s", error)
                self._is_warned = True
            return
        link.words[TURN] = self._turn
        self._gaps = GapWatch(link.handover_s)
        self._link = link
        if self._ended is not None:  # long enough ago that no thread still waits on it
            self._ended.forget()
            self._ended = None
        self._is_warned = False

    def _stay_connected(self) -> None:
        while not self._is_closed:
            link = self._link
            if link is None:
                self._pause()
                # Checking the path costs less than trying to connect.
                if not self._is_closed and os.path.exists(self._path):
                    self._connect()
                continue
            link.wait_for_end(self._wake)
            if not self._is_closed:
                self._link = None
                link.hang_up()
                self._ended = link
                _log.warning("the lease server at %s is gone: continuing unshared", self._path)

    def _pause(self) -> None:
        select.select([self._wake], [], [], LOOK_EVERY_S if self._ended is None else RECONNECT_EVERY_S)

    def _after_fork(self) -> None:
        self._is_closed = True
        link, self._link = self._link, None
        if link is not None:
            link.forget()


_gates: weakref.WeakSet[LeaseGate] = weakref.WeakSet()


def _leave_gates_to_the_parent() -> None:
    for gate in list(_gates):
        gate._after_fork()


os.register_at_fork(after_in_child=_leave_gates_to_the_parent)


def gate_from_environment(environment: Mapping[str, str], on_contention: Callable[[], None] = lambda: None) -> Gate:
    """This worker's gate: a ``LeaseGate`` if WEFT_LEASE names a server, else the open one.

    A server that is not running is not an error: the job runs unshared and joins when the server starts.

    >>> gate_from_environment({}) is OPEN
    True
    """
    path = environment.get(LEASE)
    return LeaseGate(path, join_from_environment(environment), on_contention) if path else OPEN


def _device(listed: str, local_rank: str) -> str:
    """``listed`` is one device for all workers or a list with one for each; if empty, the local rank is used.

    >>> _device("4,5", "1"), _device("4", "1"), _device("", "1")
    ('5', '4', '1')
    """
    devices = listed.split(",") if listed else [local_rank]
    if len(devices) > 1 and local_rank.isdigit() and int(local_rank) < len(devices):
        return devices[int(local_rank)]
    return devices[0]


def join_from_environment(environment: Mapping[str, str]) -> Join:
    device = _device(environment.get(LEASE_DEVICE, ""), environment.get("LOCAL_RANK", "0"))
    role_name = environment.get(LEASE_ROLE, Role.FAIR.value)
    try:
        role = Role(role_name)
        weight = float(environment.get(LEASE_WEIGHT, "1"))
    except ValueError as error:
        raise UsageError(
            f"{LEASE_ROLE}={role_name} with {LEASE_WEIGHT}={environment.get(LEASE_WEIGHT, '1')}: {error}; "
            f"expected one of {', '.join(role.value for role in Role)}, and a positive number"
        ) from None
    if not 0 < weight < float("inf"):
        raise UsageError(f"{LEASE_WEIGHT} is {weight}: expected a positive number")
    return Join(
        job=environment.get(JOB_ID) or f"process {os.getpid()}",
        device=device,
        role=role,
        weight=weight,
        is_first=environment.get("RANK", "0") == "0",
        lead=environment.get(LEASE_LEAD, ""),
        key=environment.get(LEASE_KEY, ""),
    )
