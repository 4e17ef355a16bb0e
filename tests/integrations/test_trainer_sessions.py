"""A trainer in a session: stopped on two workers, resumed on one, each sample used once per epoch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S
from tests.integrations.session_scripts import EPOCHS, NUM_SAMPLES

from weft.core.worker_environment import STOPPED_EXIT_CODE

ROOT = Path(__file__).parents[2]


def run(trainer: str, workers: int, folder: Path, **more: str) -> int:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", **more}
    command = [
        sys.executable,
        "-m",
        "weft",
        "run",
        "--workers",
        str(workers),
        "--checkpoint-dir",
        str(folder / "saved"),
    ]
    script = [str(ROOT / "tests/integrations/session_scripts.py"), trainer, str(folder / "ledger")]
    return subprocess.run([*command, *script], env=environment, cwd=folder, timeout=HANG_S).returncode


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_resized_trainer_uses_each_sample_once_per_epoch(trainer: str, tmp_path: Path) -> None:
    stop = tmp_path / "please-stop"
    assert run(trainer, 2, tmp_path, WEFT_STOP_FILE=str(stop), STOP_AT_3="1") == STOPPED_EXIT_CODE
    stop.unlink()
    assert 0 < len((tmp_path / "ledger").read_text().splitlines()) < EPOCHS * NUM_SAMPLES
    assert run(trainer, 1, tmp_path) == 0
    used = Counter((tmp_path / "ledger").read_text().splitlines())
    assert used == Counter(f"{epoch} {index}" for epoch in range(EPOCHS) for index in range(NUM_SAMPLES))
