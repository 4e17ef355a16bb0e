"""The controller with a wall clock and a disk that a schedule of faults can turn: no hook in the product.

``shim`` is a JSON file: ``clock_s`` is added to the wall clock, every commit of the journal takes ``commit_s`` longer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.cli import main as weft
from weft.core.events import Event
from weft.store import Journal

_wall, _append = time.time, Journal.append


def main(shim: Path, home: Path, options: list[str]) -> int:
    """`weft up --foreground` with these options; returns only if it ends without an error."""

    def setting(name: str) -> float:
        try:
            return float(json.loads(shim.read_text()).get(name, 0.0))
        except (OSError, ValueError):
            return 0.0

    clock_s = setting("clock_s")

    def append(self: Journal, events: Sequence[Event]) -> Any:
        time.sleep(setting("commit_s"))
        return _append(self, events)

    time.time = lambda: _wall() + clock_s
    Journal.append = append  # type: ignore[method-assign]
    os.environ["WEFT_HOME"] = str(home)
    weft(["up", "--foreground", *options])
    return 0
