"""Processes that are forks of this one: real ones, which need no second to import what this process has already."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.02


class Forked:
    """A child process in a session of its own that runs ``main`` and exits with what it returns."""

    def __init__(self, main: Callable[[], int], log: Path) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(main, log)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, limit_s: float) -> int:
        """The exit code; raises TimeoutError if it does not end."""
        deadline_s = time.monotonic() + limit_s
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"process {self.pid} is still there after {limit_s:g} s")
            time.sleep(_POLL_S)
        return code


def _become(main: Callable[[], int], log: Path) -> None:
    """The child's side: never returns."""
    code = 1
    try:
        os.setsid()
        for signum in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(signum, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (words, 1), (words, 2)):
            os.dup2(source, target)
        os.closerange(3, 4096)
        code = main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
