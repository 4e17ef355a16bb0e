"""A damaged journal is refused, kept, and rebuilt with everything that can still be read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from journals import held, life, replayed, submission

from weft.control.codec import CodecError
from weft.core.events import ProgressReported
from weft.errors import StoreError
from weft.store import Journal, copy, schema
from weft.store.journal_repair import repair

BEFORE = [event for number in range(200) for event in life(number)]
AFTER = [submission(number) for number in range(1000, 1100)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed journal: a snapshot with 200 jobs, then 100 submissions."""
    path = tmp_path / "journal.db"
    with Journal(path) as journal:
        journal.save_snapshot(journal.append(BEFORE), replayed(BEFORE))
        journal.append(AFTER)
    return path


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_smashed_file_is_refused_kept_and_rebuilt_from_the_copy(path: Path) -> None:
    overwrite(path, 0, b"\xff" * 4096)
    damaged = path.read_bytes()
    with pytest.raises(StoreError, match=r"is damaged .* was not changed.*`weft repair`"):
        Journal(path)
    assert path.read_bytes() == damaged
    done = repair(path)
    assert done.snapshot_seq == len(BEFORE)
    assert done.kept_as is not None
    assert done.kept_as.read_bytes() == damaged
    with Journal(path) as journal:
        assert journal.load()[0] == replayed(BEFORE)


def test_an_event_of_a_newer_weft_is_named_and_nothing_is_changed(path: Path) -> None:
    seq, body = len(BEFORE + AFTER) + 1, '{"v":1,"event":"JobTeleported","at_s":1.0}'
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO events VALUES (?, ?, ?)", (seq, body, schema.checksum(seq, body)))
    with Journal(path) as journal:
        with pytest.raises(CodecError, match=rf"event {seq} of .*'JobTeleported'.*use the weft that wrote it"):
            journal.load()
        assert journal.seq == seq


def test_a_broken_page_loses_only_its_own_events(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        leaves = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    assert leaves == len([*(event for event in BEFORE if not isinstance(event, ProgressReported)), *AFTER])
    needle = b'"job-1050"'
    overwrite(path, path.read_bytes().rindex(needle) // 4096 * 4096, b"\x00" * 4096)
    with pytest.raises(StoreError, match="is damaged"):
        Journal(path)
    done = repair(path)
    assert 0 < len(done.missing) < 30
    with Journal(path) as journal:
        state, seq, tail = journal.load()
        assert state == replayed(BEFORE)
        lost = set(done.missing)
        assert tail == [(number, event) for number, event in enumerate(AFTER, seq + 1) if number not in lost]
        assert journal.append([submission(5000)]) == len(BEFORE + AFTER) + 1


def test_a_flipped_bit_inside_an_event_is_detected(path: Path) -> None:
    at = path.read_bytes().rindex(b"job-1050")
    overwrite(path, at, b"job-1951")
    with Journal(path) as journal, pytest.raises(StoreError, match="does not match its checksum"):
        journal.load()
    assert repair(path).missing == (len(BEFORE) + 51,)


def test_a_broken_snapshot_is_replaced_by_the_one_before_it(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_snapshot(journal.seq, replayed(BEFORE + AFTER))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE snapshots SET body = x'00' WHERE seq = (SELECT max(seq) FROM snapshots)")
    with Journal(path) as journal:
        state, seq, tail = journal.load()
    assert seq == len(BEFORE)
    assert replayed([event for _, event in tail], state) == replayed(BEFORE + AFTER)


def test_a_lost_journal_is_not_silently_replaced_by_an_empty_one(path: Path) -> None:
    path.unlink()
    with pytest.raises(StoreError, match="would lose the jobs"):
        Journal(path)
    assert repair(path).kept_as is None
    with Journal(path) as journal:
        assert journal.load()[0] == replayed(BEFORE)


def test_an_unreadable_journal_without_a_copy_is_reported_and_not_changed(path: Path) -> None:
    copy.place(path).unlink()
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match="nothing can be read"):
        repair(path)
    assert path.read_bytes() == b"no database at all" * 1000


def test_a_damaged_copy_is_not_used_instead_of_a_readable_journal(path: Path) -> None:
    with closing(sqlite3.connect(copy.place(path), isolation_level=None)) as connection:
        connection.execute("UPDATE snapshots SET body = x'00'")
    assert f"the state after event {len(BEFORE)} and {len(AFTER)} events" in str(repair(path))
    with Journal(path) as journal:
        assert journal.load()[0] == replayed(BEFORE)


def test_a_journal_in_use_is_not_repaired(path: Path) -> None:
    with (
        held(f"from weft.store import Journal\njournal = Journal({str(path)!r})"),
        pytest.raises(StoreError, match="in use"),
    ):
        repair(path)


def test_the_copy_holds_the_newest_snapshot_and_nothing_half_written(path: Path) -> None:
    found = copy.read(path)
    assert found is not None
    seq, body, crc32 = found
    assert (seq, crc32) == (len(BEFORE), schema.checksum(seq, body))
    assert {file.name for file in path.parent.iterdir()} == {"journal.db", "journal.db.copy", "journal.db.mark"}


def test_repairing_twice_keeps_both_damaged_files(path: Path) -> None:
    kept = []
    for _ in range(2):
        overwrite(path, 0, b"\xff" * 4096)
        done = repair(path)
        kept.append(done.kept_as)
    assert len(set(kept)) == 2
