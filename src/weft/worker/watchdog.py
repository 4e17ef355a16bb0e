"""Finds a worker that hangs while its process lives: an endless loop, a deadlock, a read that never returns.

[Note: never a slow but healthy job]  Off unless ``WEFT_STALL_S`` is set.  A worker is stalled when it has neither
finished a step nor logged anything for that long, and for at least five times its longest step so far; saving does not
count.  That alone ends nothing: while any worker makes progress, the others wait.  Only when all are stalled, or no
longer respond, is the one that is not waiting for another at fault.  It prints its stack and exits; the supervisor
stops the others, which also exit on their own a little later.

Each worker has a thread that writes a line to the workers' store, and reads the other workers' lines once its own
worker is stalled.  The code its main thread is in shows whether a worker waits for others or computes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from weft.core.worker_environment import HUNG_EXIT_CODE
from weft.process.native_threads import NativeThread

_STEPS_OF_PATIENCE = 5.0
_MAX_TICK_S = 5.0
_NUM_TICKS = 10  # in the time after which a worker is stalled
_SURE_AFTER_TICKS = 3
_SILENT_AFTER_TICKS, _SILENT_AFTER_S = 5, 10.0  # both: a busy machine, or a long call, may delay a thread
_LEAVE_AFTER_S = 15.0
# Code in which a worker waits for other workers.  Backward is included: DistributedDataParallel waits there.
_OUR_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_WAITING_IN = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/", _OUR_FOLDER)
_LIBRARIES = ("/site-packages/", "/lib/python3", *_WAITING_IN)
_MAX_FRAMES = 5  # a supervisor shows only the last lines


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's latest line in the store."""

    number: int
    stalled: bool
    waiting: bool
    place: str


class StepBoard(Protocol):
    """Where workers post their beats."""

    def pin(self, rank: int, text: str) -> None: ...
    def read(self, rank: int) -> str | None: ...


class StoreBoard:
    """Uses its own connection: the main thread may be waiting in the other one."""

    def __init__(self, store: Any) -> None:
        self._store: Store = store.clone()

    def pin(self, rank: int, text: str) -> None:
        self._store.set(f"weft/beat/{rank}", text)

    def read(self, rank: int) -> str | None:
        key = f"weft/beat/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The workers at fault; none if all wait for each other."""

    culprits: tuple[int, ...]
    silent: tuple[int, ...]


def judge(beats: Mapping[int, Beat], silent: Sequence[int]) -> Verdict | None:
    """Which workers make the job hang; ``None`` while any worker makes progress.

    >>> judge({0: Beat(9, True, True, ""), 1: Beat(9, True, False, "")}, silent=[])
    Verdict(culprits=(1,), silent=())
    >>> judge({0: Beat(9, True, True, ""), 1: Beat(9, False, False, "")}, silent=[]) is None
    True
    """
    if any(not beat.stalled for rank, beat in beats.items() if rank not in silent):
        return None
    busy = [rank for rank, beat in beats.items() if not beat.waiting and rank not in silent]
    return Verdict(tuple(sorted({*busy, *silent})), tuple(sorted(silent)))


class Watchdog:
    """The training thread reports every step; a separate thread acts."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        stall_s: float,
        board: StepBoard,
        *,
        now: Callable[[], float] = time.monotonic,
        look: Callable[[], FrameType | None] | None = None,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._stall_s = stall_s
        self._board = board
        self._now = now
        self._look = look or _main_frame
        self._leave = leave
        self.tick_s = min(stall_s / _NUM_TICKS, _MAX_TICK_S)
        self._since_s: float | None = None
        self._step_began_s = 0.0
        self._longest_s = 0.0
        self._number = 0
        self._heard: dict[int, tuple[int, int]] = {}  # rank: the newest beat's number, and how many ticks old it is
        self._last_verdict: Verdict | None = None
        self._num_same = 0
        self._blamed: tuple[float, Verdict] | None = None  # when to leave because of whom
        self._closed = threading.Event()
        self._thread: NativeThread | None = None

    # ---- the training thread

    def start(self) -> None:
        self._thread = NativeThread(self._watch, name="weft-watchdog")
        self._thread.start()

    def step_done(self) -> None:
        """Call it when training begins, too."""
        moment_s = self._now()
        if self._since_s is not None:
            self._longest_s = max(self._longest_s, moment_s - self._step_began_s)
        self._step_began_s = self._since_s = moment_s

    def alive(self) -> None:
        """The script has shown a sign of life in the middle of a step."""
        if self._since_s is not None:
            self._since_s = self._now()

    def pause(self) -> None:
        """Any delay is fine until the next ``step_done``."""
        self._since_s = None

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_MAX_TICK_S)

    # ---- the watchdog thread

    def _watch(self) -> None:
        while not self._closed.wait(self.tick_s):
            try:
                self.tick()
            except RuntimeError as error:
                # The process that serves the store is gone: the job is ending, or the workers will notice.
                if self._since_s is not None:
                    reason = str(error).split("\n")[0]
                    print(f"weft: worker {self._rank} no longer watches for hung workers ({reason})", file=sys.stderr)
                return

    def tick(self) -> None:
        """Post our own state; if we are stalled, look at the others."""
        since_s = self._since_s
        limit_s = max(self._stall_s, _STEPS_OF_PATIENCE * self._longest_s)
        stalled = since_s is not None and self._now() - since_s >= limit_s
        frame = self._look()
        self._number += 1
        own = Beat(self._number, stalled, _waits(frame), _place(frame))
        if self._world_size > 1:
            self._board.pin(self._rank, json.dumps(asdict(own)))
        if not stalled:
            self._heard, self._last_verdict, self._num_same, self._blamed = {}, None, 0, None
            return
        beats = {self._rank: own, **self._others()}
        num_ticks = max(_SILENT_AFTER_TICKS, _SILENT_AFTER_S / self.tick_s)
        silent = [rank for rank, (_, age) in self._heard.items() if age >= num_ticks]
        verdict = judge(beats, silent)
        # A worker not heard from yet may be making progress.
        if verdict is not None and len(beats.keys() | set(silent)) < self._world_size:
            verdict = None
        self._num_same = self._num_same + 1 if verdict is not None and verdict == self._last_verdict else 0
        self._last_verdict = verdict
        if verdict is not None and self._num_same >= _SURE_AFTER_TICKS:
            self._act(verdict, beats, frame, limit_s)

    def _others(self) -> dict[int, Beat]:
        found = {}
        for rank in range(self._world_size):
            if rank == self._rank:
                continue
            text = self._board.read(rank)
            beat = None if text is None else Beat(**json.loads(text))
            number, age = self._heard.get(rank, (-1, 0))
            newest = -1 if beat is None else beat.number
            self._heard[rank] = (newest, age + 1 if newest == number else 0)
            if beat is not None:
                found[rank] = beat
        return found

    def _act(self, verdict: Verdict, beats: Mapping[int, Beat], frame: FrameType | None, limit_s: float) -> None:
        if self._rank in verdict.culprits or not verdict.culprits:
            text = f"worker {self._rank} hangs: it has not finished a step in {limit_s:.0f} s"
            if len(verdict.culprits) != 1:
                text = f"no worker has finished a step in {limit_s:.0f} s; they hang or wait for each other: "
                text += ", ".join(f"worker {rank} at {beat.place}" for rank, beat in sorted(beats.items()))
            self._exit([f"{text}; worker {self._rank} is here:", *_stack(frame)])
            return
        # The culprit's own message says more, so wait for it, unless it no longer responds.
        if self._blamed is None:
            self._blamed = self._now() + (0.0 if verdict.silent else _LEAVE_AFTER_S), verdict
        leave_at_s, first = self._blamed
        if self._now() >= leave_at_s:
            named = ", ".join(map(str, first.culprits))
            how = "does not respond: it is stopped, or hangs in native code" if first.silent else "hangs"
            self._exit([f"worker {self._rank} has waited {limit_s:.0f} s for worker {named}, which {how}"])

    def _exit(self, lines: Sequence[str]) -> None:
        """End the process: there is no way to make the main thread raise."""
        sys.stderr.write("".join(f"weft: {line}\n" for line in lines))
        sys.stderr.flush()
        self._leave(HUNG_EXIT_CODE)


class NoWatchdog:
    """Used when ``WEFT_STALL_S`` is not set."""

    def step_done(self) -> None: ...
    def alive(self) -> None: ...
    def pause(self) -> None: ...
    def close(self) -> None: ...


def start_watchdog(rank: int, world_size: int, stall_s: float) -> Watchdog | NoWatchdog:
    """Needs an initialized process group, whose store it uses."""
    if stall_s <= 0.0:
        return NoWatchdog()
    watchdog = Watchdog(rank, world_size, stall_s, StoreBoard(dist.distributed_c10d._get_default_store()))
    watchdog.start()
    return watchdog


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or -1)


def _waits(frame: FrameType | None) -> bool:
    return frame is not None and any(part in frame.f_code.co_filename for part in _WAITING_IN)


def _place(frame: FrameType | None) -> str:
    """The innermost line of the script rather than of a library."""
    inner = frame
    while frame is not None and any(part in frame.f_code.co_filename for part in _LIBRARIES):
        frame = frame.f_back
    frame = frame or inner
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _stack(frame: FrameType | None) -> list[str]:
    if frame is None:
        return []
    return [
        f"  {line}" for entry in traceback.format_stack(frame)[-_MAX_FRAMES:] for line in entry.rstrip().split("\n")
    ]
