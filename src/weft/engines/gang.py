"""One attempt: all workers of a job, from their start to the last exit.

What ends an attempt early:

    a worker fails       the others get a moment to fail too (so that the first cause can be told apart from the
                         rest), then SIGTERM, then SIGKILL
    a worker is paused   by a signal, for longer than ``hang_s``: counts as failed
    a stop request       forwarded to all workers, which save and exit; a second one, or the end of ``grace_s``,
                         kills them
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weft.core.worker_environment import STOPPED_EXIT_CODE, STOPPED_UNSAVED_EXIT_CODE
from weft.engines.first_failure import Failure, WorkerFate, explain, root_cause
from weft.engines.output import MAX_KEPT_LINES, Console, JoinedOutput, Lines
from weft.engines.pool_client import PoolClient, StartedWorker
from weft.engines.regular_file import open_regular, read_end
from weft.engines.worker_launch import Worker

READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 16
MAX_SLEEP_S = 3600.0
"""epoll refuses to wait longer than 24 days."""


@dataclass(frozen=True)
class GangPatience:
    """Time limits."""

    grace_s: float = 120.0  # from the first stop request to the kill: time to save
    leave_s: float = 10.0  # for the others, after a worker died of the stop signal instead of saving
    hang_s: float = 5.0  # how long a worker may be paused by a signal
    settle_s: float = 0.3  # after a failure, for others that failed at the same time
    suspect_s: float = 2.0  # the same, while every known failure may be the consequence of one not yet reported
    kill_s: float = 3.0  # from SIGTERM to SIGKILL after a failure


class StopRequests(Protocol):
    """Signals that reached the supervisor."""

    def fileno(self) -> int: ...
    def take(self) -> list[int]: ...


@dataclass(frozen=True)
class GangOutcome:
    """How an attempt ended."""

    exit_code: int
    failures: tuple[Failure, ...] = ()
    stopped: bool = False
    report: tuple[str, ...] = ()
    last_words: str = ""  # the last line on stderr of the worker that failed first


class GangMember:
    """One worker, its output, and what it reported."""

    def __init__(self, started: StartedWorker, num_workers: int, console: Console, log_dir: Path | None) -> None:
        self.started = started
        self.rank = started.worker.rank
        self._stderr = JoinedOutput(self.rank, num_workers, console.err)
        self._reports = Lines()
        self._error_file = None if log_dir is None else log_dir / f"rank{self.rank}.err"
        self.failed_at_s: float | None = None
        self.error = ""
        self.dead_child = ""
        self.paused_at_s: float | None = None
        stdout = JoinedOutput(self.rank, num_workers, console.out)
        self.streams: dict[int, JoinedOutput | Lines] = {started.report: self._reports}
        if self._error_file is None:
            self.streams |= {started.out: stdout, started.err: self._stderr}
        for file in self.streams:
            os.set_blocking(file, False)

    @property
    def alive(self) -> bool:
        return self.started.exit_code is None

    def read(self, file: int) -> bool:
        """Read what is available.  False if there is nothing left to read."""
        stream = self.streams[file]
        try:
            data = os.read(file, READ_BYTES)
        except BlockingIOError:
            return False
        for line in stream.feed(data) or ():
            report = json.loads(line)
            if self.failed_at_s is None:
                self.failed_at_s = report["time_s"]
                self.error, self.dead_child = report["error"], report["dead_child"]
        return bool(data)

    def close(self) -> None:
        """Print the rest of its output.  Never blocks: processes it left behind may hold the pipes open."""
        for file, stream in self.streams.items():
            while self.read(file):
                continue
            stream.end()
            os.close(file)

    def stderr_tail(self) -> list[str]:
        if self._error_file is None:
            return self._stderr.tail()
        return read_end(self._error_file, TAIL_BYTES).decode(errors="replace").splitlines()[-MAX_KEPT_LINES:]


class Gang:
    """Starts the workers of one attempt and supervises them; output goes to ``log_dir``, or else to the console."""

    def __init__(
        self,
        pool: PoolClient,
        workers: Sequence[Worker],
        console: Console,
        *,
        patience: GangPatience = GangPatience(),
        log_dir: Path | None = None,
        on_started: Callable[[Sequence[int]], None] = lambda pids: None,
    ) -> None:
        self._pool = pool
        self._console = console
        self._patience = patience
        self._on_started = on_started  # called once, with their pids, when all workers exist
        self._selector = selectors.DefaultSelector()
        self._started_s = time.monotonic()
        self._members: list[GangMember] = []
        self._all_started = False
        self._failures: dict[int, Failure] = {}
        self._stop_signal: int | None = None
        self._ending = False  # a worker has failed and the others are being stopped
        self._sent: set[int] = set()  # signals from us that a worker may have died of
        self._kill_at_s = math.inf
        for worker in workers:
            started = pool.start(worker, None if log_dir is None else log_files(log_dir, worker.rank))
            self._members.append(GangMember(started, len(workers), console, log_dir))

    def run(self, stops: StopRequests) -> GangOutcome:
        """Run until no worker is left."""
        self._selector.register(self._pool.channel, selectors.EVENT_READ)
        self._selector.register(stops.fileno(), selectors.EVENT_READ)
        for member in self._members:
            for file in member.streams:
                self._selector.register(file, selectors.EVENT_READ, member)
        try:
            while any(member.alive for member in self._members):
                for key, _ in self._selector.select(self._patience_left_s()):
                    if key.fileobj is self._pool.channel:
                        self._receive()
                    elif key.fd == stops.fileno():
                        for signum in stops.take():
                            self._stop(signum)
                    elif not key.data.read(key.fd):
                        self._selector.unregister(key.fd)
                self._judge()
        finally:
            self._selector.close()
            for member in self._members:
                member.close()
        return self._outcome()

    def _receive(self) -> None:
        started = self._pool.receive()
        if started is None and self._pool.cold_reason:
            self._console.say(f"workers start cold: {self._pool.cold_reason}")
        member = next((member for member in self._members if member.started is started), None)
        if member is None:
            return
        if not self._all_started:
            self._note_start()
        if not member.alive:
            self._note_exit(member)
        elif member.started.paused:
            member.paused_at_s = time.monotonic()
        else:
            member.paused_at_s = None

    def _note_start(self) -> None:
        pids = [member.started.pid for member in self._members if member.started.pid is not None]
        if len(pids) == len(self._members):
            self._all_started = True
            self._on_started(pids)

    def _note_exit(self, member: GangMember) -> None:
        while member.read(member.started.report):
            continue
        code = member.started.exit_code or 0
        if code in (0, STOPPED_EXIT_CODE, STOPPED_UNSAVED_EXIT_CODE) or member.rank in self._failures:
            return
        failure = Failure(
            member.rank,
            time_s=time.monotonic() if member.failed_at_s is None else member.failed_at_s,
            fate=WorkerFate.KILLED if code < 0 else WorkerFate.EXITED,
            code=abs(code),
            error=member.error,
            dead_child=member.dead_child,
        )
        our_doing = (-code if code < 0 else code - 128) in self._sent
        if our_doing and not self._ending:  # without this worker, the others cannot agree on a step to stop after
            self._kill_at_s = min(self._kill_at_s, time.monotonic() + self._patience.leave_s)
        # Asked to stop, workers of a script without a session exit one by one and lose each other.
        lost_each_other = self._stop_signal is not None and failure.may_be_consequence
        if not our_doing and not lost_each_other:
            self._failures[member.rank] = failure

    def _judge(self) -> None:
        now_s = time.monotonic()
        if self._console.reader_is_gone and self._stop_signal is None:
            self._stop(signal.SIGTERM)
        for member in self._members:
            since_s = member.paused_at_s
            if member.alive and since_s is not None and now_s >= since_s + self._patience.hang_s and not self._ending:
                error = f"it has been paused by a signal for {now_s - since_s:.0f} s, and the others wait for it"
                self._failures[member.rank] = Failure(member.rank, since_s, WorkerFate.HUNG, error=error)
        if self._failures and not self._ending and now_s >= self._settled_at_s():
            self._ending = True
            self._kill_at_s = min(self._kill_at_s, now_s + self._patience.kill_s)
            self._signal_all(signal.SIGTERM)
        if now_s >= self._kill_at_s:
            self._kill()

    def _settled_at_s(self) -> float:
        unclear = all(failure.may_be_consequence for failure in self._failures.values())
        wait_s = self._patience.suspect_s if unclear else self._patience.settle_s
        return min(failure.time_s for failure in self._failures.values()) + wait_s

    def _patience_left_s(self) -> float | None:
        moments = [] if signal.SIGKILL in self._sent else [self._kill_at_s]
        if not self._ending:
            moments += [self._settled_at_s()] if self._failures else []
            paused = [member.paused_at_s for member in self._members if member.alive]
            moments += [since_s + self._patience.hang_s for since_s in paused if since_s is not None]
        nearest_s = min(moments, default=math.inf)
        return None if nearest_s == math.inf else min(max(0.0, nearest_s - time.monotonic()), MAX_SLEEP_S)

    def _stop(self, signum: int) -> None:
        if self._stop_signal is not None:
            self._console.say("second stop request: killing the workers; progress since the last checkpoint is lost")
            self._kill()
            return
        self._stop_signal = signum
        self._kill_at_s = time.monotonic() + self._patience.grace_s
        self._console.say("stopping after this step (repeat to kill the workers)")
        self._signal_all(signum)

    def _kill(self) -> None:
        if signal.SIGKILL not in self._sent:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, signum: int) -> None:
        self._sent.add(signum)
        for member in self._members:
            if member.alive:
                self._pool.signal(member.started, signum)

    def _outcome(self) -> GangOutcome:
        codes = {member.started.exit_code for member in self._members}
        if self._failures:
            failures = tuple(self._failures.values())
            cause = root_cause(failures)
            stderr_tail = next(member for member in self._members if member.rank == cause.rank).stderr_tail()
            report = explain(
                failures,
                stderr_tail=stderr_tail,
                num_workers=len(self._members),
                ran_s=cause.time_s - self._started_s,
                first_rank=self._members[0].rank,
            )
            stopped = self._stop_signal is not None
            last_words = next((line for line in reversed(stderr_tail) if line.strip()), "")
            return GangOutcome(cause.exit_code, failures, stopped, tuple(report), last_words)
        if codes == {0}:
            return GangOutcome(0)
        if codes <= {0, STOPPED_EXIT_CODE}:
            return GangOutcome(STOPPED_EXIT_CODE, stopped=True)
        if STOPPED_UNSAVED_EXIT_CODE in codes:
            return GangOutcome(STOPPED_UNSAVED_EXIT_CODE, stopped=True)
        return GangOutcome(128 + (self._stop_signal or signal.SIGTERM), stopped=True)


def log_files(log_dir: Path, rank: int) -> tuple[int, int]:
    """Open, creating if necessary, the files a worker writes to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    out, err = (open_regular(log_dir / f"rank{rank}.{name}", flags, 0o644) for name in ("out", "err"))
    return out, err
