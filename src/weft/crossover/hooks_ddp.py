"""DistributedDataParallel waits in C++, so we wait before it does, with the device free.

It waits in two places.  At the end of backward it waits for its buckets: our communication hook waits for all of them
when the last one is launched, so DDP finds them done.  At the start of forward it waits for buffers, and early in
training to agree on the order of its buckets.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from weft.errors import UsageError
from weft.process.turns import TURNS

CommHook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

# When the second forward begins, DDP reorders its buckets by the first backward, and synchronizes that.
_FORWARDS_UNTIL_SETTLED = 3


def hook_ddp(model: DistributedDataParallel, comm_hook: CommHook | None, comm_state: Any) -> None:
    """Make ``model`` take turns; ``comm_hook`` replaces the all-reduce."""
    if model._comm_hooks:
        raise UsageError(
            "this model already has a communication hook, and DDP accepts only one: remove register_comm_hook and "
            "pass your hook to weft.crossover(model, comm_hook=..., comm_state=...)"
        )
    model.register_comm_hook(_Buckets(model, comm_hook, comm_state), _launch_bucket)
    ddp: Any = model
    original = ddp._pre_forward
    num_forwards = 0

    def before_forward(*inputs: Any, **kwargs: Any) -> Any:
        nonlocal num_forwards
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


class _Buckets:
    """The buckets of one backward that are in flight."""

    def __init__(self, model: DistributedDataParallel, users_hook: CommHook | None, users_state: Any) -> None:
        self.group: dist.ProcessGroup = model.process_group
        self.users_hook = users_hook
        self.users_state = users_state
        self.in_flight: list[torch.futures.Future[Any]] = []

    def wait(self) -> None:
        in_flight, self.in_flight = self.in_flight, []
        with TURNS.yielded(later=True):
            for future in in_flight:
                future.wait()


# DDP inspects these annotations and wants types, not strings: no postponed annotations in this file.
def _launch_bucket(buckets: _Buckets, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Does exactly what DDP does without a hook."""
    if buckets.users_hook is not None:
        future = buckets.users_hook(buckets.users_state, bucket)
    else:
        values = bucket.buffer()
        # Not a division: DDP multiplies by the reciprocal, and with three workers the result differs.
        values.mul_(1.0 / buckets.group.size())
        # The future holds a list of one tensor; DDP wants the tensor.
        future = buckets.group.allreduce([values]).get_future().then(lambda done: done.value()[0])
    buckets.in_flight.append(future)
    if bucket.is_last():
        buckets.wait()
    return future
