"""Process groups of our own next to the user's: same workers, same timeout, gone when weft releases the model."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from weft.overlap.layout import checksum

# How many groups were made like each of these; the same on all of its workers.
_NUM_MADE: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


def timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    """The timeout of ``group``'s collectives, as passed to ``init_process_group`` or ``new_group``."""
    backend: Any = group._get_backend(group._device_types[0])
    timeout: datetime.timedelta = backend.options._timeout
    return timeout


def make_group(like: dist.ProcessGroup, backend: str, members: Sequence[int] | None = None) -> dist.ProcessGroup:
    """A new group with the same workers as ``like``, or some of them.  Collective for all workers of ``like``."""
    ranks = dist.get_process_group_ranks(like)
    if members is not None:
        ranks = [ranks[member] for member in members]
    with _own_number(like):
        made: dist.ProcessGroup = dist.new_group(ranks, backend=backend, timeout=timeout_of(like))
    return made


@contextmanager
def _own_number(like: dist.ProcessGroup) -> Iterator[None]:
    """Number the next group by ``like``, and leave torch's own count as it was.

    A group's workers find each other by its number.  torch counts the groups that a process makes, and expects every
    process to make every group.  We make ours only on the workers of ``like``: two halves of a job would use the same
    numbers, and the user's next group would have a different number on each half.
    """
    world = dist.distributed_c10d._world
    number = _NUM_MADE.get(like, 0)
    _NUM_MADE[like] = number + 1
    count = world.group_count
    world.group_count = checksum((like.group_name, number))
    try:
        yield
    finally:
        world.group_count = count


def is_open(group: dist.ProcessGroup) -> bool:
    """False after ``destroy_process_group``, including the user's call, which ends all groups."""
    return group in dist.distributed_c10d._world.pg_map


def end_group(group: dist.ProcessGroup) -> None:
    """Its threads and connections end when its last reference is gone."""
    if is_open(group):
        dist.destroy_process_group(group)
