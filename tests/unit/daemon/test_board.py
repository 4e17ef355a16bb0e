"""Open dashboards see everything that changes, and are sent nothing else."""

from __future__ import annotations

import json
from typing import Any

from tests.fake_controller import FakeController

from weft.control.queue_order import QueuePlace
from weft.control.state import JobState
from weft.daemon.api.board import UPDATE_EVERY_S, Board
from weft.daemon.contract import Decision


class Site:
    """A controller, a board and its clock."""

    def __init__(self, num_jobs: int) -> None:
        self.controller = FakeController()
        self.ids = [self.controller.add(number=number).id for number in range(num_jobs)]
        self.now_s = 0.0
        self.board = Board(self.controller, lambda: self.now_s)
        self.num_looks = 0
        ask = self.controller.jobs

        def counted() -> list[Any]:
            self.num_looks += 1
            return ask()

        self.controller.jobs = counted  # type: ignore[method-assign]

    def look(self, since: str = "", after_s: float = 2 * UPDATE_EVERY_S) -> dict[str, Any]:
        self.now_s += after_s
        found: dict[str, Any] = json.loads(self.board.changes(since))
        return found

    def change(self, job_id: str, **values: Any) -> None:
        self.controller.change(job_id, **values)


def test_the_first_read_has_everything_and_the_next_only_changes() -> None:
    site = Site(50)
    first = site.look()
    assert first["whole"]
    assert [row["id"] for row in first["jobs"]] == site.ids
    assert first["health"]["policy"] == "balanced"
    assert first["nodes"] is not None
    site.change(site.ids[7], state=JobState.RUNNING, step=3)
    second = site.look(first["version"])
    assert not second["whole"]
    assert [(row["id"], row["step"], row["number"]) for row in second["jobs"]] == [(site.ids[7], 3, 7)]
    third = site.look(second["version"])
    assert third["version"] == second["version"]
    assert third["jobs"] == []


def test_a_reader_that_was_away_for_several_versions_misses_none_of_them() -> None:
    site = Site(5)
    version = site.look()["version"]
    for step, job_id in enumerate((*site.ids, *site.ids[:2])):
        site.change(job_id, step=step + 1)
        site.look()
    site.controller.made_decisions.append(Decision(1.0, {}, {site.ids[0]: "why"}))
    rows = site.look(version)
    assert {row["id"]: row["step"] for row in rows["jobs"]} == dict(zip(site.ids, (6, 7, 3, 4, 5), strict=True))
    assert [one["reasons"] for one in rows["decisions"]] == [{site.ids[0]: "why"}]
    assert site.look(rows["version"])["decisions"] == []


def test_many_readers_cost_one_update() -> None:
    site = Site(10)
    version = site.look()["version"]
    site.change(site.ids[0], step=9)
    site.now_s += 2 * UPDATE_EVERY_S
    before = site.num_looks
    answers = [site.board.changes(version) for _ in range(20)]
    assert site.num_looks == before + 1
    assert len({id(answer) for answer in answers}) == 1


def test_a_reader_of_another_controller_or_before_a_purge_starts_over() -> None:
    site = Site(3)
    version = site.look()["version"]
    for strange in ("", "x", "deadbeef-1", version + "9" * 30, version.split("-")[0] + "--1"):
        assert site.look(strange)["whole"]
    del site.controller.by_id[site.ids[1]]
    rows = site.look(version)
    assert rows["whole"]
    assert [row["id"] for row in rows["jobs"]] == [site.ids[0], site.ids[2]]


def test_a_guessed_start_that_nobody_sees_sends_no_job_again() -> None:
    site = Site(4)
    first, *others = site.ids
    site.controller.places = {job_id: QueuePlace(1 + n, 10.0, n == 0) for n, job_id in enumerate(site.ids)}
    version = site.look()["version"]
    # As after each decision: every place is computed again from the current time.
    site.controller.places = {job_id: QueuePlace(1 + n, 20.0, n == 0) for n, job_id in enumerate(site.ids)}
    rows = site.look(version)
    assert [(row["id"], row["expected_start_s"]) for row in rows["jobs"]] == [(first, 20.0)]
    del site.controller.places[first]
    site.controller.places |= {job_id: QueuePlace(1 + n, 20.0, False) for n, job_id in enumerate(others)}
    rows = site.look(rows["version"])
    assert {row["id"]: row["queue_position"] for row in rows["jobs"]} == dict(
        zip(site.ids, (None, 1, 2, 3), strict=True)
    )
