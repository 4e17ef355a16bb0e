"""Forks of one process that has imported the controller: a test that starts dozens of controllers imports it once.

    python -m tests.crash.driver_forks DESCRIPTOR

The process has no threads, so that its forks are like fresh ones.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.crash import controller_driver

from weft.engines import channel_process, pool_messages

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class DriverForks:
    """The test's end: one server for all tests of this process, which ends with it."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | ONE_THREAD
        self._channel, self._server = channel_process.launch("tests.crash.driver_forks", (), environment)
        self._exit_codes: dict[int, int] = {}
        atexit.register(self._close)

    @staticmethod
    @cache
    def of_this_process() -> DriverForks:
        return DriverForks()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int]) -> int:
        """The pid of a driver with these three files."""
        order = {"arguments": list(arguments), "environment": dict(environment)}
        pool_messages.send(self._channel, order, files)
        while "pid" not in (news := self._hear()):
            pass
        return int(news["pid"])

    def wait(self, pid: int) -> int:
        """Its exit code, once it has ended; negative for a signal."""
        while pid not in self._exit_codes:
            self._hear()
        return self._exit_codes[pid]

    def _close(self) -> None:
        self._channel.close()
        self._server.wait()

    def _hear(self) -> dict[str, int]:
        received = pool_messages.receive(self._channel)
        assert received is not None, "the server of controller drivers is gone"
        news = received[0]
        if "ended" in news:
            self._exit_codes[news["ended"]] = news["code"]
        return news


def serve(channel: socket.socket) -> None:
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == wake:
                    os.read(wake, 4096)
                    _report_ends(channel)
                    continue
                received = pool_messages.receive(channel)
                if received is None:
                    return
                order, files = received
                pid = os.fork()
                if pid == 0:
                    _become(order["arguments"], order["environment"], files)
                for file in files:
                    os.close(file)
                pool_messages.send(channel, {"pid": pid})


def _report_ends(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        pool_messages.send(channel, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _become(arguments: list[str], environment: dict[str, str], files: list[int]) -> None:
    """The child's side of the fork; never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for source, target in zip(files, (0, 1, 2), strict=True):
            os.dup2(source, target)
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["controller_driver", *arguments]
        controller_driver.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
