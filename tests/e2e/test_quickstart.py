"""A newcomer's first five minutes: every command of docs/quickstart.md, in order, as a newcomer would type it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from weft.client import Client

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
FIRST_EPOCHS = "100"
"""How long the first job of the page trains; long enough to be resized."""


class Newcomer:
    """A folder with the examples, a home of its own, and a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        (folder / "examples").symlink_to(ROOT / "examples")
        self.environment = {
            **os.environ,
            "WEFT_HOME": str(self.home),
            "WEFT_UP_PORT": "0",
            "WEFT_UP_HOLD_S": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def type(self, command: str) -> str:
        program, *words = shlex.split(command)
        assert program == "weft", f"the test only knows weft: {command}"
        done = subprocess.run(
            [sys.executable, "-m", "weft", *words],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            cwd=self.folder,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    made = Newcomer(tmp_path)
    yield made
    if (made.home / "token").exists():
        subprocess.run(
            [sys.executable, "-m", "weft", "down", "--jobs"], env=made.environment, timeout=HANG_S, check=False
        )


def walk_through(newcomer: Newcomer, epochs: str) -> dict[str, str]:
    """What each command printed, by command."""
    return {command: newcomer.type(command.replace(f" {FIRST_EPOCHS}", f" {epochs}")) for command in COMMANDS}


def test_every_command_of_the_quickstart_works_and_the_jobs_complete(newcomer: Newcomer) -> None:
    assert len(COMMANDS) >= 10
    said = walk_through(newcomer, epochs="3")
    assert "COMPLETED" in said["weft status first second"]
    assert "step 30: loss" in said["weft logs first"]
    assert "30 to spirals.pt" in said["weft checkpoint export first --out spirals.pt"]
    assert (newcomer.folder / "spirals.pt").exists()
    assert "completed" in said["weft explain first"]


@pytest.mark.soak
def test_a_newcomer_sees_a_job_resized_and_why(newcomer: Newcomer) -> None:
    said = walk_through(newcomer, epochs=FIRST_EPOCHS)
    told = said["weft explain first"]
    assert "1 worker for at least 1 s to measure its speed, then up to 2" in told
    assert "2 workers, the most it can use" in told
    assert "stopped as requested: stopped after a checkpoint" in told


def test_the_page_shows_only_fields_and_codes_that_exist() -> None:
    assert hasattr(Client, "submit_command")
    headings = next(line for line in PAGE.splitlines() if line.startswith("ID "))
    assert headings.split() == ["ID", "NAME", "STATE", "WORKERS", "STEP", "RESTARTS", "WAITED", "RAN", "REASON"]
