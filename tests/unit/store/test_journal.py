"""What a user would lose with a journal that forgets, mixes up, or lets two controllers write."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from journals import HOSTILE, held, life, replayed, submission

from weft.core.events import CancelRequested
from weft.errors import StoreError
from weft.store import Journal, schema
from weft.store.journal import NUM_KEPT_SNAPSHOTS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a'; home" / "journal.db"


def test_appended_events_are_read_back_in_order(path: Path) -> None:
    events = [event for number in range(3) for event in life(number)] + [submission(9, name=HOSTILE)]
    with Journal(path) as journal:
        assert journal.append(events[:4]) == 4
        assert journal.append([]) == 4
        assert journal.append(events[4:]) == len(events)
    with Journal(path, create=False) as journal:
        assert journal.seq == len(events)
        assert list(journal.read()) == list(enumerate(events, 1))
        assert [seq for seq, _ in journal.read(after=14)] == [15, 16]


def test_an_empty_journal_has_no_state_and_no_events(path: Path) -> None:
    with Journal(path) as journal:
        assert journal.load() == (None, 0, [])


def test_recovery_is_the_snapshot_plus_later_events(path: Path) -> None:
    before, after = life(1) + life(2), life(3)
    with Journal(path) as journal:
        journal.save_snapshot(journal.append(before), replayed(before))
        journal.append(after)
        assert journal.num_events_since_snapshot == len(after)
    with Journal(path) as journal:
        state, seq, tail = journal.load()
    assert state == replayed(before)
    assert seq == len(before)
    assert [event for _, event in tail] == after
    assert replayed([event for _, event in tail], state) == replayed(before + after)


def test_a_snapshot_of_unwritten_events_is_rejected(path: Path) -> None:
    with Journal(path) as journal, pytest.raises(StoreError, match="append first"):
        journal.save_snapshot(1, replayed([]))


def test_history_stays_bounded_and_recovery_complete(path: Path) -> None:
    events = [event for number in range(40) for event in life(number)]
    with Journal(path, num_kept_events=20) as journal:
        for start in range(0, len(events), 20):
            seq = journal.append(events[start : start + 20])
            journal.save_snapshot(seq, replayed(events[:seq]))
        journal.append(life(99))
        _, seq, tail = journal.load()
        assert [number for number, _ in tail] == list(range(seq + 1, journal.seq + 1))
        numbers = [number for number, _ in journal.read()]
        assert len(numbers) <= 20 * NUM_KEPT_SNAPSHOTS + len(life(99))
    with Journal(path) as journal:
        state, _, tail = journal.load()
        assert replayed([event for _, event in tail], state) == replayed(events + life(99))


def test_concurrent_threads_lose_and_reorder_nothing(path: Path) -> None:
    with Journal(path) as journal:

        def submit(first: int) -> None:
            for number in range(first, first + 20):
                journal.append([submission(number)])

        threads = [threading.Thread(target=submit, args=(100 * index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = list(journal.read())
    assert [seq for seq, _ in found] == list(range(1, 81))
    assert len({event.spec.id for _, event in found}) == 80  # type: ignore[union-attr]


def test_only_its_owner_may_read_it(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_snapshot(journal.append(life(1)), replayed(life(1)))
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_a_second_controller_is_refused_and_the_journals_holder_is_named(path: Path) -> None:
    with (
        held(f"from weft.store import Journal\njournal = Journal({str(path)!r})") as pid,
        pytest.raises(StoreError, match=f"in use by process {pid} .*weft down"),
    ):
        Journal(path)
    with Journal(path) as journal:  # the kernel gave the lock back
        assert journal.append([submission(1)]) == 1


def test_another_tool_that_holds_the_journal_is_named(path: Path) -> None:
    Journal(path).close()
    program = (
        f"import sqlite3\ndb = sqlite3.connect({str(path)!r}, isolation_level=None)\ndb.execute('BEGIN EXCLUSIVE')"
    )
    with held(program) as pid, pytest.raises(StoreError, match=f"process {pid} "):
        Journal(path)


def test_a_journal_of_a_newer_weft_is_refused_and_not_touched(path: Path) -> None:
    Journal(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema SET version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer weft \(schema 99; this one supports up to 3\)"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_journal_of_the_first_version_is_migrated_with_all_it_holds(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path, isolation_level=None) as connection:
        schema.migrate(connection, path, schema.MIGRATIONS[:1])
        assert schema.version(connection) == 1
        old = '{"v":1,"event":"CancelRequested","at_s":1.0,"job_id":"job-1"}'
        connection.execute("INSERT INTO events (seq, body) VALUES (1, ?)", (old,))
    connection.close()
    with Journal(path) as journal:
        journal.append([submission(2)])
        assert list(journal.read()) == [(1, CancelRequested(1.0, "job-1")), (2, submission(2))]
    with sqlite3.connect(path) as connection:
        assert schema.version(connection) == len(schema.MIGRATIONS) == 3
    connection.close()


def test_a_migration_that_fails_leaves_the_old_tables(tmp_path: Path) -> None:
    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE events")
        raise sqlite3.OperationalError("no")

    with sqlite3.connect(tmp_path / "journal.db", isolation_level=None) as connection:
        schema.migrate(connection, tmp_path)
        with pytest.raises(sqlite3.OperationalError):
            schema.migrate(connection, tmp_path, [*schema.MIGRATIONS, broken])
        assert schema.version(connection) == len(schema.MIGRATIONS)
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)
    connection.close()


def test_a_missing_journal_is_reported(path: Path) -> None:
    with pytest.raises(StoreError, match="there is no journal at"):
        Journal(path, create=False)
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created"):
        Journal(tmp_path / "file" / "home" / "journal.db")
