"""One seeded schedule of faults against a real controller."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.kinds import KINDS, NEEDS_OWN_DISK
from tests.faults.own_disk import mount_own_disk
from tests.faults.violation import Violation
from tests.faults.world import Sort, World

NUM_FAULTS = 6


def run_schedule(
    seed: int, folder: Path, *, num_faults: int = NUM_FAULTS, session: bool = False, chosen: Sequence[str] = ()
) -> list[str]:
    """Raises :class:`Violation` if anything that must hold does not; returns the kinds of faults that happened.

    ``chosen``: these faults instead of random ones; their details are still those of the seed.
    Needs a process of its own: it mounts a disk that no other process sees.
    """
    rng = random.Random(seed)
    happened: list[str] = []
    disk = folder / "disk"
    disk.mkdir(mode=0o700)
    has_disk = mount_own_disk(disk)
    kinds = [kind for kind in KINDS if has_disk or kind not in NEEDS_OWN_DISK]
    world = World(folder, session=session)
    try:
        world.up()
        _first_jobs(world, rng, session=session)
        planned = [kind for kind in chosen if kind in kinds] or [rng.choice(kinds) for _ in range(num_faults)]
        for number, kind in enumerate(planned):
            time.sleep(rng.uniform(0.0, 0.3))
            happened.append(kind)
            # What a fault does depends on what runs: with numbers of its own it does not move the schedule.
            KINDS[kind](world, random.Random(f"{seed}/{number}"))
            world.up()
            world.check()
            world.submit(rng.randrange(5, 30))
        world.check_end()
    except Exception as error:
        if has_disk:  # it goes with this process
            subprocess.run(["cp", "-a", str(disk), str(folder / "disk-kept")], check=False)
        told = f"seed {seed}, after {', '.join(happened) or 'no fault'}: {error!r}"
        faults = f"--kinds {','.join(chosen)}" if chosen else f"--faults {num_faults}"
        replay = f"--seed {seed} {faults} --{'' if session else 'no-'}session"
        raise Violation(f"{told}\nreplay with: python -m tests.faults {replay}") from error
    finally:
        world.close()
    return happened


def _first_jobs(world: World, rng: random.Random, *, session: bool) -> None:
    """Small jobs; in some schedules also a session, or three that share two devices."""
    if session:
        world.submit(24, 0.05, Sort.SESSION)
    elif rng.random() < 0.25:
        for _ in range(3):
            world.submit(rng.randrange(60, 120), sort=Sort.SHARING)
    for _ in range(4):
        world.submit(rng.randrange(10, 40))
