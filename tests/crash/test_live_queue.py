"""The queue of a real controller with real processes keeps moving, whatever is in it."""

from __future__ import annotations

from tests.crash.conftest import Begin
from tests.crash.driven_controller import check_diary

PRIORITIES = (400, -1000, 0, 1_000_000)


def test_jobs_of_every_priority_share_devices_even_after_the_controller_was_killed(begin: Begin) -> None:
    controller = begin().ready()
    first = [controller.submit(2, priority=priority) for priority in PRIORITIES]
    for job_id in first:
        controller.until(job_id, {"COMPLETED"})
    running = controller.submit(100_000, priority=-400)
    controller.until(running, {"RUNNING"}, step=1)
    waiting = [controller.submit(2, priority=priority) for priority in PRIORITIES]
    controller.kill()
    controller = begin().ready()
    waiting.append(controller.submit(2))
    for job_id in waiting:
        controller.until(job_id, {"COMPLETED"})
    assert controller.job(running)["state"] != "FAILED"
    check_diary(controller.folder)
    controller.end_everything()


def test_a_job_shorter_than_its_startup_runs_before_the_long_job_ends(begin: Begin) -> None:
    controller = begin().ready()
    long = controller.submit(1_000_000, 0.05, max_workers=2, total_steps=1_000_000)
    controller.until(long, {"RUNNING"}, step=20)
    while len(controller.until(long, {"RUNNING"})["devices"]) < 2:
        controller.ask("wait", job_ids=[long], timeout_s=0.05)
    short = controller.submit(2, 0.01, total_steps=2)
    controller.until(short, {"COMPLETED"})
    assert controller.job(long)["finished_s"] is None
    controller.end_everything()
