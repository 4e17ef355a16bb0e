"""The supervisor's end of a pool: starts workers, signals them, and receives news of them."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.engines import channel_process, pool_messages, process_tree
from weft.engines.pool import SINGLE_THREADED, Pool
from weft.engines.worker_launch import Worker
from weft.errors import WeftError


class PoolLost(WeftError):
    """The process that starts workers is gone."""


@dataclass
class StartedWorker:
    """A requested worker.  The three files are our ends of its output and of its failure report."""

    number: int
    worker: Worker
    out: int
    err: int
    report: int
    pid: int | None = None  # unknown until the pool has forked it
    exit_code: int | None = None  # negative: the signal that killed it
    paused: bool = False


@dataclass
class ForkedPool:
    """A pool that is a fork of this process."""

    pid: int
    returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            process_tree.kill(self.pid, signal.SIGKILL)


@dataclass
class PoolClient:
    """One pool process and the workers in it."""

    channel: socket.socket
    process: subprocess.Popen[bytes] | ForkedPool
    ready: bool = False
    cold_reason: str = ""
    workers: dict[int, StartedWorker] = field(default_factory=dict)  # those not known to have ended
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @staticmethod
    def launch(
        *, warm: bool, environment: Mapping[str, str], outlive: bool = False, needs_torch: bool = True
    ) -> PoolClient:
        """Start a pool process.  Returns immediately: requests wait in the socket while it imports torch."""
        mode = "cold" if not warm else "warm" if needs_torch else "bare"
        words = [mode, "outlive" if outlive else "end"]
        return PoolClient(*channel_process.launch("weft.engines.pool", words, {**environment, **SINGLE_THREADED}))

    @staticmethod
    def fork(*, warm: bool, private: Sequence[int] = ()) -> PoolClient:
        """A fork of this process, which has imported what workers need and has no threads.

        ``private`` are open files of ours that workers must not inherit.
        """
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()  # so that the pool's end closes when we do
                signal.set_wakeup_fd(-1)
                for file in private:
                    os.close(file)
                for signum in (signal.SIGTERM, signal.SIGUSR1):
                    signal.signal(signum, signal.SIG_DFL)
                Pool(theirs, warm=warm, outlive=False).serve(preloaded=())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()
        return PoolClient(ours, ForkedPool(pid))

    def start(
        self, worker: Worker, files: tuple[int, int] | None = None, inherited: Sequence[int] = ()
    ) -> StartedWorker:
        """Request one worker.  ``files`` receive its output instead of pipes to us; ``inherited`` stay open in it."""
        number = next(self._numbers)
        report, their_report = os.pipe2(os.O_CLOEXEC)
        if files is None:
            out, their_out = os.pipe2(os.O_CLOEXEC)
            err, their_err = os.pipe2(os.O_CLOEXEC)
        else:
            (their_out, their_err), (out, err) = files, (-1, -1)
        try:
            pool_messages.send(
                self.channel,
                {"kind": "start", "number": number, "worker": worker.to_json()},
                [their_out, their_err, their_report, *inherited],
            )
        except OSError as error:
            raise self._lost() from error
        finally:
            for file in (their_out, their_err, their_report):
                os.close(file)
        started = StartedWorker(number, worker, out, err, report)
        self.workers[number] = started
        return started

    def signal(self, worker: StartedWorker, signum: int) -> None:
        """Signal it through the pool, which knows whether the pid still means this worker."""
        try:
            pool_messages.send(self.channel, {"kind": "signal", "number": worker.number, "signal": int(signum)})
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> StartedWorker | None:
        """Apply one event and return the worker it was about.  Blocks: call it when the channel is readable."""
        received = pool_messages.receive(self.channel)
        if received is None:
            raise self._lost()
        event: dict[str, Any] = received[0]
        if event["kind"] == "ready":
            self.ready, self.cold_reason = True, event["reason"]
            return None
        worker = self.workers[event["number"]]
        match event["kind"]:
            case "started":
                worker.pid = event["pid"]
            case "exited":
                worker.exit_code = event["code"]
                del self.workers[worker.number]
            case "refused":
                raise WeftError(
                    f"worker {worker.worker.rank} could not be started ({event['reason']}): "
                    "check `ulimit -u` and the machine's free memory"
                )
            case change:
                worker.paused = change == "paused"
        return worker

    def close(self) -> None:
        """End every worker and the pool itself."""
        self.channel.close()
        self.process.wait()

    def abandon(self) -> None:
        """After the pool was lost: kill the processes it left to us."""
        self.channel.close()
        self.process.kill()
        self.process.wait()
        process_tree.sweep()

    def _lost(self) -> PoolLost:
        return PoolLost(
            "the process that starts the workers is gone, and the workers with it: was it killed, or was the machine "
            "out of memory? (`dmesg` shows the kernel's kills)"
        )
