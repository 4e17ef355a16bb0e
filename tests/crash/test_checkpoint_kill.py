"""SIGKILL at any moment of saving leaves exactly the old or exactly the new checkpoint, never a mixture or a ruin."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.hang_limit import HANG_S

from weft.errors import SessionError
from weft.worker.checkpoint_folder import CheckpointFolder, verify
from weft.worker.manifest import Manifest
from weft.worker.peers import Peers
from weft.worker.rng import capture_rng
from weft.worker.shards import Registered, capture_own, capture_replicated, read_parts, register, restore
from weft.worker.writer import CheckpointPart, CheckpointWriter

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "weft.worker"])
# Several times as long as one save takes, so that kills fall into all of its parts and between two.
_LONGEST_WAIT_S = {1: 0.06, 2: 0.12, 3: 0.18}


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 64))


def save_forever(path: str, rank: int, num_workers: int, step: int, meeting: str, pipe: Connection) -> None:
    """One of the workers that save one checkpoint after the other, with every number in it equal to its step."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    peers = Peers(0, 1, None)
    if num_workers > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_workers)
        peers = Peers(rank, num_workers, dist.group.WORLD).on_new_group()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    registered = register({"model": model, "optimizer": optimizer})
    folder = CheckpointFolder(Path(path), keep=2)
    if rank == 0:
        folder.open()
    peers.all_gather(None)  # as in a session: opening the folder deletes what an earlier run was writing
    writer = CheckpointWriter(folder, peers, f"from{step}")
    try:
        while True:
            step += 1
            pipe.send(("begun", step))
            _save(writer, peers, registered, step)
            pipe.send(("saved", step))
    except SessionError:
        os._exit(3)  # another worker is gone


def _save(writer: CheckpointWriter, peers: Peers, registered: Registered, step: int) -> None:
    model, optimizer = registered.models["model"], registered.optimizers["optimizer"]
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            value.fill_(step)
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, step)
    manifest = Manifest(
        step=step,
        epoch=0,
        position=step,
        world_size=peers.world_size,
        weft_version="0",
        torch_version="0",
        finished=False,
        created_s=0.0,
        models=registered.entries(),
    )
    snapshot = CheckpointPart(
        manifest,
        capture_own(registered, peers.rank, peers.world_size),
        capture_replicated(registered) if peers.rank == 0 else None,
        capture_rng(torch.device("cpu")),
    )
    writer.write(snapshot, in_background=step % 2 == 0)
    writer.finish()


def values_of(path: Path, num_workers: int) -> set[float]:
    """Every number in a checkpoint."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    restore(register({"model": model, "optimizer": optimizer}), *read_parts(path, num_workers))
    momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    tensors = [*model.parameters(), *model.buffers(), *momenta]
    return {float(v) for value in tensors for v in value.detach().unique().tolist()}


class Savers:
    """Workers that save until they are killed."""

    def __init__(self, path: Path, num_workers: int, saved: int, meeting: Path) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._events: list[tuple[str, int]] = []
        for rank in range(num_workers):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(
                target=save_forever, args=(str(path), rank, num_workers, saved, str(meeting), theirs)
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:  # all are saving
            self._events.append(pipe.recv())

    def wait_until_saved(self) -> None:
        while self._events[-1][0] != "saved":
            self._events.append(self._pipes[0].recv())

    def kill(self, victims: list[int]) -> None:
        """The others have to end by themselves, and soon."""
        assert all(process.is_alive() for process in self._processes), "a worker has ended by itself"
        for rank in victims:
            self._processes[rank].kill()
        for rank, process in enumerate(self._processes):
            process.join(HANG_S)
            alone_too = process.exitcode is not None
            process.kill()
            process.join()
            assert alone_too, f"worker {rank} still waits for killed workers {victims}"

    def events(self) -> list[tuple[str, int]]:
        """What all of them had said."""
        for pipe in self._pipes:
            try:
                while True:
                    self._events.append(pipe.recv())
            except EOFError:
                pipe.close()
        return self._events


def kill_while_saving(path: Path, num_workers: int, times: int, seed: int) -> list[str]:
    """What was found after each kill: ``old`` or ``new``."""
    chance = random.Random(seed)
    found: list[str] = []
    saved = 0
    for number in range(times):
        savers = Savers(path / "checkpoints", num_workers, saved, path / f"meeting-{number}")
        if number % 2:  # otherwise, all kills may come before the first checkpoint is complete
            savers.wait_until_saved()
        time.sleep(chance.uniform(0.0, _LONGEST_WAIT_S[num_workers]))  # the random moment that the test is about
        savers.kill(chance.sample(range(num_workers), chance.randint(1, num_workers)))
        events = savers.events()
        begun = max(step for kind, step in events if kind == "begun")
        saved = max((step for kind, step in events if kind == "saved"), default=saved)
        folder = CheckpointFolder(path / "checkpoints", keep=2)
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
            assert values_of(checkpoint, num_workers) == {float(verify(checkpoint).step)}
    return found


@pytest.mark.parametrize(("num_workers", "times"), [(1, 30), (2, 15), (3, 8)])
def test_a_kill_while_saving_leaves_the_old_or_the_new_checkpoint(tmp_path: Path, num_workers: int, times: int) -> None:
    kill_while_saving(tmp_path, num_workers, times, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_two_hundred_kills_while_saving_lose_no_checkpoint(tmp_path: Path, num_workers: int) -> None:
    found = kill_while_saving(tmp_path, num_workers, times=200, seed=2)
    assert {"old", "new"} == set(found), "the kills have not covered both sides of the rename"
    print(f"{num_workers} worker(s), 200 kills: {found.count('old')} old, {found.count('new')} new")
