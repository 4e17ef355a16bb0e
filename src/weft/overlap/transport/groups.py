"""Process groups of our own, next to the user's: same workers, same timeout, gone when weft lets go of the model."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist


def timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    """How long collectives of ``group`` wait: what the user gave to ``init_process_group`` or ``new_group``."""
    backend: Any = group._get_backend(group._device_types[0])
    timeout: datetime.timedelta = backend.options._timeout
    return timeout


def make_group(like: dist.ProcessGroup, backend: str) -> dist.ProcessGroup:
    """Another group of the workers in ``like``.  Collective."""
    ranks = dist.get_process_group_ranks(like)
    made: dist.ProcessGroup = dist.new_group(ranks, backend=backend, timeout=timeout_of(like))
    return made


def is_open(group: dist.ProcessGroup) -> bool:
    """False after ``destroy_process_group``, the user's included, which ends all groups."""
    return group in dist.distributed_c10d._world.pg_map


def end_group(group: dist.ProcessGroup) -> None:
    """Its threads and connections go as soon as nobody refers to it any more."""
    if is_open(group):
        dist.destroy_process_group(group)
