"""SIGKILL at any moment of saving leaves exactly the old or exactly the new checkpoint, never a mixture or a ruin."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from weft.worker.checkpoint import CheckpointFolder, verify
from weft.worker.manifest import Manifest
from weft.worker.peers import Peers
from weft.worker.rng import capture_rng
from weft.worker.shards import capture_own, capture_replicated, read_parts, register, restore
from weft.worker.writer import CheckpointWriter, Snapshot

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "weft.worker"])
# Several times as long as one save takes, so that kills fall into all of its parts and between two.
_LONGEST_WAIT_S = 0.06


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 64))


def save_forever(path: str, step: int, pipe: Connection) -> None:
    """Save one checkpoint after the other, with every number in it equal to its step."""
    torch.set_num_threads(1)
    model = make_model()
    registered = register({"model": model})
    folder = CheckpointFolder(Path(path), keep=2)
    folder.open()
    writer = CheckpointWriter(folder, Peers(0, 1, None), f"from{step}")
    while True:
        step += 1
        with torch.no_grad():
            for value in [*model.parameters(), *model.buffers()]:
                value.fill_(step)
        manifest = Manifest(
            step=step,
            epoch=0,
            position=step,
            world_size=1,
            weft_version="0",
            torch_version="0",
            finished=False,
            created_s=0.0,
            models=registered.entries(),
        )
        snapshot = Snapshot(
            manifest, capture_own(registered, 0, 1), capture_replicated(registered), capture_rng(torch.device("cpu"))
        )
        pipe.send(("begun", step))
        writer.write(snapshot, beside=step % 2 == 0)
        writer.finish()
        pipe.send(("saved", step))


def values_of(path: Path) -> set[float]:
    """Every number in a checkpoint."""
    model = make_model()
    restore(register({"model": model}), *read_parts(path, 1))
    return {float(v) for value in [*model.parameters(), *model.buffers()] for v in value.detach().unique().tolist()}


def kill_while_saving(path: Path, times: int, seed: int) -> list[str]:
    """What was found after each kill: ``old`` or ``new``."""
    chance = random.Random(seed)
    found: list[str] = []
    saved = 0
    for _ in range(times):
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=save_forever, args=(str(path), saved, theirs))
        process.start()
        theirs.close()
        events = [ours.recv()]
        time.sleep(chance.uniform(0.0, _LONGEST_WAIT_S))  # the random moment that the test is about
        process.kill()
        process.join()
        try:
            while True:
                events.append(ours.recv())
        except EOFError:
            ours.close()
        begun = max(step for kind, step in events if kind == "begun")
        saved = max((step for kind, step in events if kind == "saved"), default=saved)
        folder = CheckpointFolder(path, keep=2)
        newest = folder.newest_good(pytest.fail)
        if newest is None:
            assert saved == 0
            found.append("old")
            continue
        there = newest[1].step
        assert there in (saved, begun), f"saved {saved}, begun {begun}, found {there}"
        found.append("new" if there == begun else "old")
        saved = there
        for checkpoint in folder.list():
            assert values_of(checkpoint) == {float(verify(checkpoint).step)}
    return found


def test_killed_while_saving_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    assert len(kill_while_saving(tmp_path, times=30, seed=1)) == 30


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_two_hundred_times_while_saving(tmp_path: Path) -> None:
    found = kill_while_saving(tmp_path, times=200, seed=2)
    assert {"old", "new"} == set(found), "the kills have not covered both sides of the rename"
