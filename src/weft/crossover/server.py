"""The lease server of a host: ``python -m weft.crossover.server --socket PATH``.

One thread, one loop, standard library only.  It may be killed at any time: jobs continue unshared and reconnect.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from weft.crossover import lease_kernel
from weft.crossover.desk import Desk, Peer
from weft.crossover.lease_messages import check_path
from weft.crossover.phases import TurnLimits
from weft.errors import LeaseError

_log = logging.getLogger("weft.crossover")

MAX_PEERS = 4096


class Server:
    """Owns the sockets; passes messages to the desk."""

    def __init__(self, path: Path, limits: TurnLimits | None = None, *, linger_s: float = float("inf")) -> None:
        self._path = path
        self._lock = _lock(path)
        self._selector = selectors.DefaultSelector()
        self._desk = Desk(limits or TurnLimits(), self._watch, time.monotonic)
        self._peers: set[Peer] = set()
        self._linger_s = linger_s
        self._empty_since_s = time.monotonic()
        self._is_closing = False
        self._listener = _listen(path)
        self._watch(self._listener, selectors.EVENT_READ, self._accept)
        self._wake, self._waker = socket.socketpair()
        self._watch(self._wake, selectors.EVENT_READ, lambda: None)

    def serve(self) -> None:
        """Run until :meth:`stop`, or until no client has been connected for a while."""
        try:
            while not self._is_closing and not self._is_deserted():
                for key, _ in self._selector.select(self._timeout_s()):
                    # An earlier callback may have closed it.
                    if self._selector.get_map().get(key.fd) is key:
                        self._call(key)
                self._desk.tick()
        finally:
            self._close()

    def _call(self, key: selectors.SelectorKey) -> None:
        """No single connection may take the server down for the others."""
        try:
            key.data()
        except Exception:
            _log.exception("closing a connection after an unexpected error")
            if key.fileobj is not self._listener:
                self._selector.unregister(key.fileobj)

    def stop(self) -> None:
        """Make :meth:`serve` return; may be called from a signal handler or another thread."""
        self._is_closing = True
        with contextlib.suppress(OSError):  # already closed
            self._waker.send(b"x")

    def _timeout_s(self) -> float | None:
        now_s = time.monotonic()
        wake_s = self._desk.wake_s()
        if not self._peers and self._linger_s != float("inf"):
            end_s = self._empty_since_s + self._linger_s
            wake_s = end_s if wake_s is None else min(wake_s, end_s)
        return None if wake_s is None else max(0.0, wake_s - now_s)

    def _is_deserted(self) -> bool:
        return not self._peers and time.monotonic() >= self._empty_since_s + self._linger_s

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                _log.error("no more workers can join: %s", error.strerror)
                self._watch(self._listener, 0, self._accept)  # until a peer leaves: this would loop without a pause
            return  # otherwise the client disconnected first
        pid, uid = lease_kernel.peer(connection)
        if uid != os.geteuid():
            _log.warning("refused process %d of user %d: this server belongs to user %d", pid, uid, os.geteuid())
            connection.close()
            return
        if len(self._peers) >= MAX_PEERS:
            _log.warning("refused process %d: %d processes are connected already", pid, MAX_PEERS)
            connection.close()
            return
        peer = Peer(connection, lease_kernel.peer_pidfd(connection, pid), pid)
        self._peers.add(peer)
        self._watch(connection, selectors.EVENT_READ, lambda: self._hear(peer))
        if peer.pidfd is not None:
            self._watch(peer.pidfd, selectors.EVENT_READ, lambda: self._drop(peer))

    def _hear(self, peer: Peer) -> None:
        for packet in peer.packets():
            try:
                is_valid = self._desk.hear(peer, packet)
            except Exception:
                _log.exception("cannot handle a message from process %d, which continues unshared", peer.pid)
                is_valid = False
            if not is_valid:
                peer.is_gone = True
        if peer.is_gone:
            self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._watch(peer.connection, 0, self._accept)
        if peer.pidfd is not None:
            self._watch(peer.pidfd, 0, self._accept)
        self._desk.leave(peer)
        peer.close()
        self._watch(self._listener, selectors.EVENT_READ, self._accept)
        self._empty_since_s = time.monotonic()

    def _watch(self, source: socket.socket | int, events: int, callback: Callable[[], None]) -> None:
        known = source in self._selector.get_map()
        if events and known:
            self._selector.modify(source, events, callback)
        elif events:
            self._selector.register(source, events, callback)
        elif known:
            self._selector.unregister(source)

    def _close(self) -> None:
        # Remove the socket while holding the lock: the next server to get the lock creates a new one.
        self._path.unlink(missing_ok=True)
        self._listener.close()
        for peer in self._peers:
            self._desk.leave(peer)
            peer.close()
        self._desk.close()
        self._selector.close()
        self._wake.close()
        self._waker.close()
        os.close(self._lock)


def _lock(path: Path) -> int:
    """Make sure that no other server uses this path."""
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LeaseError(f"a lease server already runs at {path}: use it, or give a different --socket") from None
    return descriptor


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # left by a server that was killed: we hold the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    old_mask = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(old_mask)
    listener.listen(64)
    listener.setblocking(False)
    return listener


def main(arguments: list[str] | None = None) -> int:
    defaults = TurnLimits()
    parser = argparse.ArgumentParser(prog="python -m weft.crossover.server", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="where clients find it (WEFT_LEASE)")
    parser.add_argument("--soft-s", type=float, default=defaults.soft_s, help="ask a holder back after this long")
    parser.add_argument("--hard-s", type=float, default=defaults.hard_s, help="overrule a holder after this long")
    parser.add_argument("--linger-s", type=float, default=float("inf"), help="exit after this long without clients")
    parser.add_argument("--detach", action="store_true", help="continue in the background once it listens")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        limits = TurnLimits(soft_s=options.soft_s, hard_s=options.hard_s)
        server = Server(options.socket.absolute(), limits, linger_s=options.linger_s)
    except LeaseError as error:
        _log.error("%s", error)
        return error.exit_code
    if options.detach:
        if os.fork():
            os._exit(0)  # the child has the socket and the lock
        os.setsid()
        os.chdir("/")
    with contextlib.suppress(OSError):  # only root may; handovers should not wait behind the jobs
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
