from __future__ import annotations

import os
from collections.abc import Sequence

from weft.core.status_rows import JobDetail
from weft.demo.contest import play, throw_away_controller
from weft.demo.queue import QUEUE, QueuedJob, scaled


def test_a_queue_on_a_throw_away_controller_ends_well_and_leaves_nothing() -> None:
    queue = (QueuedJob("first", 0.0, 40), QueuedJob("second", 0.2, 20))
    seen: list[tuple[str, str]] = []

    def look(now_s: float, rows: Sequence[JobDetail]) -> None:
        seen.extend((row["name"], row["state"]) for row in rows)

    with throw_away_controller("balanced", num_devices=2) as client:
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
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return words.encode() in file.read()
    except OSError:
        return False


def test_a_longer_queue_keeps_its_shape() -> None:
    longer = scaled(QUEUE, 2.0, steps_per_epoch=20)
    assert [job.num_steps for job in longer] == [2 * job.num_steps for job in QUEUE]
    assert [job.arrives_s for job in longer] == [2 * job.arrives_s for job in QUEUE]
