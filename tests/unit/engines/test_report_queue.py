"""Which reports of a node's workers the controller gets at once."""

from __future__ import annotations

import json

from weft.engines.ray.report_queue import NUM_AWAITED, ReportQueue


def report(step: int, *, job: str = "job", attempt: int = 1, rank: int = 0) -> bytes:
    message = {"kind": "step", "job_id": job, "attempt": attempt, "rank": rank, "world_size": 2, "step": step}
    return json.dumps({**message, "step_s": 0.1}).encode()


def heard(queue: ReportQueue, data: bytes) -> bool:
    """Whether the controller waits for it."""
    queue.add(data)
    awaited = queue.is_awaited
    assert queue.take() == [data]
    assert not queue.is_awaited
    return awaited


def test_the_controller_gets_the_reports_that_end_a_start_at_once_and_the_others_in_batches() -> None:
    queue = ReportQueue()
    assert [heard(queue, report(step)) for step in range(5)] == [True] * NUM_AWAITED + [False] * (5 - NUM_AWAITED)
    assert heard(queue, report(6, attempt=2))
    assert heard(queue, report(1, job="another"))


def test_only_what_the_controller_measures_is_hurried() -> None:
    queue = ReportQueue()
    assert not heard(queue, report(1, rank=1))
    assert not heard(queue, b"not a report")
    assert heard(queue, report(1))


def test_an_attempt_that_is_over_leaves_nothing_behind() -> None:
    queue = ReportQueue()
    for step in range(NUM_AWAITED):
        heard(queue, report(step))
    queue.forget("job", 1)
    assert heard(queue, report(9))
