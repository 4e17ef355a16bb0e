"""The example behind ``scripts/demo overlap``: it must run, and its claim of equal losses must hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.testbed import missing_reason
from tests.hang_limit import HANG_S

DEMO = Path(__file__).resolve().parents[2] / "examples" / "overlap_demo.py"


def run_demo(path: str) -> str:
    done = subprocess.run(
        (sys.executable, str(DEMO), "--steps", "3"),
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.netns
@pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))
def test_the_demo_on_a_shaped_link_gives_equal_losses() -> None:
    said = run_demo(os.environ["PATH"])
    assert "the link now carries" in said
    assert "All 3 losses are identical bit for bit" in said


def test_the_demo_without_its_tools_says_it_will_show_no_gain() -> None:
    said = run_demo("/nowhere")
    assert "the gain will not show" in said
    assert "All 3 losses are identical bit for bit" in said
