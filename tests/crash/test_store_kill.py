"""Kill -9 the writer of a journal at each of its fail points: what was acknowledged is there, and nothing is torn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import UsageError
from weft.process.failpoints import FAILPOINTS, VARIABLE, failpoint
from weft.store import Journal

POINTS = [name for name in FAILPOINTS if name.startswith(("journal.", "snapshot.", "backup."))]

WRITER = """
import sys
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import JobSubmitted
from weft.core.job import JobSpec
from weft.store import Journal

journal = Journal(sys.argv[1])
state, seq, tail = journal.load()
state = state or State(Cluster((2,)))
for _, event in tail:
    state, _ = reduce(state, event)
while True:
    events = [JobSubmitted(1.0, JobSpec(f"job-{journal.seq + offset}", 1.0)) for offset in range(3)]
    seq = journal.append(events)
    print(seq, flush=True)
    for event in events:
        state, _ = reduce(state, event)
    if seq % 9 == 0:
        journal.save_snapshot(seq, state)
"""


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_fail_point_three_times_in_a_row_nothing_acknowledged_is_lost(point: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    acknowledged = 0
    for nth in (1, 2, 3):
        environment = {**os.environ, VARIABLE: f"{point}:{nth}"}
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(path)], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        acknowledged = int((done.stdout.split() or [acknowledged])[-1])
        with Journal(path) as journal:
            state, _, tail = journal.load()
            jobs = list(state.jobs) if state is not None else []
            jobs += [event.spec.id for _, event in tail]  # type: ignore[union-attr]
            assert jobs == [f"job-{number}" for number in range(journal.seq)]
            assert journal.seq - acknowledged in (0, 3)  # killed after the commit and before it could say so
            assert journal.seq % 3 == 0


def test_a_fail_point_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "journal.before_comit")
    with pytest.raises(UsageError, match=r"journal\.before_commit"):
        failpoint("journal.before_commit")


def test_there_are_enough_fail_points_and_each_is_in_the_sources() -> None:
    sources = "\n".join(file.read_text() for file in (Path(__file__).parents[2] / "src" / "weft").rglob("*.py"))
    assert len(set(FAILPOINTS)) == len(FAILPOINTS) >= 12
    own = [name for name in FAILPOINTS if not name.startswith("controller.")]
    assert [name for name in own if f'failpoint("{name}")' not in sources] == []
