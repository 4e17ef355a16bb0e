"""``weft run --share``: two runs find the same lease server and take turns on the devices."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from weft.crossover.lease_launch import SOCKET_NAME

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


def run(folder: Path, *options: str) -> str:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, "-m", "weft", "run", "--workers", "1", *options, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "WEFT_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """One that ends with the test; the one `weft run` would start stays for the next run."""
    path = tmp_path / "home" / SOCKET_NAME
    path.parent.mkdir(mode=0o700)
    process = subprocess.Popen([sys.executable, "-m", "weft.crossover.server", "--socket", str(path)])
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)  # it says nothing when it listens
    yield path
    process.terminate()
    assert process.wait(timeout=HANG_S) == 0


def test_runs_with_share_use_one_lease_server_and_others_none(server: Path, tmp_path: Path) -> None:
    assert f"shared True {server}" in run(tmp_path, "--share")
    assert f"shared True {server}" in run(tmp_path, "--share")
    assert "shared False -" in run(tmp_path)
