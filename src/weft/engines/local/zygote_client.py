"""The engine's end of a zygote: asks it to fork keepers, and receives news of those that ended."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.engines import channel_process, pool_messages
from weft.engines.local.folders import Folders
from weft.engines.local.process import MARK
from weft.engines.pool import SINGLE_THREADED

EXIT_TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


@dataclass
class ZygoteClient:
    """One zygote process."""

    channel: socket.socket
    process: subprocess.Popen[bytes]
    ready: bool = False

    @staticmethod
    def launch(folders: Folders, environment: Mapping[str, str], *, warm: bool) -> ZygoteClient:
        """Start a zygote.  Returns immediately: orders wait in the socket while it imports torch."""
        words = [str(folders.home), "warm" if warm else "cold", str(os.getpid())]
        own = {**environment, **SINGLE_THREADED, MARK: str(folders.engine)}
        log = folders.engine / "zygote.log"
        channel, process = channel_process.launch("weft.engines.local.zygote", words, own, log=log)
        channel.settimeout(SEND_TIMEOUT_S)
        return ZygoteClient(channel, process)

    def send(self, order_name: str) -> bool:
        """Ask for a keeper.  False when the zygote is gone, or stopped with hundreds of orders unread."""
        try:
            pool_messages.send(self.channel, {"order": order_name})
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """One message; None if the zygote is gone.  Blocks: call it when the channel is readable."""
        received = pool_messages.receive(self.channel)
        if received is None:
            return None
        message = received[0]
        if message["kind"] == "ready":
            self.ready = True
            if message["reason"]:
                _log.warning("workers start cold: %s", message["reason"])
        return message

    def close(self) -> None:
        """Shut it down: it carries out the orders it has, unless it is still importing."""
        if not self.ready:
            self.process.terminate()
        self.channel.close()
        channel_process.wait_or_kill(self.process, EXIT_TIMEOUT_S)
