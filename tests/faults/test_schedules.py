"""Whatever happens to the machine, no acknowledged job is lost and each sample counts exactly once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.faults.kinds import KINDS, NEEDS_OWN_DISK

ROOT = Path(__file__).parents[2]
SHORT = (
    ("kill_controller", "kill_worker", "slow_disk", "lose_run"),
    ("disk_full", "kill_keeper", "clock_jump", "kill_zygote"),
    ("flood", "permission_denied", "lose_lease_server", "misplaced_file"),
    ("kill_everything", "stop_and_continue", "damaged_knowledge", "damaged_attempt"),
)
"""Every kind of fault once; `scripts/bench soak` runs hundreds of random schedules."""


def faults(*options: str) -> list[str]:
    return [sys.executable, "-m", "tests.faults", *options]


@pytest.mark.parametrize("number", range(len(SHORT)))
def test_no_schedule_of_faults_loses_a_job_or_a_sample(number: int) -> None:
    """The last one with a real session beside the small jobs."""
    session = "--session" if number == len(SHORT) - 1 else "--no-session"
    command = faults("--seed", str(number), "--kinds", ",".join(SHORT[number]), session)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    happened = {kind for kind in KINDS if re.search(rf"^{kind} +[1-9]", done.stdout, re.MULTILINE)}
    assert set(SHORT[number]) - happened <= NEEDS_OWN_DISK


def test_every_kind_of_fault_is_in_the_short_version() -> None:
    assert sorted(kind for kinds in SHORT for kind in kinds) == sorted(KINDS)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak_of_seeded_schedules(capfd: pytest.CaptureFixture[str]) -> None:
    """``WEFT_FAULT_SCHEDULES`` of them, ``WEFT_FAULT_PARALLEL`` at once.  Interrupted, it resumes where it was."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    results = Path(tempfile.gettempdir(), f"weft-faults-{os.getuid()}-{head.stdout.strip()}.jsonl")
    num, parallel = os.environ.get("WEFT_FAULT_SCHEDULES", "500"), os.environ.get("WEFT_FAULT_PARALLEL", "2")
    command = faults("--seed", "1000", "--num", num, "--parallel", parallel, "--results", str(results))
    with capfd.disabled():  # a line for each schedule, as it ends
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
