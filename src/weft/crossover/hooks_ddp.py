"""DistributedDataParallel waits in C++, so we wait before it does, with the device free.

It waits in two places.  At the end of backward it waits for its buckets: our communication hook waits for all of them
when the last one is launched, so DDP finds them done.  At the start of forward it waits for buffers, and early in
training to agree on the order of its buckets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from weft.errors import UsageError
from weft.process.turns import TURNS
from weft.worker.ddp_reduction import CommHook, reduction_of

# When the second forward begins, DDP reorders its buckets by the first backward, and synchronizes that.
_FORWARDS_UNTIL_SETTLED = 3


def hook_ddp(model: DistributedDataParallel, comm_hook: CommHook | None, comm_state: Any) -> None:
    """Make ``model`` take turns; ``comm_hook`` replaces the all-reduce."""
    reduction = reduction_of(model)
    reduction.users_hook, reduction.users_state, reduction.frees_device = comm_hook, comm_state, True
    ddp: Any = model
    original = ddp._pre_forward
    num_forwards = 0

    def before_forward(*inputs: Any, **kwargs: Any) -> Any:
        nonlocal num_forwards
        if comm_hook is None and ddp._join_config.enable and not ddp._divide_by_initial_world_size:
            raise UsageError(
                "model.join(divide_by_initial_world_size=False) does not work with weft.crossover: its communication "
                "hook averages over all workers, because DDP does not tell it how many still have batches; use "
                "divide_by_initial_world_size=True"
            )
        num_forwards += torch.is_grad_enabled()
        waits = num_forwards <= _FORWARDS_UNTIL_SETTLED or ddp.will_sync_module_buffers()
        if waits or ddp._join_config.enable:
            with TURNS.yielded(later=True):
                result = original(*inputs, **kwargs)
        else:
            result = original(*inputs, **kwargs)
        TURNS.compute()
        return result

    ddp._pre_forward = before_forward
