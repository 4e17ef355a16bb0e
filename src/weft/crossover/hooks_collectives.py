"""Whoever waits in torch.distributed gives the device back meanwhile: SyncBatchNorm, clipping, metrics, barriers.

All blocking functions of torch.distributed, and all asynchronous ones, end in ``wait()`` of the work that the process
group returned.  So that one method is watched, and only in processes that share a device.  A work that is done already
is not a wait.  Calls of threads that do not compute (loaders, checkpoint writers) pass through.

Not seen: waits inside C++ that hand no work to Python.  DDP's are handled in hooks.py; functional collectives
(``wait_tensor``, used by FSDP2 and DTensor) are not, and scripts that use them should not share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import Work

from weft.process.turns import TURNS

_is_watching = False


def watch_collectives() -> None:
    """Put the watch in place; once per process."""
    global _is_watching
    if not _is_watching:
        _is_watching = True
        _watch(Work, Work.is_completed)
        _watch(torch._C.Future, torch._C.Future.done)


def _watch(kind: Any, is_done: Any) -> None:
    unwatched = kind.wait

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not TURNS.computing or is_done(self):
            return unwatched(self, *args, **kwargs)
        computes_on = TURNS.num_inside > 0 or torch._C._current_graph_task_id() != -1
        with TURNS.yielded(later=not computes_on):
            return unwatched(self, *args, **kwargs)

    wait.__doc__ = unwatched.__doc__
    kind.wait = wait
