"""The controller's end of the bridge, which is started with the engine and restarted whenever it is lost."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.engines import channel_process, pool_messages

# It may still have to connect; after that, agents have 10 s to close.
_LEAVES_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """What the bridge needs to know."""

    home: str
    namespace: str
    """The Ray namespace of all actors of this home."""
    address: str
    insecure: bool
    relay: bool
    """Whether nodes keep checkpoints themselves, and the home has copies."""
    ship: bool
    """Whether the folders of jobs are sent to nodes."""
    warm: bool
    grace_s: float
    hang_s: float
    wait_s: float = 0.0
    """How long to wait before connecting: the last bridge was lost just now."""


@dataclass
class BridgeClient:
    """One bridge process."""

    channel: socket.socket
    process: subprocess.Popen[bytes]

    @staticmethod
    def launch(settings: BridgeSettings, log: Path, launcher: Sequence[str] = ()) -> BridgeClient:
        """``launcher``: words to put before the command, such as those that enter another network."""
        # By default, Ray reports usage to its developers; that is for the owner of the cluster to decide.
        environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", **os.environ}
        made = channel_process.launch("weft.engines.ray.bridge", (), environment, log=log, launcher=launcher)
        client = BridgeClient(*made)
        client.send({"kind": "settings", **asdict(settings)})
        return client

    def send(self, message: Mapping[str, Any]) -> None:
        """Does nothing if the bridge is gone: the next one is sent everything that still matters."""
        try:
            pool_messages.send(self.channel, dict(message))
        except OSError:
            return

    def hear(self, wait_s: float = 0.0) -> dict[str, Any] | None:
        """The next message, or an empty one if none arrives within this time; None if the bridge is gone."""
        if not select.select([self.channel], [], [], wait_s)[0]:
            return {}
        try:
            received = pool_messages.receive(self.channel)
        except (OSError, ValueError):
            received = None
        return None if received is None else received[0]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """Let it finish what it is doing."""
        self.channel.close()
        channel_process.wait_or_kill(self.process, _LEAVES_WITHIN_S)
