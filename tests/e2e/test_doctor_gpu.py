"""`weft doctor --gpu` where there are no GPUs: its whole program on two CPU workers, and what it says without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.hang_limit import HANG_S


def doctor(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft", "doctor", "--gpu", *args],
        capture_output=True,
        text=True,
        timeout=2 * HANG_S,  # three stages, each with its own limit
        check=False,
    )


def test_the_doctor_report_says_what_was_found_and_where(tmp_path: Path) -> None:
    done = doctor("--device", "cpu", "--out", str(tmp_path / "report"), "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    written = json.loads(Path(printed["written_to"]).read_text())
    assert written["ok"]
    assert {row["check"] for row in written["rows"]} == {"exactness", "plan changes", "state dict", "speed"}
    ddp, weft, fsdp2 = [row for row in written["rows"] if "step_ms" in row]
    assert [ddp["case"], weft["case"], fsdp2["case"]] == ["ddp", "weft", "fsdp2"]
    # They train the same thing, or their times say nothing about each other.
    assert weft["loss"] == ddp["loss"]
    assert fsdp2["loss"] == pytest.approx(ddp["loss"], rel=1e-4)
    found = {row["case"]: row for row in written["rows"] if row["check"] == "exactness"}
    assert found["transformer, adamw, exact clipping"]["bit_equal"]
    assert "transformer, adamw, clipping" in found
    assert "bit for bit DDP" in (tmp_path / "report" / "report.txt").read_text()
    assert "1 of 3" in done.stderr


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="needs a machine with fewer than two GPUs")
def test_without_gpus_it_says_so(tmp_path: Path) -> None:
    done = doctor("--out", str(tmp_path / "report"))
    assert done.returncode == 3
    assert "at least 2 GPUs" in done.stderr
    assert not (tmp_path / "report").exists()
