"""Frees the device while the script waits in torch.distributed: SyncBatchNorm, clipping, metrics, barriers.

All functions of torch.distributed, blocking or not, end in ``wait()`` of the work that the process group returned, so
patching that one method is enough.  This happens only in processes that share a device.  Work that is already done, and
calls of threads that do not compute (loaders, checkpoint writers), are left alone.

Not covered: waits inside C++ that return no work to Python.  hooks_ddp.py handles DDP's; functional collectives
(``wait_tensor``, used by FSDP2 and DTensor) are not handled, and scripts that use them should not share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import Work

from weft.process.turns import TURNS

_is_watching = False


def watch_collectives() -> None:
    """Patch ``wait()``, once per process."""
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
