"""Sends turn orders from the lead to its followers: TCP, one way, one JSON object per line.

A follower's first line is the group's key; with a wrong one it gets nothing.  Without a key, the lead listens only on
the loopback address.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import json
import logging
import selectors
import socket
from collections.abc import Callable

from weft.core.plain_json import parse_object
from weft.crossover.order import TurnOrder, from_json, to_json
from weft.errors import LeaseError

_log = logging.getLogger("weft.crossover")

MAX_LINE_BYTES = 1 << 16
MAX_FOLLOWERS = 1024
MAX_UNKNOWN_FOLLOWERS = 32
"""Followers that have not sent the key; beyond this, the oldest is dropped."""
RECONNECT_EVERY_S = 0.25

Watch = Callable[[socket.socket, int, Callable[[], None]], None]
"""(socket, events, callback): call back whenever the socket is ready; events = 0 to stop."""


def address_from(text: str) -> tuple[str, int]:
    """Host and port of the lead.

    >>> address_from("10.0.0.1:4100")
    ('10.0.0.1', 4100)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise LeaseError(f"the lead of the group is {text!r}: expected host:port, for example 10.0.0.1:4100")
    return host.strip("[]"), int(port)


def listen_at(host: str, port: int = 0) -> socket.socket:
    """A listening socket; without a port, the kernel chooses one."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Lead:
    """Publishes the order.  Followers that do not keep up are dropped; they reconnect and get the newest."""

    def __init__(self, address: str, key: str, watch: Watch, listener: socket.socket | None = None) -> None:
        """``listener``: bound to this address already, if so."""
        host, port = address_from(address)
        if not key and not is_loopback(host):
            raise LeaseError(
                f"the turn order would be sent to anyone who can reach {address}: set WEFT_LEASE_KEY to a secret that "
                "all jobs of the group share"
            )
        self._key = key
        self._watch = watch
        self._listener = listener or listen_at(host, port)
        self._listener.setblocking(False)
        self._followers: dict[socket.socket, bool] = {}
        """Whether each has sent the key."""
        self._latest: bytes | None = None
        watch(self._listener, selectors.EVENT_READ, self._accept)

    def publish(self, order: TurnOrder) -> None:
        """Send the order to all followers, and to later ones when they connect."""
        self._latest = json.dumps(to_json(order)).encode() + b"\n"
        for follower in [follower for follower, is_known in self._followers.items() if is_known]:
            self._send(follower)

    def close(self) -> None:
        for follower in list(self._followers):
            self._drop(follower)
        self._watch(self._listener, 0, self._accept)
        self._listener.close()

    def _accept(self) -> None:
        try:
            follower, _ = self._listener.accept()
        except OSError:
            return  # it disconnected first
        if len(self._followers) >= MAX_FOLLOWERS:
            follower.close()
            return
        follower.setblocking(False)
        follower.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        unknown = [other for other, is_known in self._followers.items() if not is_known]
        if len(unknown) >= MAX_UNKNOWN_FOLLOWERS:
            self._drop(unknown[0])
        self._followers[follower] = False
        self._watch(follower, selectors.EVENT_READ, lambda: self._hear(follower))

    def _hear(self, follower: socket.socket) -> None:
        try:
            line = follower.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            line = b""
        if not line or self._followers[follower] or not hmac.compare_digest(line.rstrip(b"\n"), self._key.encode()):
            self._drop(follower)
            return
        self._followers[follower] = True
        self._send(follower)

    def _send(self, follower: socket.socket) -> None:
        if self._latest is None:
            return
        try:
            sent = follower.send(self._latest)
        except OSError:
            sent = 0
        if sent < len(self._latest):
            self._drop(follower)

    def _drop(self, follower: socket.socket) -> None:
        del self._followers[follower]
        self._watch(follower, 0, self._accept)
        follower.close()


class Follower:
    """Receives the lead's orders; reconnects if the connection is lost."""

    def __init__(self, address: str, key: str, watch: Watch, on_order: Callable[[TurnOrder | None], None]) -> None:
        self._address = address_from(address)
        self._key = key
        self._watch = watch
        self._on_order = on_order
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._retry_s = 0.0

    @property
    def due_s(self) -> float | None:
        """When to call :meth:`tick`; ``None`` while connected."""
        return self._retry_s if self._socket is None else None

    def tick(self, now_s: float) -> None:
        """Connect if it is time."""
        if self._socket is None and now_s >= self._retry_s:
            self._retry_s = now_s + RECONNECT_EVERY_S
            self._connect()

    def close(self) -> None:
        if self._socket is not None:
            self._watch(self._socket, 0, self.close)
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            number = connection.connect_ex((host, port))
        except (OSError, ValueError):  # a name that does not resolve or is invalid
            number = errno.EHOSTUNREACH
        if number not in (0, errno.EINPROGRESS):
            connection.close()
            return
        self._socket, self._buffer = connection, b""
        self._watch(connection, selectors.EVENT_WRITE, lambda: self._greet(connection))

    def _greet(self, connection: socket.socket) -> None:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close()
            return
        connection.send(self._key.encode() + b"\n")
        self._watch(connection, selectors.EVENT_READ, lambda: self._hear(connection))

    def _hear(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._buffer) > MAX_LINE_BYTES:
            _log.warning("lost the lead of the group at %s:%d: turns follow a fixed rotation", *self._address)
            self.close()
            self._on_order(None)
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            order = from_json(parse_object(line))
            if order is not None:
                self._on_order(order)
