"""Many workers' output joined into one stream, line by line, each with its rank in front."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

MAX_LINE_BYTES = 1 << 16  # a worker that never prints a newline must not fill our memory
MAX_KEPT_LINES = 20


class Lines:
    """Bytes in, whole lines out; keeps the last ones for a failure report.

    >>> lines = Lines()
    >>> lines.feed(b"step 1\\nst"), lines.feed(b"ep 2\\n"), lines.end()
    ([b'step 1'], [b'step 2'], [])
    """

    def __init__(self) -> None:
        self._open = b""
        self._last: deque[bytes] = deque(maxlen=MAX_KEPT_LINES)

    def feed(self, data: bytes) -> list[bytes]:
        *whole, self._open = (self._open + data).split(b"\n")
        lines = [line.removesuffix(b"\r") for line in whole]
        while len(self._open) >= MAX_LINE_BYTES:
            lines.append(self._open[:MAX_LINE_BYTES])
            self._open = self._open[MAX_LINE_BYTES:]
        self._last.extend(lines)
        return lines

    def end(self) -> list[bytes]:
        """The unfinished last line, if there is one."""
        rest, self._open = self._open, b""
        self._last.extend([rest] if rest else [])
        return [rest] if rest else []

    def tail(self) -> list[str]:
        return [line.decode(errors="replace") for line in self._last]


class JoinedOutput:
    """Copies one stream of one worker to one of ours."""

    def __init__(self, rank: int, num_workers: int, write: Callable[[bytes], None]) -> None:
        width = len(str(num_workers - 1))
        self._prefix = f"[{rank:>{width}}] ".encode()
        self._lines = Lines()
        self._write = write

    def feed(self, data: bytes) -> None:
        self._pass_on(self._lines.feed(data))

    def end(self) -> None:
        self._pass_on(self._lines.end())

    def tail(self) -> list[str]:
        return self._lines.tail()

    def _pass_on(self, lines: list[bytes]) -> None:
        if lines:  # a single write, so that no other writer to the same terminal can interleave
            self._write(b"".join(self._prefix + line + b"\n" for line in lines))


class Console:
    """Our own standard output and error; writes whole lines."""

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._out, self._err = out, err
        self.reader_is_gone = False  # as with `| head`, where an ordinary program would die of SIGPIPE

    def out(self, data: bytes) -> None:
        self._write(self._out, data)

    def err(self, data: bytes) -> None:
        self._write(self._err, data)

    def say(self, *lines: str) -> None:
        """A message from weft itself; never on standard output, which belongs to the script."""
        self.err("".join(f"weft: {line}\n" for line in lines).encode(errors="replace"))

    def _write(self, file: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except BrokenPipeError:
            self.reader_is_gone = True
        except OSError:  # a full disk: lose the message, not the workers
            return
