"""Faults of files: cut off, unreadable, or something else in their place."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from pathlib import Path

import psutil
from tests.faults.own_disk import mode_zero
from tests.faults.world import World


def damaged_attempt(world: World, rng: random.Random) -> None:
    """A file of the engine is cut off while the controller is away."""
    _kill_controller(world)
    if files := _records(world):
        with contextlib.suppress(OSError), rng.choice(files).open("r+b") as file:
            file.truncate(rng.choice((0, 1)))


def misplaced_file(world: World, rng: random.Random) -> None:
    """A file of the engine has become a folder, a link to itself or a pipe while the controller is away."""
    _kill_controller(world)
    if files := _records(world):
        path = rng.choice(files)
        with contextlib.suppress(OSError):  # its keeper may write it at the same moment
            path.unlink()
            rng.choice((os.mkdir, os.mkfifo, lambda path: os.symlink(path, path)))(path)


def permission_denied(world: World, rng: random.Random) -> None:
    """Something in the home may not be opened for a while, during which jobs are submitted, run and end."""
    root = world.home.root
    folders = [root / "engine", root / "engine" / "orders", root / "jobs", *root.glob("jobs/*"), *_attempts(world)]
    path = rng.choice([*folders, *_records(world)])
    with contextlib.suppress(FileNotFoundError), mode_zero(path):
        world.submit(rng.randrange(1, 10))
        time.sleep(rng.uniform(0.2, 1.2))
        world.client.jobs()
        if rng.random() < 0.3:
            _kill_controller(world)


def damaged_knowledge(world: World, rng: random.Random) -> None:
    """What was measured cannot be read: garbage, or a folder where the file should be."""
    _kill_controller(world)
    path = world.home.knowledge_file
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if rng.random() < 0.5:
        path.write_bytes(rng.randbytes(100))
    else:
        path.mkdir(exist_ok=True)
    world.up()
    if path.is_dir():
        path.rmdir()


def _kill_controller(world: World) -> None:
    for process in world.controllers():
        with contextlib.suppress(psutil.Error):
            process.kill()


def _records(world: World) -> list[Path]:
    root = world.home.root
    return sorted((root / "engine").rglob("*.json")) + sorted(root.glob("jobs/*/attempts/*/*.json"))


def _attempts(world: World) -> list[Path]:
    return sorted(world.home.root.glob("jobs/*/attempts/*"))
