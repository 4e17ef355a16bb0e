"""``weft logs``: the output of a job's workers."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Annotated, Literal

from weft.cli.verb import Json, connect
from weft.core.command_line import Argument, Option
from weft.errors import WeftError

Stream = Literal["out", "err"]
_STREAMS: dict[str, tuple[Stream, ...]] = {"out": ("out",), "err": ("err",), "both": ("out", "err")}


def logs(
    job_id: Annotated[str, Argument("ID", "a job: its id, a prefix of it, or its name")],
    rank: Annotated[int, Option("which worker", min=0, short="-r")] = 0,
    attempt: Annotated[int | None, Option("which attempt", "newest", min=1, short="-a")] = None,
    stream: Annotated[str, Option("which output", choices=tuple(_STREAMS))] = "both",
    follow: Annotated[bool, Option("keep printing until the job is over", short="-f")] = False,
    as_json: Json = False,
) -> None:
    """Print the output of one worker of a job: its standard output to stdout, its standard error to stderr.

    With --follow, keeps printing new output through every restart. With --json, prints one object per line of output,
    all on stdout.
    """
    client = connect()
    copies = [
        _Copy(
            client.logs(job_id, attempt=attempt, rank=rank, stream=one, follow=follow),
            _Lines(one, rank) if as_json else _Bytes(one),
        )
        for one in _STREAMS[stream]
    ]
    # Both at once only with --follow; otherwise one after the other, which keeps the lines of a stream together.
    threads = [threading.Thread(target=copy.run, daemon=True) for copy in copies[1:]] if follow else []
    for thread in threads:
        thread.start()
    for copy in copies[:1] if follow else copies:
        copy.run()
    for thread in threads:
        thread.join()
    for copy in copies:
        if copy.failure is not None:
            raise copy.failure


class _Bytes:
    """Passes output on byte for byte."""

    def __init__(self, stream: Stream) -> None:
        self._file = sys.stdout.buffer if stream == "out" else sys.stderr.buffer

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()

    def end(self) -> None:
        self._file.flush()


class _Lines:
    """Prints one JSON object per line of output."""

    def __init__(self, stream: Stream, rank: int) -> None:
        self._stream, self._rank = stream, rank
        self._rest = b""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._print(line)

    def end(self) -> None:
        if self._rest:
            self._print(self._rest)

    def _print(self, line: bytes) -> None:
        row = {"rank": self._rank, "stream": self._stream, "text": line.decode(errors="replace")}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


class _Copy:
    """Copies one stream; keeps an error for the main thread to raise."""

    def __init__(self, chunks: Iterator[bytes], writer: _Bytes | _Lines) -> None:
        self._chunks, self._writer = chunks, writer
        self.failure: WeftError | None = None

    def run(self) -> None:
        try:
            for data in self._chunks:
                self._writer.write(data)
            self._writer.end()
        except WeftError as error:
            self.failure = error
