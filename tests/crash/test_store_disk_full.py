"""A full disk: nothing half done, nothing acknowledged that is not there, and on it goes when there is room again."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.core.events import CancelRequested
from weft.errors import StoreError
from weft.store import Journal

BULK = [CancelRequested(1.0, "job-1", reason="x" * 1000) for _ in range(100)]


def fill(journal: Journal) -> int:
    """Append until the disk is full.  Returns the number of the last event that was acknowledged."""
    acknowledged = journal.seq
    for _ in range(10_000):
        try:
            acknowledged = journal.append(BULK)
        except StoreError as error:
            assert "full" in str(error) or "limit" in str(error)  # noqa: PT017 - the first of many calls that fails
            return acknowledged
    raise AssertionError("the disk never got full")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a small disk here: needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_reported_and_the_journal_resumes_when_space_is_free(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 500_000)
    path = small_disk / "journal.db"
    with Journal(path) as journal:
        acknowledged = fill(journal)
        assert journal.seq == acknowledged
        with pytest.raises(StoreError, match="free some space"):
            journal.append(BULK)
        ballast.unlink()
        assert journal.append(BULK) == acknowledged + len(BULK)
    with Journal(path) as journal:
        assert [seq for seq, _ in journal.read()] == list(range(1, acknowledged + len(BULK) + 1))


def test_acknowledged_events_survive_a_kill_on_a_full_disk(small_disk: Path) -> None:
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from test_store_disk_full import fill, Journal\n"
        f"print(fill(Journal({str(small_disk / 'journal.db')!r})), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    acknowledged = int(done.stdout)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    with Journal(small_disk / "journal.db") as journal:
        assert acknowledged > 0
        assert [seq for seq, _ in journal.read()][:acknowledged] == list(range(1, acknowledged + 1))
        assert journal.seq == acknowledged


def test_a_file_size_limit_is_handled_like_a_full_disk(tmp_path: Path) -> None:
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(tmp_path / "journal.db") as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, unlimited[1]))
        try:
            acknowledged = fill(journal)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert journal.append(BULK) == acknowledged + len(BULK)
        assert len(list(journal.read())) == acknowledged + len(BULK)
