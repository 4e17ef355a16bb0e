"""Checkpoints are complete or absent, and say what is wrong with them."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.errors import CheckpointError, UsageError
from weft.worker.checkpoint_folder import CheckpointFolder, verify
from weft.worker.checkpointing import find_checkpoint, load_checkpoint
from weft.worker.manifest import Manifest
from weft.worker.peers import Peers
from weft.worker.rng import capture_rng
from weft.worker.shards import capture_own, capture_replicated, register
from weft.worker.writer import CheckpointPart, CheckpointWriter

ALONE = Peers(0, 1, None)


def make_model(width: int = 8) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 2))


def save(
    path: Path, step: int, model: torch.nn.Module | None = None, keep: int = 3, in_background: bool = False
) -> None:
    registered = register({"model": model or make_model()})
    manifest = Manifest(
        step=step,
        epoch=0,
        position=0,
        world_size=1,
        weft_version="0.0",
        torch_version="0.0",
        finished=False,
        created_s=0.0,
        models=registered.entries(),
    )
    folder = CheckpointFolder(path, keep)
    folder.open()
    writer = CheckpointWriter(folder, ALONE, "token")
    own, replicated = capture_own(registered, 0, 1), capture_replicated(registered)
    writer.write(
        CheckpointPart(manifest, own, replicated, capture_rng(torch.device("cpu"))), in_background=in_background
    )
    writer.finish()
    folder.close()


def steps_in(path: Path) -> list[int]:
    return [verify(checkpoint).step for checkpoint in CheckpointFolder(path, 3).list()]


def newest(path: Path, said: list[str]) -> Path | None:
    folder = CheckpointFolder(path, 3)
    try:
        return find_checkpoint(folder, ALONE, "token", said.append)[0]
    finally:
        folder.close()


def test_saved_state_is_restored(tmp_path: Path) -> None:
    model, other = make_model(), make_model()
    save(tmp_path, 3, model, in_background=True)
    found = newest(tmp_path, [])
    assert found is not None
    assert load_checkpoint(found, register({"model": other})).step == 3
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, step, keep=2)
    assert steps_in(tmp_path) == [5, 4]


@pytest.mark.parametrize("file", ["rank-00000.pt", "replicated.pt", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_newest_is_skipped_with_a_message(tmp_path: Path, file: str, damage: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    victim = tmp_path / "step-000000000002" / file
    content = bytearray(victim.read_bytes())
    if damage == "remove":
        victim.unlink()
    elif damage == "cut":
        victim.write_bytes(content[: len(content) // 2])
    else:
        content[0] ^= 0xFF
        victim.write_bytes(content)
    said: list[str] = []
    found = newest(tmp_path, said)
    assert found is not None
    assert found.name == "step-000000000001"
    assert len(said) == 1
    assert file in said[0]


def test_a_newer_format_is_refused_rather_than_skipped(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    manifest = tmp_path / "step-000000000002" / "manifest.json"
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**values, "format": 99, "weft_version": "9.9"}))
    with pytest.raises(CheckpointError, match=r"format 99.*newer version \(9\.9\).*upgrade"):
        newest(tmp_path, [])
    assert manifest.exists()


def test_another_model_is_named_by_its_first_differing_parameter(tmp_path: Path) -> None:
    save(tmp_path, 1)
    found = newest(tmp_path, [])
    assert found is not None
    with pytest.raises(CheckpointError, match=r"0\.weight is float32\[8, 4\] in the checkpoint and float32\[9, 4\]"):
        load_checkpoint(found, register({"model": make_model(9)}))
    with pytest.raises(CheckpointError, match=r"2\.weight .* is in this model but not in the checkpoint"):
        load_checkpoint(found, register({"model": make_model().append(torch.nn.Linear(2, 2))}))
    with pytest.raises(CheckpointError, match="has no model teacher="):
        load_checkpoint(found, register({"teacher": make_model()}))
    with pytest.raises(CheckpointError, match="has no average="):
        load_checkpoint(found, register({"model": make_model(), "average": Average()}))


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written .* WEFT_CHECKPOINT_DIR"):
        newest(tmp_path / "file" / "checkpoints", [])


def test_an_object_without_state_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="epoch= a int"):
        register({"epoch": 3})
    with pytest.raises(UsageError, match=r"add model=\.\.\."):
        register({"optimizer": torch.optim.SGD(make_model().parameters(), lr=0.1)})


def test_leftovers_of_a_killed_run_are_removed_and_never_used_as_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / ".writing-000000000009-dead").mkdir()
    (tmp_path / ".leaving-step-000000000000-1").mkdir()
    found = newest(tmp_path, [])
    assert found is not None
    assert found.name == "step-000000000001"
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-000000000001"]


def test_a_checkpoint_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    save(tmp_path, 1)
    checkpoint = tmp_path / "step-000000000001"
    torch.save({"parameters": {}, "runs": [Average()]}, checkpoint / "rank-00000.pt")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_checkpoint(checkpoint, register({"model": make_model()}))


def test_a_full_disk_is_an_error_that_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    for in_background in (False, True):
        path = tmp_path / str(in_background)
        save(path, 1)
        before = verify(path / "step-000000000001")
        message = in_child(_save_on_full_disk, str(path), in_background)
        assert "the checkpoint of step 2 was not written" in message
        assert "File too large" in message
        assert "older ones are unchanged" in message
        assert verify(path / "step-000000000001") == before
        assert steps_in(path) == [1]
        assert not [name for name in os.listdir(path) if name.startswith(".writing")]


def test_two_runs_in_one_folder_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path, 3)
    folder.open()
    assert "another run is using the checkpoint folder" in in_child(_open_impatiently, str(tmp_path), False)
    folder.close()
    assert in_child(_open_impatiently, str(tmp_path), False) == ""


class Average:
    def state_dict(self) -> dict[str, float]:
        return {"value": 1.0}

    def load_state_dict(self, state: dict[str, float]) -> None:
        raise AssertionError("must not be reached")


def in_child(body: Any, path: str, in_background: bool) -> str:
    """The output of a separate process: resource limits and file locks belong to a process."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_tell, args=(body, path, in_background, theirs))
    process.start()
    said: str = ours.recv()
    process.join()
    return said


def _tell(body: Any, path: str, in_background: bool, pipe: Any) -> None:
    try:
        body(Path(path), in_background)
        pipe.send("")
    except CheckpointError as error:
        pipe.send(str(error))


def _save_on_full_disk(path: Path, in_background: bool) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    save(path, 2, make_model(100_000), in_background=in_background)


def _open_impatiently(path: Path, in_background: bool) -> None:
    import weft.worker.checkpoint_folder as module

    module._LOCK_PATIENCE_S = 0.0
    CheckpointFolder(path, 3).open()
