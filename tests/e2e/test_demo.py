from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from weft.core.status_rows import JobDetail
from weft.demo.contest import play, temporary_controller
from weft.demo.queue import QueuedJob


def test_the_demo_queue_completes_on_a_temporary_controller_and_leaves_nothing_behind() -> None:
    queue = (QueuedJob("first", 0.0, 40), QueuedJob("second", 0.2, 20))
    seen: list[tuple[str, str]] = []

    def look(now_s: float, rows: Sequence[JobDetail]) -> None:
        seen.extend((row["name"], row["state"]) for row in rows)

    with temporary_controller("balanced", num_devices=2) as client:
        played = play(client, queue, min_workers=1, max_workers=2, on_look=look)
        home = client.home.root
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and _mentions(int(name), str(home))]
        assert pids, "expected the controller's processes to be found by their home"
    assert [job.name for job in played.completions] == ["first", "second"]
    assert all(job.took_s > 0 for job in played.completions)
    assert ("first", "RUNNING") in seen
    assert ("second", "COMPLETED") in seen
    assert not home.exists()
    assert not [pid for pid in pids if _mentions(pid, str(home))]


def _mentions(pid: int, words: str) -> bool:
    try:
        return words.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
