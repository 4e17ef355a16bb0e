"""One attempt's keeper: starts its workers, supervises them, and records how they ended.

It is forked by the zygote, runs in its own Unix process session, and needs neither the controller nor the zygote to
stay alive.  It guarantees, in this order: it holds the only claim, or exits; all workers exist before it writes
``started_s``; no process of the attempt is left when it writes a fate.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from weft.core.events import Fate
from weft.core.worker_environment import STOPPED_EXIT_CODE
from weft.engines import process_tree
from weft.engines.gang import Gang, GangOutcome, GangPatience, log_files
from weft.engines.local import records
from weft.engines.local.command import script_of_command
from weft.engines.local.folders import Folders
from weft.engines.local.process import Process
from weft.engines.local.records import Order, Status
from weft.engines.output import Console
from weft.engines.pool_client import PoolClient, PoolLost
from weft.engines.regular_file import open_regular
from weft.engines.rendezvous import MeetingPlace, Rendezvous, ReservedPort, opened_elsewhere
from weft.engines.worker_launch import placed_gang
from weft.errors import UsageError, WeftError
from weft.process.failpoints import failpoint

STOP, KILL = signal.SIGTERM, signal.SIGUSR1
"""What the engine sends to a keeper.  Either may arrive twice: a restarted controller repeats them."""

MAX_REASON_LENGTH = 500
TRY_AGAIN_S = 1.0
FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


class Requests:
    """Stop and kill requests for ``Gang``, which kills on the second request."""

    def __init__(self) -> None:
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.asked: int | None = None
        for signum in (STOP, KILL):
            signal.signal(signum, lambda *_: None)  # the interpreter writes its number to the pipe
        for signum in (signal.SIGINT, signal.SIGHUP):  # a terminal sends these, and this process has none
            signal.signal(signum, signal.SIG_IGN)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    @property
    def files(self) -> tuple[int, int]:
        return self._wake, self._waker

    def fileno(self) -> int:
        return self._wake

    def take(self) -> list[int]:
        try:
            caught = os.read(self._wake, 4096)
        except BlockingIOError:
            return []
        passed_on: list[int] = []
        for signum in caught:
            if signum == STOP and self.asked is None:
                passed_on += [signal.SIGTERM]
                self.asked = STOP
            elif signum == KILL and self.asked != KILL:
                passed_on += [signal.SIGTERM] * (2 if self.asked is None else 1)
                self.asked = KILL
        return passed_on


class Keeper:
    """Supervises one attempt, from the claim to the outcome."""

    def __init__(self, folders: Folders, order: Order, *, warm: bool) -> None:
        self._folders = folders
        self._order = order
        self._warm = warm
        self._files = folders.attempt(order.job_id, order.attempt)
        self._requests = Requests()
        self._status = Status()

    def keep(self) -> None:
        failpoint("keeper.before_claim")
        claim = asdict(Process.this())
        if not self._when_there_is_room(lambda: records.write_once(self._files.claim, claim)):
            return  # already claimed
        failpoint("keeper.after_claim")
        process_tree.adopt_orphans()
        self._nudge()
        fate, exit_code, reason = self._see_through()
        process_tree.sweep()
        failpoint("keeper.before_outcome")
        self._status = self._status.ended(time.time(), fate, exit_code, reason[:MAX_REASON_LENGTH])
        # This is the only record of how it ended: without it the job would run again.
        while not self._written():
            time.sleep(TRY_AGAIN_S)
        failpoint("keeper.after_outcome")

    def _see_through(self) -> tuple[Fate, int, str]:
        # The claim is visible now: later requests arrive as signals, earlier ones left these files.
        if self._files.stop.exists() or self._files.kill.exists():
            return Fate.STOPPED, 128 + signal.SIGTERM, "stopped before its workers were started"
        try:
            outcome = self._run()
        except UsageError as error:
            return Fate.FAILED, error.exit_code, str(error)
        except (WeftError, OSError) as error:
            with contextlib.suppress(OSError):  # the disk may be full
                traceback.print_exc()
            return Fate.LOST, 1, str(error)
        return judge(outcome, asked=self._requests.asked)

    def _run(self) -> GangOutcome:
        order = self._order
        script = script_of_command(order.argv, order.cwd)
        self._when_there_is_room(self._make_log_files)
        pool = PoolClient.fork(warm=self._warm, private=self._requests.files)
        try:
            with self._meeting_place(pool) as place:
                self._publish(place)
                workers = placed_gang(
                    script,
                    cores_by_rank=order.cores_by_rank,
                    port=place.port,
                    environment={**order.environment, **place.environment},
                    attempt=order.attempt,
                    fresh=order.fresh,
                    part=order.part,
                )
                patience, folder = GangPatience(grace_s=order.grace_s, hang_s=order.hang_s), self._files.path
                gang = Gang(pool, workers, Console(), patience=patience, log_dir=folder, on_started=self._note_start)
                place.serve(order.environment, tuple(sorted({core for worker in workers for core in worker.cores})))
                outcome = gang.run(self._requests)
        except PoolLost:
            pool.abandon()
            raise
        pool.close()  # ends every process below it
        return outcome

    def _meeting_place(self, pool: PoolClient) -> MeetingPlace:
        part = self._order.part
        if part is not None and not part.leads:
            return opened_elsewhere(part)
        # For one worker, a store would only cost a process; and a cold store takes longer to start than rank 0 does.
        num_workers = len(self._order.cores_by_rank) if part is None else part.world_size
        if not self._warm or num_workers == 1:
            return ReservedPort()
        return Rendezvous(pool) if part is None else Rendezvous(pool, part.address)

    def _publish(self, place: MeetingPlace) -> None:
        """Workers on other nodes can be started once this port is bound."""
        part = self._order.part
        if part is not None and part.leads:
            self._status = replace(self._status, port=place.port, store_is_served=isinstance(place, Rendezvous))
            self._when_there_is_room(lambda: records.write(self._files.status, self._status.to_json()))
            self._nudge()

    def _note_start(self, pids: Sequence[int]) -> None:
        self._status = replace(self._status, started_s=time.time(), workers=tuple(pids))
        self._written()  # if that fails, the workers keep running and the outcome will include it
        failpoint("keeper.after_start")

    def _make_log_files(self) -> None:
        first = self._order.part.first_rank if self._order.part else 0
        for rank in range(first, first + len(self._order.cores_by_rank)):
            for file in log_files(self._files.path, rank):
                os.close(file)

    def _when_there_is_room(self, make: Callable[[], T]) -> T:
        """Retry while the disk is full: before the start, waiting loses nothing and saves an attempt."""
        while True:
            try:
                return make()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._nudge(f"waits for disk space before it starts ({error.strerror})")
            time.sleep(TRY_AGAIN_S)

    def _written(self) -> bool:
        """Write the status; create the folder again if it was deleted."""
        try:
            self._files.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            records.write(self._files.status, self._status.to_json())
        except OSError as error:
            fate = self._status.fate
            what = "its workers are running" if fate is None else f"its workers have ended ({fate.value})"
            self._nudge(f"{what}; retrying to record that ({error.strerror})")
            return False
        self._nudge()
        return True

    def _nudge(self, trouble: str = "") -> None:
        """Notify the controller, if one is running; otherwise the next one reads the files."""
        name = self._folders.order(self._order.job_id, self._order.attempt).name
        with contextlib.suppress(OSError):
            fifo = os.open(self._folders.nudges, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fifo, f"{name}\t{trouble}\n".encode())
            finally:
                os.close(fifo)


def judge(outcome: GangOutcome, *, asked: int | None) -> tuple[Fate, int, str]:
    """Fate, exit code, and first cause of an attempt whose workers have ended.  Pure."""
    code = outcome.exit_code
    if outcome.report:
        cause = outcome.report[0]
        needs_words = not any(failure.error for failure in outcome.failures) and outcome.last_words
        return Fate.FAILED, code, f"{cause}; last line of its stderr: {outcome.last_words}" if needs_words else cause
    if asked == KILL and code != 0:
        return Fate.STOPPED, code, "killed"
    if code == STOPPED_EXIT_CODE:
        return Fate.STOPPED, code, "stopped after a checkpoint"
    if outcome.stopped and asked is not None:
        return Fate.STOPPED, code, "stopped without a checkpoint"
    if outcome.stopped:
        return Fate.FAILED, code, f"its workers exited with code {code} without having been asked to stop"
    return Fate.COMPLETED, code, ""


def run(folders: Folders, order_file: Path, *, warm: bool) -> NoReturn:
    """The child's side of the zygote's fork; never returns."""
    code = 1
    try:
        os.setsid()
        process_tree.rename("weft-keeper")
        document = records.read(order_file)
        if document is not None:  # None if the engine has forgotten the attempt since
            order = Order.from_json(document)
            _redirect(folders.attempt(order.job_id, order.attempt).keeper_log)
            Keeper(folders, order, warm=warm).keep()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    try:
        file = open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError:  # the disk is full: better to run without a log than not at all
        file = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for target in (1, 2):
        os.dup2(file, target)
    os.close(file)
