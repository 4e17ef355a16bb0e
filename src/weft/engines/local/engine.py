"""Processes of this machine as an engine.  See ``docs/design/keeper.md``.

The engine itself keeps nothing in memory that it could not read again: orders, claims and statuses are files.  It waits
on one epoll handle for three things: nudges of keepers that have news, the end of a keeper, the zygote.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.core.engine import EngineEvent, StartOrder
from weft.core.events import Fate, WorkersExited, WorkersStarted
from weft.core.failpoints import failpoint
from weft.core.worker_environment import ATTEMPT, JOB_ID
from weft.engines.launch import Devices
from weft.engines.local import records
from weft.engines.local.attempt import Attempt
from weft.engines.local.command import needs_fresh_interpreter
from weft.engines.local.folders import Folders
from weft.engines.local.home_lock import HomeLock
from weft.engines.local.keeper import KILL, STOP
from weft.engines.local.process import MARK, Process, left_behind
from weft.engines.local.records import Order
from weft.engines.local.zygote_client import ZygoteClient
from weft.errors import EngineError

MOST_TRIES = 3
"""How often a keeper, or a zygote, may die at once before we stop trying."""
KILLED = 128 + signal.SIGKILL


class LocalEngine:
    """Runs attempts as processes of this machine, one core or GPU per worker.

    Used by one thread.  Of ``environment``, the controller's own, every job inherits.
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
        self._num_devices = _checked(num_devices, self._machine)
        self._warm = warm
        self._grace_s = grace_s
        self._hang_s = hang_s
        self._folders = Folders(home.absolute())
        self._folders.orders.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = HomeLock(self._folders.engine / "lock")
        self._epoll = select.epoll()
        self._nudges = _open_fifo(self._folders.nudges)
        self._epoll.register(self._nudges, select.EPOLLIN)
        self._attempts: dict[str, Attempt] = {}
        self._handles: dict[Process, int] = {}
        self._ends: dict[int, tuple[Attempt, Process]] = {}  # by handle: whose end is waited for
        self._num_failed_zygotes = 0
        self._zygote: ZygoteClient | None = None
        self._launch_zygote()
        for job_id, attempt in self._folders.ordered():
            known = self._add(job_id, attempt)
            if known.keeper() is None:
                self._send(known)
            self._due(known)

    @classmethod
    def open(
        cls,
        home: str | Path,
        *,
        num_devices: int | None = None,
        warm: bool = True,
        grace_s: float = 120.0,
        hang_s: float = 5.0,
        environment: Mapping[str, str] | None = None,
    ) -> LocalEngine:
        """The engine of this home, with all it has started and not forgotten."""
        return cls(
            Path(home),
            num_devices=num_devices,
            warm=warm,
            grace_s=grace_s,
            hang_s=hang_s,
            environment=environment,
        )

    @property
    def devices_by_node(self) -> tuple[int, ...]:
        return (self._num_devices,)

    @property
    def cold_because(self) -> str:
        """Why workers cannot be forked, if they cannot; known once the zygote is ready."""
        return "" if self._zygote is None else self._zygote.cold_because

    def output_dir(self, job_id: str, attempt: int) -> Path:
        """The folder with ``rank<R>.out`` and ``rank<R>.err`` of this attempt."""
        return self._folders.attempt(job_id, attempt).path

    def start(self, order: StartOrder) -> None:
        file = self._folders.order(order.job_id, order.attempt)
        files = self._folders.attempt(order.job_id, order.attempt)
        if file.exists() or files.claim.exists():
            return
        strangers = [device for device in order.devices if not 0 <= device < self._num_devices]
        if strangers or not order.devices:
            raise EngineError(
                f"job {order.job_id} was given devices {list(order.devices)}: expected one or more of "
                f"0 to {self._num_devices - 1}"
            )
        files.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        failpoint("engine.before_order")
        records.write(file, self._complete(order).to_json())
        failpoint("engine.after_order")
        self._send(self._add(order.job_id, order.attempt))

    def stop(self, job_id: str, attempt: int) -> None:
        known = self._attempts.get(self._folders.order(job_id, attempt).name)
        if known is None or known.is_over():
            return
        known.files.stop.touch()
        keeper = known.keeper()
        if keeper is not None:
            keeper.signal(STOP, signal.SIGCONT)
        elif known.resolve(Fate.STOPPED, 128 + signal.SIGTERM, "stopped before its workers were started"):
            self._due(known)

    def kill(self, job_id: str, attempt: int) -> None:
        known = self._attempts.get(self._folders.order(job_id, attempt).name)
        if known is None or known.is_over():
            return
        known.files.kill.touch()
        keeper = known.keeper()
        if keeper is not None:
            keeper.signal(KILL, signal.SIGCONT)
        elif known.resolve(Fate.STOPPED, KILLED, "killed before its workers were started"):
            self._due(known)

    def poll(self) -> Sequence[EngineEvent]:
        touched: dict[str, Attempt] = {}
        for handle, _ in self._epoll.poll(0):
            if handle == self._nudges:
                touched |= self._read_nudges()
            elif handle in self._ends:
                known, process = self._ends[handle]
                self._unwatch(process)
                touched[known.name] = known
            elif self._zygote is not None and handle == self._zygote.channel.fileno():
                touched |= self._hear_zygote(self._zygote)
        events = [event for known in touched.values() for event in self._look(known)]
        return sorted(events, key=lambda event: event.at_s)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def known(self) -> Sequence[tuple[str, int]]:
        return [(known.job_id, known.attempt) for known in self._attempts.values()]

    def forget(self, job_id: str, attempt: int) -> None:
        name = self._folders.order(job_id, attempt).name
        known = self._attempts.get(name)
        if known is None or not known.is_over():
            return
        (self._folders.orders / name).unlink(missing_ok=True)
        del self._attempts[name]

    def close(self) -> None:
        self._drop_zygote()
        for process in list(self._handles):
            self._unwatch(process)
        self._epoll.close()
        os.close(self._nudges)
        self._lock.release()

    def _complete(self, order: StartOrder) -> Order:
        """The order with all that a keeper must know, for it may have nobody to ask."""
        own = {**self._environment, **order.launch.environment, **order.environment}
        gpus = _gpu_names(self._environment, self._machine.num_gpus)
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
        )

    def _add(self, job_id: str, attempt: int) -> Attempt:
        name = self._folders.order(job_id, attempt).name
        self._attempts[name] = Attempt(name, job_id, attempt, self._folders.attempt(job_id, attempt))
        return self._attempts[name]

    def _send(self, known: Attempt) -> None:
        """Have the zygote fork a keeper.  If it is gone, its end is heard of next, and everything sent again."""
        known.num_tries += 1
        zygote = self._zygote or self._launch_zygote()
        zygote.send(known.name)

    def _due(self, known: Attempt) -> None:
        """Have the next ``poll`` look at this attempt."""
        with contextlib.suppress(BlockingIOError):  # full: there is something to read already
            os.write(self._nudges, f"{known.name}\n".encode())

    def _read_nudges(self) -> dict[str, Attempt]:
        names = os.read(self._nudges, 1 << 16).decode().split("\n")
        return {name: self._attempts[name] for name in names if name in self._attempts}

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

    def _hear_zygote(self, zygote: ZygoteClient) -> dict[str, Attempt]:
        message = zygote.hear()
        if message is None:
            return self._replace_zygote()
        self._num_failed_zygotes = 0
        known = self._attempts.get(message.get("order", ""))
        if known is None:
            return {}
        if known.keeper() is None:
            self._try_again(known, message["reason"])
        return {known.name: known}

    def _replace_zygote(self) -> dict[str, Attempt]:
        """It was killed, or cannot start.  Its keepers go on; orders that none has claimed are given again."""
        self._drop_zygote()
        self._num_failed_zygotes += 1
        if self._num_failed_zygotes < MOST_TRIES:
            self._launch_zygote()
        waiting = {known.name: known for known in self._attempts.values() if known.keeper() is None}
        for known in waiting.values():
            self._try_again(known, f"the process that starts workers ended; see {self._folders.engine}/zygote.log")
        return waiting

    def _try_again(self, known: Attempt, reason: str) -> None:
        """Its keeper died before it had the claim: nothing was started, so it may be tried again."""
        if known.num_tries < MOST_TRIES:
            self._send(known)
        else:
            known.resolve(Fate.LOST, 1, f"its workers could not be started: {reason}")

    def _look(self, known: Attempt) -> list[EngineEvent]:
        """What is new about this attempt."""
        if known.told_end:
            return []
        keeper = known.keeper()
        is_dead = keeper is not None and not self._watch(keeper, known)
        status = known.status()  # after the keeper was looked at: it writes first and ends then
        if status.fate is None and keeper is not None and is_dead and not self._end_left_behind(keeper, known):
            known.write_lost()
            status = known.status()
        events: list[EngineEvent] = []
        if status.started_s is not None and not known.told_start:
            known.told_start = True
            events.append(WorkersStarted(status.started_s, known.job_id, known.attempt))
        if status.fate is not None:
            known.told_end = True
            if keeper is not None:
                self._unwatch(keeper)
            events.append(
                WorkersExited(
                    at_s=status.finished_s or time.time(),
                    job_id=known.job_id,
                    attempt=known.attempt,
                    fate=status.fate,
                    exit_code=status.exit_code,
                    reason=status.reason,
                )
            )
        return events

    def _end_left_behind(self, keeper: Process, known: Attempt) -> bool:
        """Kill what a dead keeper left.  False once there is nothing."""
        processes = left_behind(keeper, str(self._folders.engine), known.job_id, known.attempt)
        for process in processes:
            process.signal(signal.SIGKILL)
        still_there = [process for process in processes if self._watch(process, known)]  # each one is to be watched
        return bool(still_there)

    def _watch(self, process: Process, known: Attempt) -> bool:
        """Have ``poll`` look at the attempt when this process ends.  False when it has already."""
        if process in self._handles:
            return True
        handle = process.open()
        if handle is None:
            return False
        self._handles[process] = handle
        self._ends[handle] = known, process
        self._epoll.register(handle, select.EPOLLIN)
        return True

    def _unwatch(self, process: Process) -> None:
        handle = self._handles.pop(process, None)
        if handle is not None:
            del self._ends[handle]
            self._epoll.unregister(handle)
            os.close(handle)


def _checked(num_devices: int | None, machine: Devices) -> int:
    if num_devices is None:
        return machine.num_workers()
    if num_devices < 1:
        raise EngineError(f"an engine with {num_devices} devices: expected 1 or more")
    if machine.num_gpus and num_devices > machine.num_gpus:
        raise EngineError(f"{num_devices} devices on a machine with {machine.num_gpus} GPUs: ask for at most as many")
    return num_devices


def _gpu_names(environment: Mapping[str, str], num_gpus: int) -> list[str]:
    """What CUDA calls the GPUs that this engine may use."""
    chosen = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (chosen or [str(number) for number in range(num_gpus)])[:num_gpus]


def _open_fifo(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # Read and write: so it never reads as ended when the last keeper is gone, and we can nudge ourselves.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
