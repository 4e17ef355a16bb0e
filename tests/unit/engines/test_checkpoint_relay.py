"""Checkpoints that nodes keep themselves: collected completely or not at all, and the same one on every node."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from weft.core.checkpoint_files import MANIFEST_NAME
from weft.engines.ray.checkpoint_relay import MAX_KEPT, CheckpointRelay
from weft.engines.ray.job_folders import KEPT_S, sweep
from weft.engines.ray.node_checkpoints import PIECE_BYTES, NodeCheckpoints

FILES = {"rank-00000.pt": b"zero" * 1000, "rank-00001.pt": b"one" * (PIECE_BYTES // 2), "replicated.pt": b""}
STEP, LATER = "step-000000000010", "step-000000000020"


class NodeAgentDouble:
    """An agent as the relay calls it, without Ray."""

    def __init__(self, root: Path) -> None:
        self.kept = NodeCheckpoints(root)
        self.kept.prepare()
        self.is_lost = False
        self.checkpoints = _Remote(self, self.kept.steps)
        self.piece = _Remote(self, self.kept.piece)
        self.put_piece = _Remote(self, self.kept.put)
        self.settle_checkpoint = _Remote(self, self.kept.settle)

    def save(self, step: str, *names: str, manifest: bytes) -> None:
        folder = self.kept.folder("job") / step
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(FILES[name])
        (folder / MANIFEST_NAME).write_bytes(manifest)

    def holds(self) -> dict[str, dict[str, bytes]]:
        folder = self.kept.folder("job")
        return {one: _contents(folder / one) for one in os.listdir(folder)} if folder.exists() else {}


class _Remote:
    def __init__(self, agent: NodeAgentDouble, call: Any) -> None:
        self._agent, self._call = agent, call

    async def remote(self, *words: Any) -> Any:
        if self._agent.is_lost:
            raise ConnectionError("the node is gone")
        return self._call(*words)


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def manifest_of(step: str) -> bytes:
    entries = [
        {"name": name, "num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in FILES.items()
    ]
    return json.dumps({"step": step, "files": entries}).encode()


@pytest.fixture
def agents(tmp_path: Path) -> list[NodeAgentDouble]:
    return [NodeAgentDouble(tmp_path / f"node{number}") for number in range(2)]


@pytest.fixture
def relay(tmp_path: Path) -> CheckpointRelay:
    return CheckpointRelay(tmp_path / "jobs")


def save(agents: list[NodeAgentDouble], step: str) -> None:
    agents[0].save(step, "rank-00000.pt", "replicated.pt", manifest=manifest_of(step))
    agents[1].save(step, "rank-00001.pt", manifest=manifest_of(step))


def test_parts_on_two_nodes_become_one_checkpoint_and_come_back_as_one(
    agents: list[NodeAgentDouble], relay: CheckpointRelay, tmp_path: Path
) -> None:
    save(agents, STEP)
    asyncio.run(relay.collect("job", agents))
    whole = {**FILES, MANIFEST_NAME: manifest_of(STEP)}
    assert _contents(relay.folder("job") / STEP) == whole
    agents.append(NodeAgentDouble(tmp_path / "node2"))
    for agent in agents:
        asyncio.run(relay.deliver("job", agent))
        assert agent.holds() == {STEP: whole}


def test_a_checkpoint_with_a_lost_part_is_skipped_for_an_older_one(
    agents: list[NodeAgentDouble], relay: CheckpointRelay
) -> None:
    save(agents, STEP)
    asyncio.run(relay.collect("job", agents))
    save(agents, LATER)
    agents[1].is_lost = True
    asyncio.run(relay.collect("job", agents))
    assert relay.collected("job") == [STEP]
    asyncio.run(relay.deliver("job", agents[0]))
    assert list(agents[0].holds()) == [STEP], "all nodes resume from the same step"


def test_a_damaged_file_reaches_neither_the_home_nor_a_node(
    agents: list[NodeAgentDouble], relay: CheckpointRelay
) -> None:
    save(agents, STEP)
    asyncio.run(relay.collect("job", agents))
    save(agents, LATER)
    damaged = agents[0].kept.folder("job") / LATER / "rank-00000.pt"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    asyncio.run(relay.collect("job", agents))
    assert relay.collected("job") == [STEP]
    assert [name for name in os.listdir(relay.folder("job")) if name.startswith(".")] == []
    here = agents[0].kept.folder("job") / STEP / "rank-00000.pt"
    here.write_bytes(b"x" * here.stat().st_size)  # the right size: only its checksum tells
    asyncio.run(relay.deliver("job", agents[0]))
    assert agents[0].holds()[STEP]["rank-00000.pt"] == FILES["rank-00000.pt"]
    in_home = relay.folder("job") / STEP / "rank-00001.pt"
    in_home.write_bytes(in_home.read_bytes()[::-1])
    agents[0].kept.settle("job", "", b"")
    asyncio.run(relay.deliver("job", agents[0]))
    assert list(agents[0].kept.steps("job")) == [], "nothing is better than a damaged checkpoint"


def test_old_copies_are_deleted_in_the_home_and_on_nodes_a_job_has_left(
    agents: list[NodeAgentDouble], relay: CheckpointRelay
) -> None:
    for number in range(MAX_KEPT + 2):
        save(agents, f"step-{number:012d}")
        asyncio.run(relay.collect("job", agents))
    assert len(relay.collected("job")) == MAX_KEPT
    folder = agents[0].kept.folder("job")
    sweep(agents[0].kept.root, [])
    assert folder.exists(), "it may come back"
    os.utime(folder, (0, os.stat(folder).st_mtime - KEPT_S - 1))
    sweep(agents[0].kept.root, ["job"])
    assert folder.exists(), "it runs"
    sweep(agents[0].kept.root, [])
    assert not folder.exists()


def test_a_checkpoint_saved_again_at_its_end_replaces_the_one_of_the_same_step(
    agents: list[NodeAgentDouble], relay: CheckpointRelay
) -> None:
    save(agents, STEP)
    asyncio.run(relay.collect("job", agents))
    finished = manifest_of("finished")
    (agents[0].kept.folder("job") / STEP / MANIFEST_NAME).write_bytes(finished)
    asyncio.run(relay.collect("job", agents))
    assert (relay.folder("job") / STEP / MANIFEST_NAME).read_bytes() == finished


def test_a_folder_that_cannot_be_created_on_a_node_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot keep checkpoints in .*file/here.*set WEFT_HOME"):
        NodeCheckpoints(tmp_path / "file" / "here").prepare()


def test_no_file_name_can_leave_the_checkpoint_folder(tmp_path: Path) -> None:
    kept = NodeCheckpoints(tmp_path / "node")
    for name in ("../x", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="not the name of a file"):
            kept.put("job", STEP, name, 0, b"")
    assert kept.folder("../job").parent == tmp_path / "node"
