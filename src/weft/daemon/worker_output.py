"""Reads workers' output while they write it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from weft.daemon.contract import LogStream, UnknownJobError
from weft.engines.regular_file import NotRegularError, open_regular

_MIN_PAUSE_S = 0.05
_MAX_PAUSE_S = 0.5


class WorkerLog:
    """The output of one worker in one attempt; read from the beginning."""

    def __init__(self, path: Path, attempt: int, rank: int, is_over: Callable[[], bool]) -> None:
        self.path, self.attempt, self.rank = path, attempt, rank
        self._is_over = is_over
        self._descriptor: int | None = None

    def check(self) -> None:
        """Raise what reading it would raise, before a response has started."""
        self._opened()
        self.close()

    def read(self, max_bytes: int = 65536) -> bytes:
        """New output since the last call, at most ``max_bytes``.  Never blocks."""
        descriptor = self._opened()
        return b"" if descriptor is None else os.read(descriptor, max_bytes)

    def skip_to_last(self, num_bytes: int) -> int:
        """Skip to the last ``num_bytes``, never backward; returns how many bytes were skipped."""
        descriptor = self._opened()
        if descriptor is None:
            return 0
        here = os.lseek(descriptor, 0, os.SEEK_CUR)
        start = max(os.fstat(descriptor).st_size - num_bytes, here)
        os.lseek(descriptor, start, os.SEEK_SET)
        return start - here

    def _opened(self) -> int | None:
        if self._descriptor is None:
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._descriptor = open_regular(self.path)
                except NotRegularError as error:
                    raise UnknownJobError(f"{error}; weft reads only regular files") from error
                except PermissionError as error:
                    raise UnknownJobError(f"{self.path}: permission denied; `ls -l` shows who may read it") from error
        return self._descriptor

    async def follow(self) -> AsyncIterator[bytes]:
        """Everything so far, and new output until the attempt is over."""
        pause_s = _MIN_PAUSE_S
        try:
            while True:
                # Checked before reading, so that output written just before the end is not missed.
                is_over = self._is_over()
                if data := self.read():
                    pause_s = _MIN_PAUSE_S
                    yield data
                elif is_over:
                    return
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        finally:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def find_log(
    attempts: Path, job_id: str, attempt: int | None, rank: int | None, stream: LogStream, newest: int, is_over: bool
) -> tuple[Path, int, int]:
    """Path, attempt and rank of the output.  ``newest`` is the job's current or last attempt."""
    if newest == 0 and is_over:
        raise UnknownJobError(f"job {job_id} has no output because it never ran")
    if newest == 0:
        raise UnknownJobError(f"job {job_id} has no output because it has not been started yet: wait for it to run")
    chosen = newest if attempt is None else attempt
    if not 1 <= chosen <= newest:
        has = "it has had only attempt 1" if newest == 1 else f"its attempts are 1 to {newest}"
        raise UnknownJobError(f"job {job_id} has no attempt {chosen}: {has}")
    if attempt is None and not _ranks(attempts / str(chosen)):
        # It was just ordered: show the attempt before it.
        chosen = next((one for one in range(newest - 1, 0, -1) if _ranks(attempts / str(one))), newest)
    worker = rank or 0
    known = _ranks(attempts / str(chosen))
    if known and worker not in known:
        has = f"its workers are 0 to {max(known)}" if max(known) else "it has only worker 0"
        raise UnknownJobError(f"attempt {chosen} of job {job_id} has no worker {worker}: {has}")
    folder = attempts / str(chosen)
    if folder.is_symlink() or attempts.is_symlink() or attempts.parent.is_symlink():
        raise UnknownJobError(f"{folder} is a link: weft reads only its own folders")
    return folder / f"rank{worker}.{stream}", chosen, worker


def _ranks(folder: Path) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            number = name.removeprefix("rank").partition(".")[0]
            if name.startswith("rank") and number.isascii() and number.isdigit():
                found.add(int(number))
    return found
