"""Checkpoints between the nodes and the home on the controller's machine (``weft up --checkpoints relay``).

A checkpoint is collected once every file that its manifest lists is on some node.  As everywhere else, it is complete
or absent in the home: the files are copied first and checked against the manifest, then renamed together.  Jobs resume
from what is in the home, whichever nodes they get.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.checkpoint_files import MANIFEST_NAME, STEP_NAME, FileEntry, listed_files
from weft.engines.ray.node_checkpoints import PIECE_BYTES
from weft.process.folder_sync import sync_folder

MAX_KEPT = 3
"""Checkpoints of one job in the home; the same as a session's default."""
_COLLECTING = ".collecting-"

_log = logging.getLogger(__name__)


class CheckpointRelay:
    """Copies piece by piece, one at a time per job, so that copying leaves bandwidth for training."""

    def __init__(self, jobs: Path) -> None:
        """``jobs``: the folder of the home that has one folder per job."""
        self._jobs = jobs
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def folder(self, job_id: str) -> Path:
        return self._jobs / job_id / "checkpoints"

    def collected(self, job_id: str) -> list[str]:
        """Complete checkpoints in the home, newest first."""
        with contextlib.suppress(OSError):
            return sorted(filter(STEP_NAME.fullmatch, os.listdir(self.folder(job_id))), reverse=True)
        return []

    def not_collected(self, newest: Mapping[str, str]) -> list[str]:
        """Jobs with a checkpoint newer than the home's that is not being copied yet."""
        return [
            job_id
            for job_id, step in newest.items()
            if [step] > self.collected(job_id)[:1] and not self._locks[job_id].locked()
        ]

    async def collect(self, job_id: str, agents: Sequence[Any]) -> None:
        """Copy the newest checkpoint that these nodes have completely, unless the home has it or a newer one.

        ``agents``: the one on rank 0's node first.  If copying fails, the home keeps what it has, and the next
        checkpoint is another try.
        """
        async with self._locks[job_id]:
            try:
                await self._collect_newest(job_id, agents)
            except Exception as error:
                _log.warning("the checkpoint of job %s cannot be copied: %s", job_id, error)

    async def _collect_newest(self, job_id: str, agents: Sequence[Any]) -> None:
        asked = [agent.checkpoints.remote(job_id) for agent in agents]
        answers = await asyncio.gather(*asked, return_exceptions=True)  # a node may have gone
        offers = [{} if isinstance(answer, BaseException) else answer for answer in answers]
        known = self.collected(job_id)[:1]
        for step in sorted({step for offer in offers for step in offer}, reverse=True):
            if [step] < known:
                return
            where = {
                (file, size): agent
                for offer, agent in zip(offers, agents, strict=True)
                for file, size in offer.get(step, {}).items()
            }
            # The manifest of the first node that has one: those of other nodes differ in their timestamps.
            holders = (
                agent for offer, agent in zip(offers, agents, strict=True) if MANIFEST_NAME in offer.get(step, ())
            )
            source = next(holders, None)
            if source is None:
                continue
            manifest = b"".join([piece async for piece in _pieces(source, job_id, step, MANIFEST_NAME)])
            if [step] == known and manifest == (self.folder(job_id) / step / MANIFEST_NAME).read_bytes():
                return
            files = listed_files(manifest)
            if all((entry.name, entry.num_bytes) in where for entry in files):
                sources = {entry: where[entry.name, entry.num_bytes] for entry in files}
                await self._collect(job_id, step, manifest, sources)
                return

    async def _collect(self, job_id: str, step: str, manifest: bytes, sources: Mapping[FileEntry, Any]) -> None:
        folder = self.folder(job_id)
        aside = folder / f"{_COLLECTING}{step}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in os.listdir(folder):  # what an earlier process did not finish
            if name.startswith(_COLLECTING):
                shutil.rmtree(folder / name, ignore_errors=True)
        aside.mkdir(mode=0o700)
        try:
            for entry, agent in sources.items():
                digest = hashlib.sha256()
                with (aside / entry.name).open("wb") as file:
                    async for piece in _pieces(agent, job_id, step, entry.name):
                        digest.update(piece)
                        await asyncio.to_thread(file.write, piece)
                    await asyncio.to_thread(_synced, file)
                if digest.hexdigest() != entry.sha256:
                    raise ValueError(f"{entry.name} does not match its checksum")
            with (aside / MANIFEST_NAME).open("wb") as file:
                file.write(manifest)
                _synced(file)
            shutil.rmtree(folder / step, ignore_errors=True)  # the same step, saved again when training was finished
            aside.rename(folder / step)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        sync_folder(folder)
        for old in self.collected(job_id)[MAX_KEPT:]:
            shutil.rmtree(folder / old, ignore_errors=True)

    async def deliver(self, job_id: str, agent: Any) -> None:
        """Make the home's newest good checkpoint the only one on this node."""
        for step in self.collected(job_id):
            try:
                manifest = (self.folder(job_id) / step / MANIFEST_NAME).read_bytes()
                files = {entry.name: entry for entry in listed_files(manifest)}
                there = (await agent.checkpoints.remote(job_id)).get(step, {})
                missing = [name for name, entry in files.items() if there.get(name) != entry.num_bytes]
                for _ in range(2):  # what was there already may turn out to be damaged
                    for name in missing:
                        await self._send(job_id, step, name, agent)
                    missing = await agent.settle_checkpoint.remote(job_id, step, manifest)
                    if not missing:
                        return
                _log.warning("checkpoint %s of job %s is damaged in the home: trying an older one", step, job_id)
            except (OSError, ValueError) as error:
                _log.warning("checkpoint %s of job %s cannot be used (%s): trying an older one", step, job_id, error)
        await agent.settle_checkpoint.remote(job_id, "", b"")

    async def _send(self, job_id: str, step: str, name: str, agent: Any) -> None:
        with (self.folder(job_id) / step / name).open("rb") as file:
            offset = 0
            while True:
                piece = await asyncio.to_thread(file.read, PIECE_BYTES)
                if offset and not piece:
                    return
                await agent.put_piece.remote(job_id, step, name, offset, piece)
                offset += len(piece)
                if len(piece) < PIECE_BYTES:
                    return


async def _pieces(agent: Any, job_id: str, step: str, file: str) -> Any:
    offset = 0
    while True:
        piece = await agent.piece.remote(job_id, step, file, offset)
        if piece:
            yield piece
        offset += len(piece)
        if len(piece) < PIECE_BYTES:
            return


def _synced(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
