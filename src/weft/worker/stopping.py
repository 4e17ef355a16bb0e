"""Stop requests: by a signal, over the job channel, or by a file.

A request may reach a single worker at any moment; all of them decide together when to stop (agreement.py).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from weft.worker.channel import Channel

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_EVERY_S = 0.1


class StopRequest:
    """Whether this worker was asked to stop, and by what."""

    def __init__(
        self, channel: Channel | None = None, stop_file: Path | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.reason = ""
        self._channel = channel
        self._stop_file = stop_file
        self._now = now
        self._next_look_s = 0.0
        self._handlers: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Handle SIGTERM and SIGINT.  Only the main thread may; in other threads, channel and file still work."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}

    def uninstall(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers = {}

    def requested(self) -> bool:
        """Called around each step, so it reads the channel and the file at most ten times a second."""
        if not self.reason and (self._channel or self._stop_file) and self._now() >= self._next_look_s:
            self._next_look_s = self._now() + _LOOK_EVERY_S
            self._look()
        return bool(self.reason)

    def _look(self) -> None:
        if self._stop_file is not None and self._stop_file.exists():
            self.reason = f"{self._stop_file} exists"
        for message in self._channel.receive() if self._channel else ():
            if message.get("stop"):
                self.reason = "by the controller"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal is a request; the second has its usual effect."""
        self.reason = signal.Signals(number).name
        self.uninstall()
