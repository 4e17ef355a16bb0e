"""Process groups of our own next to the user's: same workers, same timeout, gone when weft releases the model."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist


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
    made: dist.ProcessGroup = dist.new_group(ranks, backend=backend, timeout=timeout_of(like))
    return made


def is_open(group: dist.ProcessGroup) -> bool:
    """False after ``destroy_process_group``, including the user's call, which ends all groups."""
    return group in dist.distributed_c10d._world.pg_map


def end_group(group: dist.ProcessGroup) -> None:
    """Its threads and connections end when its last reference is gone."""
    if is_open(group):
        dist.destroy_process_group(group)
