"""Journals that older versions of weft wrote: no job is lost.

Version 1 was written before a job's ``name`` became its ``id`` and its ``title`` its ``name``; version 2 before its
step, step time, and loss became its ``progress``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.daemon.awaiting import until
from tests.unit.daemon.conftest import a_job
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.control.codec import VERSION
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


@dataclass(frozen=True, slots=True)
class OlderJournal:
    """A journal, and what the weft that wrote it said about its jobs."""

    version: int
    num_events: int
    snapshot_seq: int

    @property
    def said_then(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((HERE / f"journal_version_{self.version}.json").read_text())
        return rows

    def write_to(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript((HERE / f"journal_version_{self.version}.sql").read_text())


@pytest.fixture(params=[OlderJournal(1, 29, 18), OlderJournal(2, 34, 25)], ids=["version 1", "version 2"])
def older(request: pytest.FixtureRequest) -> OlderJournal:
    journal: OlderJournal = request.param
    return journal


@pytest.fixture
def path(home: Home, older: OlderJournal) -> Path:
    older.write_to(home.journal_file)
    return home.journal_file


def said_now(path: Path, fields: Iterable[str]) -> list[dict[str, Any]]:
    with Journal(path, create=False) as journal:
        state, past = replayed(journal, Cluster((2,)), History()), History()
        for _, event in journal.read():
            past.note(event)
        rows = [_row(job, past) for job in state.jobs.values()]
    # A row may gain fields; those it had stay.
    return [{key: row[key] for key in fields} for row in rows]


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


def test_every_job_of_an_older_journal_is_read_unchanged(path: Path, older: OlderJournal) -> None:
    assert versions(path) == [older.version] * older.num_events
    said_then = older.said_then
    assert {row["state"] for row in said_then} == {"COMPLETED", "FAILED", "CANCELLED", "RUNNING", "PENDING"}
    assert said_now(path, said_then[0]) == said_then


def test_a_newer_weft_continues_an_older_journal(
    path: Path, older: OlderJournal, open_controller: Callable[..., Controller], engine: ScriptedEngine
) -> None:
    said_then = older.said_then
    controller = open_controller()
    assert [(job.id, job_detail(job, {})["name"]) for job in controller.jobs()] == [
        (row["id"], row["name"]) for row in said_then
    ]
    for row in said_then:
        told = [sentence_row(one) for one in controller.explain(row["id"])]
        assert told[: len(row["history"])] == row["history"]
        again = [one for one in told[len(row["history"]) :] if one in row["history"]]
        assert not again, "what happened since the last snapshot is told once"
    added = controller.submit(a_job(name="new"))
    controller.shutdown()
    controller.join()
    found = versions(path)  # old events first; reports that a snapshot has made unnecessary are gone
    assert found == sorted(found)
    assert set(found) == {older.version, VERSION}
    again = open_controller()
    until(lambda: again.job(added).name == "new", "the new job")
    assert [job.id for job in again.jobs()] == [row["id"] for row in said_then] + [added]


def test_an_older_journal_is_repaired_with_all_its_jobs(path: Path, older: OlderJournal) -> None:
    done = repair(path)
    assert (done.snapshot_seq, done.num_events, done.missing) == (
        older.snapshot_seq,
        older.num_events - older.snapshot_seq,
        (),
    )
    assert said_now(path, older.said_then[0]) == older.said_then


def test_the_copy_of_an_older_journal_brings_its_jobs_back(path: Path, older: OlderJournal) -> None:
    with closing(sqlite3.connect(path)) as connection:
        copy.write(path, connection.execute("SELECT seq, body, crc32 FROM snapshots ORDER BY seq DESC").fetchone())
    path.write_bytes(b"\xff" * 4096)
    assert repair(path).snapshot_seq == older.snapshot_seq
    # Events after the snapshot are gone; the copy has what the jobs were then.
    now = said_now(path, older.said_then[0])
    over = [{**row, "history": []} for row in older.said_then if row["finished_s"]]
    assert [row for row in now if row["finished_s"]] == over
    assert all(row["history"] == [] for row in now)
