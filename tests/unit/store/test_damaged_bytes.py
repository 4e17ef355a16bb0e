"""Random bytes of a real journal are damaged: repair always ends, recovers what can be read, and invents nothing.

The journal is one of a controller that was killed: part of it in the database file, part in the write-ahead log.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import life, replayed, submission
from tests.hang_limit import HANG_S

from weft.control.codec import event_to_json
from weft.core.events import Event
from weft.errors import StoreError
from weft.store import Journal
from weft.store.journal_repair import repair

PAGE_BYTES = 4096
FRAME_BYTES = PAGE_BYTES + 24
BEFORE = [event for number in range(120) for event in life(number)]
AFTER = [*(submission(number) for number in range(1000, 1100)), submission(1100, name="long " * 4000)]
EVENTS: dict[int, Event] = dict(enumerate(BEFORE + AFTER, 1))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a journal that was never closed."""
    folder = tmp_path_factory.mktemp("killed")
    with closing(Journal(folder / "live" / "journal.db")) as journal:
        journal.save_snapshot(journal.append(BEFORE), replayed(BEFORE))
        for start in range(0, len(AFTER), 7):
            journal.append(AFTER[start : start + 7])
        for file in (folder / "live").iterdir():
            shutil.copy(file, folder / file.name)
    return folder


class Damage(NamedTuple):
    """What happens to one place of one file; the place is a fraction of its length."""

    file: str
    kind: str
    place: float
    value: int


damages = st.lists(
    st.builds(
        Damage,
        st.sampled_from(["journal.db", "journal.db-wal", "journal.db.copy"]),
        st.sampled_from(["zero page", "noise page", "flip byte", "truncate", "delete"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=4,
)


def apply(folder: Path, damage: Damage) -> None:
    path = folder / damage.file
    if not path.exists() or not path.stat().st_size:
        return
    data = bytearray(path.read_bytes())
    at = int(damage.place * len(data))
    page = at // PAGE_BYTES * PAGE_BYTES
    if damage.kind == "delete":
        path.unlink()
        return
    if damage.kind == "truncate":
        del data[at:]
    elif damage.kind == "flip byte":
        data[at] ^= damage.value
    else:
        size = len(data[page : page + PAGE_BYTES])
        data[page : page + size] = bytes(size) if damage.kind == "zero page" else bytes([damage.value]) * size
    path.write_bytes(data)


def untouched(original: Path, damaged: Path) -> set[int]:
    """Numbers of the events that stand, whole, in a page or committed frame that nothing happened to."""
    found: set[int] = set()
    for name, first, size in (("journal.db", 0, PAGE_BYTES), ("journal.db-wal", 32, FRAME_BYTES)):
        whole = (original / name).read_bytes()
        left = (damaged / name).read_bytes() if (damaged / name).exists() else b""
        if left[:100] != whole[:100]:
            continue  # the size of a page is written there; what is beyond it may or may not be found
        starts = range(first, len(whole), size)
        if name.endswith("-wal"):  # behind the last mark of a commit that is left nobody knows what was acknowledged
            commits = [at for at in starts if left[at : at + 24] == whole[at : at + 24] and any(left[at + 4 : at + 8])]
            starts = range(first, max(commits, default=0) + 1, size)
        for at in starts:
            if left[at : at + size] == whole[at : at + size]:
                found |= _events_in(whole[at : at + size])
    return found


def _needle(event: Event) -> bytes:
    return json.dumps(event_to_json(event), separators=(",", ":")).encode()


NEEDLES = {seq: _needle(event) for seq, event in EVENTS.items()}


@cache
def _events_in(page: bytes) -> frozenset[int]:
    return frozenset(seq for seq, needle in NEEDLES.items() if needle in page)


@contextmanager
def within(limit_s: int) -> Iterator[None]:
    """Raise if the block has not ended by then."""

    def late(signum: int, frame: object) -> None:
        raise AssertionError(f"still not done after {limit_s} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def repaired_and_checked(killed: Path, what: list[Damage]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("journal.db", "journal.db-wal", "journal.db.copy"):
            shutil.copy(killed / name, folder / name)
        for damage in what:
            apply(folder, damage)
        expected = untouched(killed, folder)
        path = folder / "journal.db"
        with within(int(HANG_S)):
            try:
                done = repair(path)
            except StoreError:
                assert not expected
                return
        with Journal(path) as journal:
            state, seq, tail = journal.load()
            found = dict(journal.read())
        assert found.items() <= EVENTS.items(), "an event that never happened"
        assert expected <= found.keys(), "an event that was there to be read"
        assert state is None or (seq == len(BEFORE) and state == replayed(BEFORE))
        assert [number for number, _ in tail] == [number for number in sorted(found) if number > done.snapshot_seq]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(what=damages)
def test_repairing_random_damage_ends_recovers_what_is_left_and_invents_nothing(
    killed: Path, what: list[Damage]
) -> None:
    repaired_and_checked(killed, what)


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal"])
def test_repair_ends_whichever_page_was_zeroed(killed: Path, name: str) -> None:
    num_pages = (killed / name).stat().st_size // PAGE_BYTES
    for page in range(0, num_pages, max(1, num_pages // 15)):
        repaired_and_checked(killed, [Damage(name, "zero page", (page + 0.5) / (num_pages + 0.5), 1)])
