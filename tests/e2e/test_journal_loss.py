"""A journal that lost events: the controller refuses to start, harms nothing, and says what to do."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.test_controller_cli import SLEEPER, Cluster, cleaned_up, is_gone


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cleaned_up(tmp_path) as made:
        (tmp_path / "sleeper.py").write_text(SLEEPER)
        yield made


def kill_controller(cluster: Cluster) -> None:
    pid = cluster.home.holder()
    assert pid
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([handle], [], [])
    os.close(handle)


def empty(journal: Path) -> None:
    journal.write_bytes(b"")
    journal.with_name(journal.name + "-wal").unlink(missing_ok=True)


def without_log(journal: Path) -> None:
    journal.with_name(journal.name + "-wal").unlink()


@pytest.mark.parametrize("damage", [empty, without_log])
def test_a_journal_that_lost_a_running_job_is_rejected_and_nothing_is_killed_or_overwritten(
    cluster: Cluster, damage: Callable[[Path], None]
) -> None:
    cluster.up()
    kept = cluster.ok("submit", "--", "true").strip()
    cluster.ok("wait", kept)
    cluster.ok("down")  # writes the copy
    cluster.up()
    job_id = cluster.ok("submit", "--", sys.executable, "sleeper.py").strip()
    pids = cluster.pids_of_workers(job_id)
    kill_controller(cluster)
    journal = cluster.home.journal_file
    damage(journal)
    files = [file for file in journal.parent.glob("journal.sqlite*") if not file.name.endswith("-shm")]
    before = {file: file.read_bytes() for file in files}
    refused = cluster.run("up", "--port", "0", "--devices", "2", "--cold")
    assert refused.returncode == 1
    assert "`weft repair`" in refused.stderr
    assert "`weft up --accept-loss`" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert {file: file.read_bytes() for file in before} == before
    assert not any(map(is_gone, pids)), "the workers were killed"
    repaired = cluster.json("repair")
    assert repaired["unknown_attempts"] == [{"job": job_id, "attempt": 1}]
    again = cluster.run("up", "--port", "0", "--devices", "2", "--cold")
    assert again.returncode == 1
    assert job_id in again.stderr
    assert not any(map(is_gone, pids))
    cluster.up("--accept-loss")
    assert [row["id"] for row in cluster.json("status")["jobs"]] == [kept]
    cluster.ok("down", "--jobs")
    assert all(map(is_gone, pids)), "a worker that nobody knows is left"


def test_a_waiting_job_lost_with_the_log_is_detected(cluster: Cluster) -> None:
    cluster.up()
    for _ in range(3):
        cluster.ok("submit", "--workers", "2", "--", sys.executable, "sleeper.py")
    kill_controller(cluster)
    without_log(cluster.home.journal_file)
    refused = cluster.run("up", "--port", "0", "--devices", "2", "--cold")
    assert refused.returncode == 1
    assert "`weft up --accept-loss`" in refused.stderr
    cluster.up("--accept-loss")
    assert cluster.json("status")["jobs"] == []


def test_the_journal_copy_survives_an_accepted_loss(cluster: Cluster) -> None:
    cluster.up()
    cluster.ok("wait", cluster.ok("submit", "--", "true").strip())
    cluster.ok("down")
    copied = cluster.home.root / "journal.sqlite.copy"
    before = copied.read_bytes()
    empty(cluster.home.journal_file)
    cluster.up("--accept-loss")
    assert [file.read_bytes() for file in cluster.home.root.glob("journal.sqlite.copy.lost-*")] == [before]


def test_repairing_an_intact_journal_changes_nothing(cluster: Cluster) -> None:
    cluster.up()
    refused = cluster.run("repair")
    assert refused.returncode == 1
    assert "weft down" in refused.stderr
    cluster.ok("down")
    before = cluster.home.journal_file.read_bytes()
    assert "nothing to repair" in cluster.ok("repair")
    assert cluster.home.journal_file.read_bytes() == before
