"""Lines of a worker's output that contain a text; reads and returns only a bounded amount."""

from __future__ import annotations

from dataclasses import dataclass

from weft.daemon.worker_output import WorkerLog

MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""Only the end of a longer log is searched."""
MAX_FOUND_LINES = 1000
MAX_LINE_BYTES = 4096
_MAX_OPEN_BYTES = 256 * 1024
"""A line longer than this is searched in pieces, so that output without line ends costs no more than other output."""


@dataclass(frozen=True, slots=True)
class Found:
    """The matching lines; only the last ones if there are too many."""

    text: bytes
    num_lines: int
    """How many lines contain the text, even if not all of them are returned."""
    skipped_bytes: int
    """At the beginning of the log, not searched."""


def search(log: WorkerLog, wanted: str) -> Found:
    """Find ``wanted``, ignoring the case of ASCII letters.  Closes the log."""
    needle = wanted.encode().lower()
    found: list[bytes] = []
    num_lines, rest, left = 0, b"", MAX_SEARCHED_BYTES
    try:
        skipped = log.skip_to_last(MAX_SEARCHED_BYTES)
        while left > 0 and (data := log.read()):
            left -= len(data)
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MAX_OPEN_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                if needle in line.lower():
                    num_lines += 1
                    found.append(line[:MAX_LINE_BYTES])
            del found[:-MAX_FOUND_LINES]
        if rest and needle in rest.lower():
            num_lines += 1
            found.append(rest[:MAX_LINE_BYTES])
    finally:
        log.close()
    return Found(b"".join(line + b"\n" for line in found[-MAX_FOUND_LINES:]), num_lines, skipped)
