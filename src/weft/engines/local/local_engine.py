"""The local engine: runs jobs as processes on this machine.  See ``docs/design/keeper.md``.

It keeps nothing in memory that it could not read again: orders, claims, and statuses are files.  It waits on one epoll
handle for three things: nudges from keepers that have news, the end of a keeper, and the zygote.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.core.engine import LOCAL_NODE, EngineEvent, EngineNode, StartOrder
from weft.core.events import Fate
from weft.core.worker_environment import ATTEMPT, JOB_ID
from weft.engines.local import records
from weft.engines.local.attempt import Attempt, stopped_in_words
from weft.engines.local.command import needs_fresh_interpreter
from weft.engines.local.folders import Folders, HomeLock
from weft.engines.local.keeper import KILL, STOP
from weft.engines.local.process import MARK, Process, left_behind
from weft.engines.local.records import DamagedRecord, Order, Status
from weft.engines.local.wakeups import Nudges, Watches
from weft.engines.local.zygote_client import ZygoteClient
from weft.engines.worker_launch import Devices, GangPart, checked_count, gpu_names
from weft.errors import EngineError
from weft.process.failpoints import failpoint

MAX_TRIES = 3
"""How many times a keeper or a zygote may die right after its start before we stop trying."""
LOOK_AT_ALL_S = 5.0
"""How often every attempt is checked even without news: a nudge may have been lost."""
TRY_AGAIN_S = 1.0
KILLED = 128 + signal.SIGKILL

_log = logging.getLogger(__name__)


class LocalEngine:
    """Runs attempts as processes on this machine, one core or GPU per worker.

    Not thread-safe.  Every job inherits ``environment``, by default the controller's own.
    """

    def __init__(
        self,
        home: Path,
        *,
        num_devices: int | None = None,
        warm: bool = True,
        grace_s: float = 120.0,
        hang_s: float = 5.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._machine = Devices.of_this_machine(self._environment)
        self._num_devices = checked_count(num_devices, self._machine)
        self._nodes = (EngineNode(LOCAL_NODE, self._num_devices),)
        self._warm = warm
        self._grace_s = grace_s
        self._hang_s = hang_s
        self._folders = Folders(home.absolute())
        self._folders.orders.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = HomeLock(self._folders.engine / "lock")
        self._epoll = select.epoll()
        self._nudges = Nudges(self._folders.nudges)
        self._epoll.register(self._nudges, select.EPOLLIN)
        self._attempts: dict[str, Attempt] = {}
        self._watches = Watches(self._epoll)
        self._num_failed_zygotes = 0
        self._zygote: ZygoteClient | None = None
        self._look_at_all_s = time.monotonic() + LOOK_AT_ALL_S
        self._launch_zygote()
        for job_id, attempt in self._folders.ordered():
            self._due(self._add(job_id, attempt))

    def nodes(self) -> tuple[EngineNode, ...]:
        return self._nodes

    def start(self, order: StartOrder, part: GangPart | None = None) -> None:
        """``part``: when the order is for the workers of this node only."""
        file = self._folders.order(order.job_id, order.attempt)
        files = self._folders.attempt(order.job_id, order.attempt)
        if file.name in self._attempts:
            return
        strangers = [device for device in order.devices if not 0 <= device < self._num_devices]
        if strangers or not order.devices:
            raise EngineError(
                f"job {order.job_id} was given devices {list(order.devices)}: expected one or more of "
                f"0 to {self._num_devices - 1}"
            )
        files.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        was_started = files.claim.exists()  # its order was lost; its folder still has its status
        failpoint("engine.before_order")
        records.write(file, self._complete(order, part).to_json())
        failpoint("engine.after_order")
        known = self._add(order.job_id, order.attempt)
        if was_started:
            self._due(known)
        else:
            self._send(known)

    def call_off(self, job_id: str, attempt: int) -> None:
        """Make sure that an attempt that was not ordered here never starts, even if it is ordered later."""
        file = self._folders.order(job_id, attempt)
        if file.name in self._attempts:
            return
        files = self._folders.attempt(job_id, attempt)
        files.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        never = Order(job_id, attempt, (), "", {}, ())
        records.write(file, never.to_json())
        known = self._add(job_id, attempt)
        known.resolve(Fate.STOPPED, 128 + signal.SIGTERM, "stopped before its workers were started")
        self._due(known)

    def status(self, job_id: str, attempt: int) -> Status | None:
        """The status of an attempt, according to its own files; None if it is not known here."""
        known = self._attempts.get(self._folders.order(job_id, attempt).name)
        return None if known is None else known.status()

    def stop(self, job_id: str, attempt: int) -> None:
        known = self._not_over(job_id, attempt)
        if known is None:
            return
        keeper = known.keeper()
        known.files.stop.touch()
        if keeper is not None:
            keeper.signal(STOP, signal.SIGCONT)
        elif known.resolve(Fate.STOPPED, 128 + signal.SIGTERM, "stopped before its workers were started"):
            self._due(known)

    def kill(self, job_id: str, attempt: int) -> None:
        known = self._not_over(job_id, attempt)
        if known is None:
            return
        keeper = known.keeper()
        with contextlib.suppress(OSError):  # a full disk must not prevent a kill
            known.files.kill.touch()
        if keeper is not None:
            keeper.signal(KILL, signal.SIGCONT)
        elif known.resolve(Fate.STOPPED, KILLED, "killed before its workers were started"):
            self._due(known)

    def poll(self) -> Sequence[EngineEvent]:
        touched: dict[str, Attempt] = {}
        now_s = time.monotonic()
        if now_s >= self._look_at_all_s:
            self._look_at_all_s = now_s + LOOK_AT_ALL_S
            touched |= self._attempts
        for handle, _ in self._epoll.poll(0):
            if handle == self._nudges.fileno():
                touched |= self._read_nudges()
            elif (ended := self._watches.ended(handle)) is not None:
                touched[ended.name] = ended
            elif self._zygote is not None and handle == self._zygote.channel.fileno():
                touched |= self._receive_from_zygote(self._zygote)
        events = [event for known in touched.values() for event in self._looked_at(known)]
        return sorted(events, key=lambda event: event.at_s)

    def hints(self) -> Mapping[tuple[str, int], str]:
        found = {}
        for known in self._attempts.values():
            words = "" if known.end_reported else known.check_failure or known.trouble or self._stopped_in_words(known)
            if words:
                found[known.job_id, known.attempt] = words
        return found

    def fileno(self) -> int:
        return self._epoll.fileno()

    def warnings(self) -> Sequence[str]:
        return ()

    def known(self) -> Sequence[tuple[str, int]]:
        return [(known.job_id, known.attempt) for known in self._attempts.values()]

    def forget(self, job_id: str, attempt: int) -> None:
        name = self._folders.order(job_id, attempt).name
        known = self._attempts.get(name)
        if known is None or self._not_over(job_id, attempt) is not None:
            return
        records.remove(self._folders.orders / name)
        del self._attempts[name]

    def close(self) -> None:
        self._drop_zygote()
        self._watches.close()
        self._epoll.close()
        self._nudges.close()
        self._lock.release()

    def _complete(self, order: StartOrder, part: GangPart | None) -> Order:
        """The order with everything a keeper needs, since it may run without a controller."""
        own = {**self._environment, **order.launch.environment, **order.environment}
        gpus = gpu_names(self._environment, self._machine.num_gpus)
        if gpus:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[device % len(gpus)] for device in order.devices)
        own |= {JOB_ID: order.job_id, ATTEMPT: str(order.attempt), MARK: str(self._folders.engine)}
        return Order(
            job_id=order.job_id,
            attempt=order.attempt,
            argv=order.launch.argv,
            cwd=order.launch.cwd,
            environment=own,
            cores_by_rank=tuple(self._machine.cores_of(device, self._num_devices) for device in order.devices),
            fresh=needs_fresh_interpreter(own, self._environment),
            grace_s=self._grace_s,
            hang_s=self._hang_s,
            part=part,
        )

    def _add(self, job_id: str, attempt: int) -> Attempt:
        name = self._folders.order(job_id, attempt).name
        self._attempts[name] = Attempt(name, job_id, attempt, self._folders.attempt(job_id, attempt))
        return self._attempts[name]

    def _send(self, known: Attempt) -> None:
        """Have the zygote fork a keeper.  If the zygote is gone, the next poll notices and resends everything."""
        zygote = self._zygote or self._launch_zygote()
        if zygote.send(known.name):
            known.num_tries += 1
        else:
            self._drop_zygote()
            known.start_failure = "the process that starts workers does not accept orders"
            self._look_again_soon()

    def _due(self, known: Attempt) -> None:
        """Have the next ``poll`` look at this attempt."""
        self._nudges.add(known.name)

    def _read_nudges(self) -> dict[str, Attempt]:
        touched: dict[str, Attempt] = {}
        for name, trouble in self._nudges.read():
            if name in self._attempts:
                touched[name] = self._attempts[name]
                touched[name].trouble = trouble
        return touched

    def _launch_zygote(self) -> ZygoteClient:
        zygote = ZygoteClient.launch(self._folders, self._environment, warm=self._warm)
        self._epoll.register(zygote.channel, select.EPOLLIN)
        self._zygote = zygote
        return zygote

    def _drop_zygote(self) -> None:
        if self._zygote is not None:
            self._epoll.unregister(self._zygote.channel)
            self._zygote.close()
            self._zygote = None

    def _receive_from_zygote(self, zygote: ZygoteClient) -> dict[str, Attempt]:
        try:
            message = zygote.receive()
        except (OSError, ValueError, KeyError):  # not a message of ours: treat the zygote as lost
            message = None
        if message is None:
            return self._replace_zygote()
        self._num_failed_zygotes = 0
        known = self._attempts.get(message.get("order", ""))
        if known is None:
            return {}
        known.start_failure = message["reason"]
        return {known.name: known}

    def _replace_zygote(self) -> dict[str, Attempt]:
        """It was killed, or cannot start.  Its keepers keep running; unclaimed orders are sent again."""
        self._drop_zygote()
        self._num_failed_zygotes += 1
        if self._num_failed_zygotes < MAX_TRIES:
            with contextlib.suppress(OSError):  # no process available: the next order tries again
                self._launch_zygote()
        for known in self._attempts.values():
            known.start_failure = f"the process that starts workers ended; see {self._folders.engine}/zygote.log"
        return dict(self._attempts)

    def _looked_at(self, known: Attempt) -> list[EngineEvent]:
        """What is new about this attempt; an error (full disk, ...) is retried."""
        if known.end_reported:
            return []
        known.check_failure = ""
        try:
            return self._look(known)
        except DamagedRecord as damage:
            return self._lost(known, str(damage))
        except Exception as error:
            _log.error("attempt %d of job %s cannot be checked: %r", known.attempt, known.job_id, error)
            known.check_failure = f"its status cannot be checked ({error}); retrying"
            self._look_again_soon()
            return []

    def _look_again_soon(self) -> None:
        self._look_at_all_s = min(self._look_at_all_s, time.monotonic() + TRY_AGAIN_S)

    def _look(self, known: Attempt) -> list[EngineEvent]:
        keeper = known.keeper()
        if keeper is None:
            self._see_to_its_start(known)
            keeper = known.keeper()
        is_dead = keeper is not None and not self._watches.watch(keeper, known)
        try:
            status = known.status()  # read after checking the keeper, which writes its status before it ends
        except DamagedRecord:
            if is_dead:
                raise
            status = Status()  # its keeper will replace it
        if status.fate is None and keeper is not None and is_dead:
            if self._end_left_behind(keeper, known):
                return []
            status = known.lost(keeper, status)
        return self._unreported(known, keeper, status)

    def _see_to_its_start(self, known: Attempt) -> None:
        """It is unclaimed: request a keeper, again if the last one died."""
        if not known.files.path.is_dir():
            raise DamagedRecord(f"its folder {known.files.path} is gone")
        failure, known.start_failure = known.start_failure, ""
        # Either ordered by an earlier controller, or its keeper died before it had the claim: nothing was started.
        if not known.num_tries or (failure and known.num_tries < MAX_TRIES):
            self._send(known)
        elif failure:
            try:
                known.resolve(Fate.LOST, 1, f"its workers could not be started: {failure}")
            except OSError:
                known.start_failure = failure
                raise

    def _lost(self, known: Attempt, damage: str) -> list[EngineEvent]:
        """Its files are damaged: kill what is left of it, then report it as lost."""
        if self._end_left_behind(None, known):
            known.check_failure = f"{damage}; its processes are being killed"
            return []
        return self._unreported(known, None, Status().ended(time.time(), Fate.LOST, 1, damage))

    def _unreported(self, known: Attempt, keeper: Process | None, status: Status) -> list[EngineEvent]:
        """Events not reported yet."""
        events = status.news(known.job_id, known.attempt, is_start_told=known.start_reported)
        known.start_reported = known.start_reported or status.started_s is not None
        if status.fate is not None:
            known.end_reported = True
            if keeper is not None:
                self._watches.unwatch(keeper)
        return events

    def _not_over(self, job_id: str, attempt: int) -> Attempt | None:
        known = self._attempts.get(self._folders.order(job_id, attempt).name)
        if known is None or known.end_reported:
            return None
        try:
            return None if known.is_over() else known
        except DamagedRecord:
            return known

    def _stopped_in_words(self, known: Attempt) -> str:
        """Which process, stopped by a signal, holds up this attempt; "" if none does."""
        try:
            keeper = known.keeper()
        except (DamagedRecord, PermissionError):
            return ""
        return stopped_in_words(keeper, None if self._zygote is None else self._zygote.process.pid)

    def _end_left_behind(self, keeper: Process | None, known: Attempt) -> bool:
        """Kill what a dead or unknown keeper left behind.  False once nothing is left."""
        mark = str(self._folders.engine)
        processes = left_behind(keeper, mark, known.job_id, known.attempt, known.files.path)
        for process in processes:
            process.signal(signal.SIGKILL)
        num_left = sum(self._watches.watch(process, known) for process in processes)  # not any(): watch every one
        return num_left > 0
