"""A trainer in a session: stopped on two workers, resumed on one, each sample used once per epoch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
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


Resized = Callable[[str], Path]


@pytest.fixture(scope="module")
def resized(tmp_path_factory: pytest.TempPathFactory) -> Resized:
    """A trainer's folder after it was stopped in the first epoch on two workers, and finished on one."""

    @cache
    def resize(trainer: str) -> Path:
        folder = tmp_path_factory.mktemp(trainer)
        assert run(trainer, 2, folder, STOP_AT_3="1") == STOPPED_EXIT_CODE
        assert 0 < len((folder / "ledger").read_text().splitlines()) < EPOCHS * NUM_SAMPLES
        assert run(trainer, 1, folder) == 0
        return folder

    return resize


@pytest.mark.parametrize("trainer", ["lightning", "transformers", "accelerate"])
def test_a_resized_trainer_uses_each_sample_once_per_epoch(resized: Resized, trainer: str) -> None:
    used = Counter((resized(trainer) / "ledger").read_text().splitlines())
    assert used == Counter(f"{epoch} {index}" for epoch in range(EPOCHS) for index in range(NUM_SAMPLES))


def test_a_resumed_hugging_face_trainer_counts_the_steps_before_it(resized: Resized) -> None:
    """Otherwise its logs start at step 0 again, over the earlier ones."""
    epochs, steps = (resized("transformers") / "ledger.end").read_text().split()
    assert (float(epochs), int(steps)) == (EPOCHS, EPOCHS * NUM_SAMPLES // BATCH)


def test_an_epoch_that_lightning_resumed_ends_like_any_other(resized: Resized) -> None:
    """Its learning-rate schedule takes a step, and the model is validated once."""
    folder = resized("lightning")
    learning_rate, steps = (folder / "ledger.end").read_text().split()
    assert (float(learning_rate), int(steps)) == (0.5**EPOCHS, EPOCHS * NUM_SAMPLES // BATCH)
    assert (folder / "ledger.validated").read_text().split() == [str(epoch) for epoch in range(EPOCHS)]
