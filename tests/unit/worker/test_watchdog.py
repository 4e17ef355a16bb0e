"""A hung worker is found and named; a slow one is left alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from weft.core.worker_environment import HUNG_EXIT_CODE
from weft.worker.watchdog import NoWatchdog, Watchdog, start_watchdog


def frame_in(file: str) -> FrameType:
    """A frame as if the code of ``file`` were running."""
    space: dict[str, Any] = {"sys": sys}
    exec(compile("def here():\n    return sys._getframe()", file, "exec"), space)
    found: FrameType = space["here"]()
    return found


COMPUTING = frame_in("/home/me/train.py")
WAITING = frame_in("/venv/site-packages/torch/distributed/distributed_c10d.py")


class Pinned:
    def __init__(self) -> None:
        self.texts: dict[int, str] = {}

    def pin(self, rank: int, text: str) -> None:
        self.texts[rank] = text

    def read(self, rank: int) -> str | None:
        return self.texts.get(rank)


class Job:
    """Watchdogs of several workers on one clock; ``left`` says which workers ended, and when."""

    def __init__(self, *frames: FrameType, stall_s: float = 10.0) -> None:
        self.now_s = 0.0
        self.frames = list(frames)
        self.left: dict[int, tuple[float, int]] = {}
        self.mute: set[int] = set()
        board = Pinned()
        self.dogs = [
            Watchdog(
                rank,
                len(frames),
                stall_s,
                board,
                now=lambda: self.now_s,
                look=self._looker(rank),
                leave=self._leaver(rank),
            )
            for rank in range(len(frames))
        ]
        for dog in self.dogs:
            dog.step_done()

    def _looker(self, rank: int) -> Callable[[], FrameType | None]:
        return lambda: self.frames[rank]

    def _leaver(self, rank: int) -> Callable[[int], None]:
        return lambda code: self.left.setdefault(rank, (self.now_s, code)) and None

    def let_pass(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += self.dogs[0].tick_s
            meanwhile()
            for rank, dog in enumerate(self.dogs):
                if rank not in self.left and rank not in self.mute:
                    dog.tick()


def test_the_worker_that_loops_is_named_and_leaves_first(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(WAITING, COMPUTING, WAITING)
    job.let_pass(60.0)
    assert job.left[1][1] == HUNG_EXIT_CODE
    assert job.left[1][0] < 20.0
    assert job.left[0][0] - job.left[1][0] >= 10.0  # time for a supervisor to end them
    said = capsys.readouterr().err
    assert said.splitlines()[0].startswith("weft: worker 1 hangs: it has not finished a step in 10 s")
    assert "/home/me/train.py" in said
    assert "worker 0 has waited 10 s for worker 1, which hangs" in said


def test_no_worker_is_ended_while_any_worker_makes_progress() -> None:
    job = Job(WAITING, COMPUTING)
    job.let_pass(300.0, lambda: job.dogs[1].alive())  # rank 0 waits at a barrier while rank 1 evaluates and logs
    assert job.left == {}


def test_steps_that_end_now_and_then_are_progress() -> None:
    job = Job(COMPUTING, COMPUTING)

    def finish_a_step_every_8_s() -> None:
        if job.now_s % 8.0 == 0.0:
            for dog in job.dogs:
                dog.step_done()

    job.let_pass(200.0, finish_a_step_every_8_s)
    assert job.left == {}


def test_a_worker_has_five_times_its_longest_step() -> None:
    job = Job(COMPUTING, WAITING)
    job.now_s = 9.0
    for dog in job.dogs:
        dog.step_done()
    job.let_pass(44.0)
    assert job.left == {}
    job.let_pass(10.0)
    assert 0 in job.left


def test_saving_may_take_any_time() -> None:
    job = Job(COMPUTING, WAITING)
    for dog in job.dogs:
        dog.pause()
    job.let_pass(600.0)
    assert job.left == {}


def test_a_silent_worker_is_named_by_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(WAITING, COMPUTING)
    job.let_pass(3.0)
    job.mute.add(1)  # stopped, or in native code that never lets go of the interpreter
    job.let_pass(40.0)
    assert job.left[0][1] == HUNG_EXIT_CODE
    assert "for worker 1, which does not respond" in capsys.readouterr().err


def test_all_workers_of_a_deadlock_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(WAITING, WAITING)
    job.let_pass(30.0)
    assert set(job.left) == {0, 1}
    assert "they hang or wait for each other: worker 0 at" in capsys.readouterr().err


def test_a_worker_that_is_alone_is_watched_too() -> None:
    job = Job(COMPUTING)
    job.let_pass(30.0)
    assert job.left[0][1] == HUNG_EXIT_CODE


def test_the_watchdog_is_off_by_default() -> None:
    assert isinstance(start_watchdog(0, 2, stall_s=0.0), NoWatchdog)
