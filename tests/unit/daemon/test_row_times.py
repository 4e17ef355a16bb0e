"""Waiting and running time go on while nothing else about a job changes."""

from __future__ import annotations

import json

import pytest
from tests.fake_controller import FakeController

from weft.control.state import JobState
from weft.daemon.api.row_texts import RowTexts
from weft.daemon.api.rows import job_row, times_s


def test_waiting_and_running_time_add_up_to_the_time_since_submission() -> None:
    job = FakeController().add(
        state=JobState.RUNNING, devices=(0,), started_s=30.0, changed_s=70.0, ran_s=25.0, submitted_s=10.0
    )
    assert times_s(job, 100.0) == (35.0, 55.0)
    assert times_s(FakeController().add(submitted_s=10.0), 100.0) == (90.0, 0.0)


def test_a_job_of_an_older_journal_ran_from_its_start_to_its_end() -> None:
    job = FakeController().add(state=JobState.COMPLETED, started_s=30.0, finished_s=90.0, submitted_s=10.0)
    assert times_s(job, 1000.0) == (20.0, 60.0)


def test_rows_that_are_kept_as_text_do_not_stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    job = FakeController().add(state=JobState.RUNNING, devices=(0,), changed_s=0.0, submitted_s=0.0)
    texts, seen = RowTexts(), []
    for now_s in (100.0, 250.0):
        monkeypatch.setattr("time.time", lambda now_s=now_s: now_s)
        (row,) = json.loads(texts.jobs([job], {}))["jobs"]
        assert list(row) == list(job_row(job, {}))
        seen.append(row["ran_s"])
    assert seen == [100.0, 250.0]
