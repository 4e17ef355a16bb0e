"""A trainer in a session: stopped on two workers, resumed on one, each sample used once per epoch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S
from tests.integrations.session_scripts import BATCH, EPOCHS, NUM_SAMPLES

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


def resize(trainer: str, tmp_path: Path) -> None:
    """Stop in the first epoch on two workers, and finish on one."""
    assert run(trainer, 2, tmp_path, STOP_AT_3="1") == STOPPED_EXIT_CODE
    assert 0 < len((tmp_path / "ledger").read_text().splitlines()) < EPOCHS * NUM_SAMPLES
    assert run(trainer, 1, tmp_path) == 0


@pytest.mark.parametrize("trainer", ["lightning", "transformers", "accelerate"])
def test_a_resized_trainer_uses_each_sample_once_per_epoch(trainer: str, tmp_path: Path) -> None:
    resize(trainer, tmp_path)
    used = Counter((tmp_path / "ledger").read_text().splitlines())
    assert used == Counter(f"{epoch} {index}" for epoch in range(EPOCHS) for index in range(NUM_SAMPLES))


def test_a_resumed_hugging_face_trainer_counts_the_steps_before_it(tmp_path: Path) -> None:
    """Otherwise its logs start at step 0 again, over the earlier ones."""
    resize("transformers", tmp_path)
    epochs, steps = (tmp_path / "ledger.end").read_text().split()
    assert (float(epochs), int(steps)) == (EPOCHS, EPOCHS * NUM_SAMPLES // BATCH)


def test_an_epoch_that_lightning_resumed_ends_like_any_other(tmp_path: Path) -> None:
    """Its learning-rate schedule takes a step, and the model is validated once."""
    resize("lightning", tmp_path)
    learning_rate, steps = (tmp_path / "ledger.end").read_text().split()
    assert (float(learning_rate), int(steps)) == (0.5**EPOCHS, EPOCHS * NUM_SAMPLES // BATCH)
    assert (tmp_path / "ledger.validated").read_text().split() == [str(epoch) for epoch in range(EPOCHS)]
