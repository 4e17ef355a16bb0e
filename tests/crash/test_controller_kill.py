"""The controller is killed at every fail point; nothing acknowledged is lost, and nothing runs twice.

Real processes: a controller (``controller_driver``) and jobs (``counting_job``) that report, save, and resume.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.conftest import Begin
from tests.crash.driven_controller import ControllerDied, DrivenController, check_diary, diary
from tests.hang_limit import HANG_S

from weft.process.failpoints import FAILPOINTS

OURS = tuple(name for name in FAILPOINTS if not name.startswith(("keeper.", "purge.", "compact.")))
"""Fail points that a controller reaches by running jobs; keepers and purging have their own tests."""
SEVERAL_TIMES = {
    *("journal.before_commit", "journal.after_commit", "controller.before_start", "controller.after_start"),
    *("engine.before_order", "engine.after_order", "controller.before_forget", "controller.after_forget"),
}
"""Fail points that each of the story's three jobs passes at least once."""
_FINAL = {"COMPLETED", "FAILED", "CANCELLED"}


class Story:
    """Three jobs on two devices: one is cancelled, then killed; one grows when there is room; one just runs."""

    def __init__(self) -> None:
        self.stubborn = self.growing = self.short = ""

    def play(self, controller: DrivenController) -> None:
        controller.ready()
        self.stubborn = self.stubborn or controller.submit(100_000, stubborn=True)
        self.growing = self.growing or controller.submit(150, max_workers=2)
        self.short = self.short or controller.submit(20)
        # Once it makes steps it is past the point where a signal would still end it.  The policy may have asked it to
        # make room for the short job in the meantime.
        if controller.until(self.stubborn, {"RUNNING", "STOPPING", *_FINAL}, step=1)["state"] not in _FINAL:
            controller.ask("cancel", job_id=self.stubborn)
            controller.ask("cancel", job_id=self.stubborn)
        controller.ask("wait", job_ids=[self.stubborn, self.growing, self.short], timeout_s=HANG_S)
        controller.ask("shutdown", stop_jobs=False)

    def check(self, controller: DrivenController, folder: Path) -> None:
        for job in controller.ask("jobs"):
            if job["id"] == self.stubborn or job["id"] not in (self.growing, self.short):
                # A cancel without an answer may not have been recorded: repeat it (twice), as its owner would.
                controller.ask("cancel", job_id=job["id"])
                controller.ask("cancel", job_id=job["id"])
        jobs = {job["id"]: job for job in controller.ask("jobs")}
        acknowledged = [job_id for job_id in (self.stubborn, self.growing, self.short) if job_id]
        assert set(acknowledged) <= jobs.keys(), "an acknowledged job was lost"
        states = controller.ask("wait", job_ids=list(jobs), timeout_s=HANG_S)
        for job_id in acknowledged:
            assert states[job_id] == ("CANCELLED" if job_id == self.stubborn else "COMPLETED"), jobs[job_id]
        for job_id in (self.growing, self.short):
            attempts = {line[2] for line in diary(folder) if line[0] == "done" and line[1] == job_id}
            assert len(attempts) == (1 if job_id else 0), "done once, by one attempt"
        check_diary(folder)


def killed_at(begin: Begin, folder: Path, point: str, nth: int, num_kills: int, away: Callable[[], None]) -> int:
    """Play the story, dying at the point repeatedly, then restart for good; returns how often it died."""
    story, num_died = Story(), 0
    for _ in range(num_kills):
        controller = begin(environment={"WEFT_FAILPOINT": f"{point}:{nth}"})
        with contextlib.suppress(ControllerDied):
            story.play(controller)
        code = controller.close()
        assert code in (0, -signal.SIGKILL), (folder / "controller.err").read_text()[-2000:]
        num_died += code != 0
        if not code:
            break
        away()
    controller = begin().ready()
    story.check(controller, folder)
    controller.leave()
    return num_died


def test_there_are_enough_controller_fail_points() -> None:
    assert len(OURS) >= 12


@pytest.mark.parametrize("point", OURS)
def test_a_controller_killed_at_a_fail_point_loses_nothing_and_starts_nothing_twice(
    point: str, begin: Begin, tmp_path: Path
) -> None:
    assert killed_at(begin, tmp_path, point, 1, num_kills=2, away=lambda: None) >= 1, f"{point} was never reached"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("point", OURS)
def test_a_controller_killed_later_and_repeatedly_loses_nothing(
    point: str, seed: int, begin: Begin, tmp_path: Path
) -> None:
    chance = random.Random(f"{point} {seed}")
    away_s = chance.choice([0.0, 0.0, 0.5, 2.0])
    nth = chance.randint(1, 3 if point in SEVERAL_TIMES else 1)
    num_died = killed_at(begin, tmp_path, point, nth, num_kills=3, away=lambda: time.sleep(away_s))
    assert num_died >= 1, f"{point} was not reached {nth} times"


def steps_of(folder: Path, job_id: str) -> int:
    text = (folder / f"step-{job_id}").read_text() if (folder / f"step-{job_id}").exists() else ""
    return int(text or 0)


def until_step(folder: Path, job_id: str, step: int) -> None:
    """Read the step from the job's own file; there is no controller to ask."""
    deadline_s = time.monotonic() + HANG_S
    while steps_of(folder, job_id) < step:
        assert time.monotonic() < deadline_s, f"{job_id} does not get to step {step}"
        time.sleep(0.01)


def absent_three_times(begin: Begin, folder: Path, away: Callable[[str], None]) -> None:
    controller = begin().ready()
    job_id = controller.submit(100_000)
    for _ in range(3):
        until_step(folder, job_id, steps_of(folder, job_id) + 10)
        controller.kill()
        before = steps_of(folder, job_id)
        away(job_id)
        assert steps_of(folder, job_id) > before, "the job did not continue without the controller"
        controller = begin().ready()
        job = controller.until(job_id, {"RUNNING"})
        assert (job["attempt"], job["restarts"]) == (1, 0)
    controller.leave()
    assert len([line for line in diary(folder) if line[0] == "start"]) == 1


def test_jobs_keep_running_through_three_controller_outages(begin: Begin, tmp_path: Path) -> None:
    absent_three_times(begin, tmp_path, lambda job_id: until_step(tmp_path, job_id, steps_of(tmp_path, job_id) + 20))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("away_s", [0, 20, 60])
def test_jobs_keep_running_during_a_long_controller_outage(begin: Begin, tmp_path: Path, away_s: int) -> None:
    def away(job_id: str) -> None:
        time.sleep(away_s)
        until_step(tmp_path, job_id, steps_of(tmp_path, job_id) + 1)

    absent_three_times(begin, tmp_path, away)
