"""DistributedDataParallel: its waits are in C++, so each is met by one of ours that comes first.

Two places: at the end of backward it waits for its buckets.  A communication hook sees them leave, the last one with
the last gradient; there all of them are waited for, and DDP's own wait finds them done.  At the beginning of forward it
waits for buffers, and once to agree on the order of its buckets.
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

# DDP puts its buckets in the order of the first backward when the second forward begins, and agrees on it.
_FORWARDS_UNTIL_SETTLED = 3


def hook_ddp(model: DistributedDataParallel, comm_hook: CommHook | None, comm_state: Any) -> None:
    """Have ``model`` take turns; ``comm_hook`` does the communication in place of an all-reduce."""
    if model._comm_hooks:
        raise UsageError(
            "this model has a communication hook already, and DDP takes only one: leave register_comm_hook out and "
            "give your hook to weft.crossover(model, comm_hook=..., comm_state=...)"
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
    """The buckets of one backward that are under way."""

    def __init__(self, model: DistributedDataParallel, users_hook: CommHook | None, users_state: Any) -> None:
        self.group: dist.ProcessGroup = model.process_group
        self.users_hook = users_hook
        self.users_state = users_state
        self.under_way: list[torch.futures.Future[Any]] = []

    def wait(self) -> None:
        """Until everything that was launched is there."""
        under_way, self.under_way = self.under_way, []
        with TURNS.yielded(later=True):
            for future in under_way:
                future.wait()


# DDP reads these annotations itself and wants types there, not their names: no postponed annotations in this file.
def _launch_bucket(buckets: _Buckets, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook: the same product, the same sum."""
    if buckets.users_hook is not None:
        future = buckets.users_hook(buckets.users_state, bucket)
    else:
        values = bucket.buffer()
        # Not a division: DDP multiplies by the reciprocal, and with three workers that is another number.
        values.mul_(1.0 / buckets.group.size())
        # The sum of one tensor is a list of one; DDP wants the tensor.
        future = buckets.group.allreduce([values]).get_future().then(lambda done: done.value()[0])
    buckets.under_way.append(future)
    if bucket.is_last():
        buckets.wait()
    return future
