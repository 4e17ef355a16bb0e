"""``weft run --share``: two runs find the same lease server and take turns on the devices."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.hang_limit import HANG_S

from weft.crossover.lease_launch import SOCKET_NAME
from weft.crossover.run_lease import RunLease

SCRIPT = """
    import os, sys, torch, weft
    from weft.process import gate

    model = torch.nn.Linear(4, 4)
    weft.crossover(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    shared = gate.current()
    print("shared", getattr(shared, "is_shared", False), os.environ.get("WEFT_LEASE", "-"), flush=True)
"""


def run(folder: Path, *options: str, home: str = "home") -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, "-m", "weft", "run", "--workers", "1", *options, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "WEFT_HOME": str(folder / home)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_runs_with_share_find_a_lease_server_say_so_and_leave_none_behind(tmp_path: Path) -> None:
    server = tmp_path / "home" / SOCKET_NAME
    done = run(tmp_path, "--share")
    assert f"shared True {server}" in done.stdout
    assert "no other run shares the devices now" in done.stderr
    assert not server.exists()
    alone = run(tmp_path)
    assert "shared False -" in alone.stdout
    assert "run shares" not in alone.stderr


def test_a_run_uses_the_server_of_a_run_that_goes_on(tmp_path: Path) -> None:
    other = RunLease.opened(tmp_path / "home", "run of another shell")
    assert f"shared True {other.path}" in run(tmp_path, "--share").stdout
    assert other.path.exists()
    other.close()
    assert not other.path.exists()


def test_a_run_that_cannot_share_says_so_and_trains(tmp_path: Path) -> None:
    done = run(tmp_path, "--share", home="x" * 120)
    assert "shared False -" in done.stdout
    assert "does not take turns with other runs:" in done.stderr
    assert "shorter WEFT_HOME" in done.stderr
