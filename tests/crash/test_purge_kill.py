"""Kill -9 the controller at every step of a purge: kept jobs survive, and the next purge finishes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.daemon.scripted_engine import ScriptedEngine

from weft.daemon.history import History
from weft.daemon.recovery import load_state
from weft.process.failpoints import FAILPOINTS, VARIABLE
from weft.store import Journal

POINTS = [name for name in FAILPOINTS if name.startswith(("purge.", "compact."))]
CONTROLLER = """
import sys
from pathlib import Path
from tests.unit.daemon.awaiting import until_over
from tests.unit.daemon.scripted_engine import ScriptedEngine
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.home import Home
from weft.daemon.service import Controller
from weft.store import Journal

home = Home(Path(sys.argv[1]))
home.prepare()
controller = Controller(home, Journal(home.journal_file), ScriptedEngine(num_devices=1))
controller.start()
if not controller.jobs():
    ids = [controller.submit(Submission(Launch(("true",), "/"))) for _ in range(5)]
    for job_id in ids[2:]:
        home.checkpoints(job_id).mkdir(parents=True, exist_ok=True)
        controller.cancel(job_id)
    until_over(controller, ids[2:])
    print(*ids, flush=True)
controller.purge(1e-9)
controller.shutdown()
controller.join()
"""


def run(home: Path, point: str = "") -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", VARIABLE: point}
    return subprocess.run(
        [sys.executable, "-c", CONTROLLER, str(home)], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_during_a_purge_loses_nothing_that_should_be_kept(point: str, tmp_path: Path) -> None:
    killed = run(tmp_path / "home", point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept, over = set(killed.stdout.split()[:2]), set(killed.stdout.split()[2:])
    with Journal(tmp_path / "home" / "journal.sqlite") as journal:
        found = set(load_state(journal, ScriptedEngine(num_devices=1), History()).jobs)
    assert kept <= found <= kept | over
    assert run(tmp_path / "home").returncode == 0
    with Journal(tmp_path / "home" / "journal.sqlite") as journal:
        assert set(load_state(journal, ScriptedEngine(num_devices=1), History()).jobs) == kept
    assert not [job_id for job_id in over if (tmp_path / "home" / "jobs" / job_id).exists()]
