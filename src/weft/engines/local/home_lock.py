"""One engine per home: two would take each other's nudges."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from weft.errors import EngineError


class HomeLock:
    """Held until released, or until this process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise EngineError(
                f"{path.parent} is in use by process {holder}: one controller at a time. "
                "`weft down` ends it, or use another WEFT_HOME"
            ) from None
        os.truncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._file)
