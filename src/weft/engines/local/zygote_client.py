"""The engine's end of a zygote: have it fork keepers, hear of those that ended, start another when it is lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.engines import pool_messages
from weft.engines.local.folders import Folders
from weft.engines.local.process import MARK

SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LEAVES_WITHIN_S = 5.0
TAKES_ORDERS_WITHIN_S = 5.0


@dataclass
class ZygoteClient:
    """One zygote process."""

    channel: socket.socket
    process: subprocess.Popen[bytes]
    ready: bool = False
    cold_because: str = ""

    @staticmethod
    def launch(folders: Folders, environment: Mapping[str, str], *, warm: bool) -> ZygoteClient:
        """Start a zygote.  Returns at once: orders wait in the socket while it imports torch."""
        ours, theirs = socket.socketpair()
        ours.settimeout(TAKES_ORDERS_WITHIN_S)
        # -P: the folder the controller was started in may hold a file that shadows a module of ours.
        module = "weft.engines.local.zygote"
        mode = "warm" if warm else "cold"
        options = [str(theirs.fileno()), str(folders.home), mode, str(os.getpid())]
        command = [sys.executable, "-P", "-m", module, *options]
        with theirs, open(folders.engine / "zygote.log", "ab") as log:
            process = subprocess.Popen(
                command,
                env={**environment, **SINGLE_THREADED, MARK: str(folders.engine)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return ZygoteClient(ours, process)

    def send(self, order_name: str) -> bool:
        """Ask for a keeper.  False when the zygote is gone, or stopped with hundreds of orders unread."""
        try:
            pool_messages.send(self.channel, {"order": order_name})
        except OSError:
            return False
        return True

    def hear(self) -> dict[str, Any] | None:
        """One message; None when the zygote is gone.  Blocks: call it when the channel is readable."""
        received = pool_messages.receive(self.channel)
        if received is None:
            return None
        message = received[0]
        if message["kind"] == "ready":
            self.ready, self.cold_because = True, message["reason"]
        return message

    def close(self) -> None:
        """Let it go: it carries out the orders it has, unless it is still busy importing."""
        if not self.ready:
            self.process.terminate()
        self.channel.close()
        try:
            self.process.wait(LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
