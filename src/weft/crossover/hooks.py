"""``weft.crossover(model)`` makes the model of an ordinary script take turns on its device.

    plain loops     forward and ``optimizer.step()`` compute; waits in torch.distributed free the device
                    (hooks_collectives.py)
    DDP             waits in C++, where Python cannot see it: hooks_ddp.py

Scripts that use ``weft.overlap`` or ``weft.session`` do not need it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from weft.crossover.gpu import check_sharing
from weft.crossover.hooks_collectives import watch_collectives
from weft.crossover.hooks_ddp import hook_ddp
from weft.crossover.lease_client import gate_from_environment
from weft.errors import UsageError
from weft.overlap.transport.network_threads import core_is_shared
from weft.process import gate
from weft.process.turns import TURNS, Window
from weft.worker.ddp_reduction import CommHook

NICENESS = 10
_hooked: WeakSet[nn.Module] = WeakSet()
_parameters = WeakIdKeyDictionary()  # of those models
_watched_steps = False


def install_gate(environment: Mapping[str, str] = os.environ) -> None:
    """Set up sharing as the environment says; called by the computing thread before it first computes."""
    if dist.is_initialized():
        check_sharing(dist.get_backend(), environment)
    computing = threading.get_native_id()
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, computing) + NICENESS)

    def give_way() -> None:
        # The device is a core, and the other job's network threads need it briefly, so they go first.  Only once there
        # is another job: a job that is alone should not pay for it.
        core_is_shared(True)
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            if not torch.cuda.is_available() and os.getpriority(os.PRIO_PROCESS, computing) < niceness:
                os.setpriority(os.PRIO_PROCESS, computing, niceness)

    gate.install(gate_from_environment(environment, give_way))
    if gate.current() is not gate.OPEN:
        watch_collectives()


def crossover(model: nn.Module, *, comm_hook: CommHook | None = None, comm_state: Any = None) -> nn.Module:
    """Make ``model`` take turns on its device with another job's; in place, returns the model.

    Without a lease server in the environment (``weft run --share``, ``weft up``), this does nothing.  If the model is
    wrapped in DistributedDataParallel, call it after that.

    Args:
        comm_hook: your DDP communication hook, if any: DDP accepts only one, and crossover needs it.
        comm_state: the first argument of that hook.

    >>> model = weft.crossover(DistributedDataParallel(net))        # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"weft.crossover was given a {type(model).__name__}, expected a torch.nn.Module")
    if comm_hook is not None and not isinstance(model, DistributedDataParallel):
        raise UsageError("comm_hook= is for DistributedDataParallel: wrap the model first, or remove comm_hook")
    if not TURNS.look_for_gate():
        if comm_hook is not None and isinstance(model, DistributedDataParallel):
            model.register_comm_hook(comm_state, comm_hook)
        return model
    if model in _hooked:  # by the session, for example
        return model
    watch_collectives()
    _watch_optimizers()
    if isinstance(model, DistributedDataParallel):
        hook_ddp(model, comm_hook, comm_state)
    else:
        model.register_forward_pre_hook(lambda module, args: TURNS.compute(), prepend=True)
    model.register_forward_pre_hook(_enter_forward)
    model.register_forward_hook(_leave_forward, always_call=True)
    _mark_borders(model)
    _hooked.add(model)
    return model


def waiting() -> Window:
    """A context for code that waits for other workers, which frees the device.

    Needed only to group several waits, or for waits outside torch.distributed.
    """
    return TURNS.yielded(later=True)


def all_reduce(
    tensors: Iterable[torch.Tensor], op: Any = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None
) -> None:
    """All-reduce many tensors while the device is free: for loops that average gradients themselves."""
    works = [dist.all_reduce(tensor, op, group=group, async_op=True) for tensor in tensors]
    with waiting():
        for work in works:
            work.wait()


def _enter_forward(module: nn.Module, args: Any) -> None:
    TURNS.num_inside += 1


def _leave_forward(module: nn.Module, args: Any, output: Any) -> None:
    TURNS.num_inside = max(0, TURNS.num_inside - 1)


def _mark_borders(model: nn.Module) -> None:
    """The device may be asked back before each layer's forward and after each parameter's gradient."""
    for module in model.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(lambda layer, args: TURNS.border())
    for parameter in model.parameters():
        _parameters[parameter] = True
        if parameter.requires_grad:
            add_hook: Any = parameter.register_post_accumulate_grad_hook
            add_hook(lambda parameter: TURNS.border())


def _watch_optimizers() -> None:
    """An update of a hooked model is compute, too; overlapped models handle theirs."""
    global _watched_steps
    if not _watched_steps:
        _watched_steps = True
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: _before_step(optimizer))


def _before_step(optimizer: torch.optim.Optimizer) -> None:
    if any(parameter in _parameters for parameter in optimizer.param_groups[0]["params"][:1]):
        TURNS.compute()
