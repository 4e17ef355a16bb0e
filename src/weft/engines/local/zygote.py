"""The process that forks keepers, with torch imported and no threads.

It lives as long as the controller that started it: it exits when the control socket closes, and is killed when its
controller is; its keepers keep running.  The next controller starts a new one, from the sources at that time.
Processes that a killed keeper leaves behind become children of the zygote, which kills them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from weft.engines import pool_messages, process_tree
from weft.engines.local import keeper
from weft.engines.local.folders import Folders
from weft.engines.pool import PRELOADED, preload


class Zygote:
    """Serves one control socket until it closes."""

    def __init__(self, control: socket.socket, folders: Folders, *, warm: bool) -> None:
        self._control = control
        self._folders = folders
        self._warm = warm
        self._orders: dict[int, str] = {}  # pid of a keeper -> name of its order
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        process_tree.adopt_orphans()
        reason = preload(PRELOADED) if self._warm else ""
        self._warm = self._warm and not reason
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, the interpreter writes to the pipe
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._tell(kind="ready", reason=reason)
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                else:
                    received = pool_messages.receive(self._control)
                    if received is None:
                        return
                    self._fork(received[0]["order"])

    def _fork(self, name: str) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(kind="gone", order=name, reason=f"its keeper could not be forked: {error.strerror}")
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._control.close()
            os.close(self._wake)
            os.close(self._waker)
            keeper.run(self._folders, self._folders.orders / name, warm=self._warm)
        self._orders[pid] = name

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            name = self._orders.pop(pid, None)
            if name is not None:
                code = os.waitstatus_to_exitcode(status)
                self._tell(kind="gone", order=name, reason=f"its keeper exited with code {code}")
        for orphan in process_tree.children(os.getpid()):
            if orphan not in self._orders:
                for pid in (*process_tree.descendants(orphan), orphan):
                    process_tree.kill(pid, signal.SIGKILL)

    def _tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):  # the controller is gone; select() will report it
            pool_messages.send(self._control, event)


def main() -> None:
    home, mode, owner, control = sys.argv[1:]
    # It exits when the socket closes; but while stopped or importing it would not notice, and forks of its owner may
    # hold the socket open.
    process_tree.die_with_parent(int(owner))
    process_tree.rename("weft-zygote")
    with socket.socket(fileno=int(control)) as channel:
        Zygote(channel, Folders(Path(home)), warm=mode == "warm").serve()


if __name__ == "__main__":
    main()
