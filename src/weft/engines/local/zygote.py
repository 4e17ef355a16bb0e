"""The process that forks keepers, with torch imported and no threads.

It lives as long as the controller that started it: it exits when the control socket closes, and is killed when its
controller is; its keepers keep running.  The next controller starts a new one, from the sources at that time.
Processes that a killed keeper leaves behind become children of the zygote, which kills them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from weft.engines import pool_messages, process_tree
from weft.engines.local import keeper
from weft.engines.local.folders import Folders
from weft.engines.pool import ForkServer


class Zygote(ForkServer):
    """Serves one control socket until it closes."""

    def __init__(self, control: socket.socket, folders: Folders, *, warm: bool) -> None:
        super().__init__(control, warm=warm)
        self._folders = folders
        self._orders: dict[int, str] = {}  # pid of a keeper -> name of its order

    def serve(self) -> None:
        self._get_ready()
        while True:
            for key, _ in self._selector.select():
                if self._has_children_to_reap(key.fd):
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
            self._leave_in_fork()
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
