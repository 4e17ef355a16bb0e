"""Every example runs, learns, stops, and resumes."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from weft.core.worker_environment import CHECKPOINT_DIR, STOP_FILE, STOPPED_EXIT_CODE
from weft.engines.gang import Gang
from weft.engines.output import Console
from weft.engines.pool_client import PoolClient
from weft.engines.rendezvous import Rendezvous
from weft.engines.supervisor import CaughtSignals
from weft.engines.worker_launch import Devices, Script, gang

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolClient]:
    pool = PoolClient.launch(warm=True, environment=os.environ)
    yield pool
    pool.close()


class Example:
    """Runs one example as ``weft run`` does, but in a pool that all tests share."""

    def __init__(self, pool: PoolClient, folder: Path) -> None:
        self.pool = pool
        self.folder = folder

    def run(self, name: str, *args: str, workers: int, stop: bool = False) -> tuple[int, str]:
        """The exit code, and what was printed. With ``stop`` it is asked to stop from the beginning."""
        stop_file = self.folder / "please-stop"
        stop_file.touch() if stop else stop_file.unlink(missing_ok=True)
        environment = {**os.environ, CHECKPOINT_DIR: str(self.folder / "ckpt"), STOP_FILE: str(stop_file)}
        script = Script(str(ROOT / "examples" / name), args, cwd=str(self.folder))
        devices = Devices.of_this_machine({})
        with open(self.folder / "printed", "w+b") as printed, CaughtSignals() as signals:
            with Rendezvous(self.pool) as place:
                members = gang(
                    script,
                    num_workers=workers,
                    devices=devices,
                    port=place.port,
                    environment={**environment, **place.environment},
                )
                started = Gang(self.pool, members, Console(printed.fileno(), printed.fileno()))
                place.serve(environment, devices.cores)
                outcome = started.run(signals)
            printed.seek(0)
            return outcome.exit_code, printed.read().decode() + "\n".join(outcome.report)


@pytest.fixture
def example(pool: PoolClient, tmp_path: Path) -> Example:
    return Example(pool, tmp_path)


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", printed)]


def test_image_classification_learns_on_two_workers(example):
    code, printed = example.run("image_classification.py", "--epochs", "1", "--images", "1024", workers=2)
    assert code == 0, printed
    found = re.search(r"\[0\] epoch \d+: (\d+\.\d)% of 512 new images classified correctly", printed)
    assert found is not None
    assert float(found.group(1)) > 50.0  # guessing gives 25


def test_the_language_model_resumes_with_a_different_number_of_workers(example):
    arguments = ("--steps", "45", "--batch-size", "16")
    code, printed = example.run("language_model.py", *arguments, workers=2, stop=True)
    assert code == STOPPED_EXIT_CODE, printed
    stopped = re.search(r"stopped after step (\d+), saved", printed)
    assert stopped is not None
    code, printed = example.run("language_model.py", *arguments, workers=1)
    assert code == 0, printed
    assert f"resuming at step {stopped.group(1)} " in printed
    assert "it writes:" in printed
    assert losses(printed)[-1] < 3.2  # 3.6 for letters at random


def test_plain_ddp_script_runs_unchanged_and_learns(example):
    code, printed = example.run("ddp_before.py", "--epochs", "6", workers=2)
    assert code == 0, printed
    assert losses(printed)[-1] < 0.65  # 0.69 for a coin


def test_the_same_script_with_weft_learns_as_well(example):
    code, printed = example.run("ddp_after.py", "--epochs", "6", workers=2)
    assert code == 0, printed
    assert losses(printed)[-1] < 0.65


def test_the_diff_in_the_docs_is_the_diff_of_the_examples():
    before, after = ((ROOT / "examples" / name).read_text().splitlines() for name in ("ddp_before.py", "ddp_after.py"))
    diff = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    code_only = [line for line in diff if not line.startswith("@@")]
    shown = re.search(r"```diff\n(.*?)```", (ROOT / "docs" / "sessions.md").read_text(), re.DOTALL)
    assert shown is not None
    # The docstrings differ too, which says nothing: the page starts behind them.
    start = next(number for number, line in enumerate(code_only) if "distributed as dist" in line) - 1
    assert shown.group(1).splitlines() == code_only[start:]
