"""A journal written before a job's ``name`` became its ``id`` and its ``title`` its ``name``: no job is lost."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.awaiting import until
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.control.state import Job
from weft.core.cluster import Cluster
from weft.daemon.api.rows import job_detail, sentence_row
from weft.daemon.history import History
from weft.daemon.home import Home
from weft.daemon.recovery import replayed
from weft.daemon.service import Controller
from weft.store import Journal, copy
from weft.store.journal_repair import repair

HERE = Path(__file__).parent
SAID_THEN: list[dict[str, Any]] = json.loads((HERE / "journal_version_1.json").read_text())
NUM_EVENTS, SNAPSHOT_SEQ = 29, 18


@pytest.fixture
def path(home: Home) -> Path:
    with closing(sqlite3.connect(home.journal_file)) as connection:
        connection.executescript((HERE / "journal_version_1.sql").read_text())
    return home.journal_file


def said_now(path: Path) -> list[dict[str, Any]]:
    with Journal.open(path, create=False) as journal:
        state, past = replayed(journal, Cluster((2,)), History()), History()
        for _, event in journal.read():
            past.note(event)
        rows = [_row(job, past) for job in state.jobs.values()]
    # A row may gain fields; those it had stay.
    return [{key: row[key] for key in SAID_THEN[0]} for row in rows]


def _row(job: Job, past: History) -> dict[str, Any]:
    assert job.launch is not None
    return {
        **job_detail(job, {}),
        "environment": dict(job.launch.environment),
        "max_restarts": job.launch.max_restarts,
        "requested_workers": job.spec.requested_workers,
        "sizes": list(job.spec.sizes),
        "may_share": job.spec.may_share,
        "history": [sentence_row(sentence) for sentence in past.of(job.id)],
    }


def versions(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [json.loads(body)["v"] for (body,) in connection.execute("SELECT body FROM events ORDER BY seq")]


def test_every_job_of_an_older_journal_is_read_as_it_was(path: Path) -> None:
    assert versions(path) == [1] * NUM_EVENTS
    assert {row["state"] for row in SAID_THEN} == {"COMPLETED", "FAILED", "CANCELLED", "RUNNING", "PENDING"}
    assert said_now(path) == SAID_THEN


def test_a_newer_weft_goes_on_writing_to_an_older_journal(
    path: Path, open_controller: Callable[..., Controller], engine: ScriptedEngine
) -> None:
    over = [row for row in SAID_THEN if row["finished_s"]]
    controller = open_controller()
    assert [(job.id, job_detail(job, {})["name"]) for job in controller.jobs()] == [
        (row["id"], row["name"]) for row in SAID_THEN
    ]
    explained = [[sentence_row(one) for one in controller.explain(row["id"])] for row in over]
    assert [sentences[: len(row["history"])] for sentences, row in zip(explained, over, strict=True)] == [
        row["history"] for row in over
    ]
    added = controller.submit(a_job(name="new"))
    controller.shutdown()
    controller.join()
    assert versions(path)[NUM_EVENTS - 1 : NUM_EVENTS + 1] == [1, 2]
    again = open_controller()
    until(lambda: again.job(added).name == "new", "the new job")
    assert [job.id for job in again.jobs()] == [row["id"] for row in SAID_THEN] + [added]


def test_an_older_journal_is_repaired_with_all_its_jobs(path: Path) -> None:
    done = repair(path)
    assert (done.snapshot_seq, done.num_events, done.missing) == (SNAPSHOT_SEQ, NUM_EVENTS - SNAPSHOT_SEQ, ())
    assert said_now(path) == SAID_THEN


def test_the_copy_of_an_older_journal_brings_its_jobs_back(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        copy.write(path, connection.execute("SELECT seq, body, crc32 FROM snapshots ORDER BY seq DESC").fetchone())
    path.write_bytes(b"\xff" * 4096)
    assert repair(path).snapshot_seq == SNAPSHOT_SEQ
    then = [{**row, "history": []} for row in SAID_THEN if row["finished_s"]]
    assert said_now(path) == then
