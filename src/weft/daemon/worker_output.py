"""Reading the output of workers while it is written."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from weft.daemon.contract import LogStream, UnknownJobError
from weft.engines.regular_file import NotRegularError, open_regular

_FIRST_LOOK_S = 0.05
_LAST_LOOK_S = 0.5


class WorkerLog:
    """One file; read from the beginning."""

    def __init__(self, path: Path, attempt: int, rank: int, is_over: Callable[[], bool]) -> None:
        self.path, self.attempt, self.rank = path, attempt, rank
        self._is_over = is_over
        self._descriptor: int | None = None

    def check(self) -> None:
        """Raise what reading it would raise, before anybody was told that there is something to read."""
        self._opened()
        self.close()

    def read(self, max_bytes: int = 65536) -> bytes:
        """What has come since the last call, at most so much.  Never blocks."""
        descriptor = self._opened()
        return b"" if descriptor is None else os.read(descriptor, max_bytes)

    def skip_to_last(self, num_bytes: int) -> int:
        """Read on from so far before the end, where that is further on; returns how much was left out."""
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
                    raise UnknownJobError(f"{error}; look at it yourself, weft reads regular files only") from error
                except PermissionError as error:
                    raise UnknownJobError(f"{self.path}: permission denied; `ls -l` shows who may read it") from error
        return self._descriptor

    async def follow(self) -> AsyncIterator[bytes]:
        """Everything, and what comes, until the attempt is over."""
        pause_s = _FIRST_LOOK_S
        try:
            while True:
                # Asked before reading: what was written before the end is read after it.
                is_over = self._is_over()
                if data := self.read():
                    pause_s = _FIRST_LOOK_S
                    yield data
                elif is_over:
                    return
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LAST_LOOK_S)
        finally:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def find_log(
    attempts: Path, job_id: str, attempt: int | None, rank: int | None, stream: LogStream, newest: int
) -> tuple[Path, int, int]:
    """Where the output is: path, attempt, rank.  ``newest`` is the job's present or last attempt."""
    if newest == 0:
        raise UnknownJobError(f"job {job_id} has not been started yet, so there is no output: wait for it to run")
    chosen = newest if attempt is None else attempt
    if not 1 <= chosen <= newest:
        raise UnknownJobError(f"job {job_id} has no attempt {chosen}: its attempts are 1 to {newest}")
    if attempt is None and not _ranks(attempts / str(chosen)):
        # Just ordered: the one before says more.
        chosen = next((one for one in range(newest - 1, 0, -1) if _ranks(attempts / str(one))), newest)
    worker = rank or 0
    known = _ranks(attempts / str(chosen))
    if known and worker not in known:
        raise UnknownJobError(
            f"attempt {chosen} of job {job_id} has no worker {worker}: its workers are 0 to {max(known)}"
        )
    folder = attempts / str(chosen)
    if folder.is_symlink() or attempts.is_symlink() or attempts.parent.is_symlink():
        raise UnknownJobError(f"{folder} is a link to somewhere else: look at it yourself, weft reads its own folders")
    return folder / f"rank{worker}.{stream}", chosen, worker


def _ranks(folder: Path) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            number = name.removeprefix("rank").partition(".")[0]
            if name.startswith("rank") and number.isascii() and number.isdigit():
                found.add(int(number))
    return found
