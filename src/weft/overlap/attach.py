"""``weft.overlap(model, optimizer)``: check, build, hook up, hand back the handle."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from weft.errors import OverlapError
from weft.overlap import checks
from weft.overlap.buffers import BufferSync
from weft.overlap.flat import FlatMemory
from weft.overlap.handle import Overlap
from weft.overlap.layout import uniform_cuts
from weft.overlap.replicated import ReplicatedSchedule
from weft.overlap.rounds import Rounds
from weft.overlap.sharded import ShardedSchedule, group_numbers
from weft.overlap.timing import StepClock
from weft.overlap.transport import transport_for
from weft.overlap.tuning import Tuner
from weft.overlap.update import is_element_wise

# Until the link has been measured: small enough that several buckets are under way in any real model.
DEFAULT_BUCKET_BYTES = 4 << 20


def overlap(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    eager: bool = False,
    tune: bool = True,
    bucket_bytes: int | None = None,
    comm_dtype: torch.dtype | None = None,
    enabled: bool = True,
    process_group: dist.ProcessGroup | None = None,
) -> Overlap:
    """Train ``model`` data-parallel, with communication under backward and the next forward.

    The training loop stays as it is; every worker calls this once, after the optimizer was made.

    Args:
        eager: update and gather during backward too.  Not with gradient clipping or GradScaler.
        tune: find the best bucket sizes during the first steps.  Off when ``bucket_bytes`` is given.
        bucket_bytes: a fixed size for all buckets.
        comm_dtype: send gradients in this dtype (``torch.bfloat16`` halves their bytes; not bit-exact).
        enabled: ``False`` gives the same numbers without any overlap, for comparison.
        process_group: the workers; all of them when not given.

    >>> handle = weft.overlap(model, optimizer)             # doctest: +SKIP
    >>> for x, y in data:                                   # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loss_fn(model(x), y).backward()
    ...     optimizer.step()
    """
    if not dist.is_available() or not dist.is_initialized():
        raise OverlapError(
            "weft.overlap needs a process group and there is none: start the script with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    group = process_group or dist.group.WORLD
    assert group is not None
    element_wise = isinstance(optimizer, torch.optim.Optimizer) and is_element_wise(optimizer)
    refusal: OverlapError | None = None
    names: list[str] = []
    parameters: list[nn.Parameter] = []
    try:
        _check_options(bucket_bytes, comm_dtype)
        names, parameters = checks.check_local(model, optimizer, eager, element_wise)
    except OverlapError as error:
        refusal = error
    device = parameters[0].device if parameters else _any_device(group)
    settings = f"eager={eager} tune={tune} bucket_bytes={bucket_bytes} comm_dtype={comm_dtype} enabled={enabled}"
    description = [] if refusal else [settings, *_describe(names, parameters, optimizer)]
    checks.check_alike(group, device, description, refusal)

    clock = StepClock(dist.get_rank(group))
    transport = transport_for(group, device)
    _agree_on_values(model, transport)
    schedule: Rounds
    if element_wise:
        schedule = ShardedSchedule(
            names,
            parameters,
            optimizer,
            transport,
            clock,
            comm_dtype,
            eager=eager,
            overlapped=enabled,
            shared=_shared_parameters(model, parameters),
        )
    else:
        schedule = ReplicatedSchedule(names, parameters, optimizer, transport, clock, comm_dtype, enabled)
    # Until a backward has shown the true order: last module first.
    memory = FlatMemory(parameters, range(len(parameters))[::-1], transport.num_workers)
    size = bucket_bytes or DEFAULT_BUCKET_BYTES
    schedule.lay_out(memory, [uniform_cuts(lane, size, transport.num_workers) for lane in memory.lanes])
    checks.take(parameters)
    handle = Overlap(
        model,
        optimizer,
        schedule,
        BufferSync(model, transport, clock),
        Tuner(schedule, bucket_bytes, tune and enabled),
        group,
    )
    _hook_up(model, optimizer, parameters, handle)
    return handle


def _check_options(bucket_bytes: int | None, comm_dtype: torch.dtype | None) -> None:
    if bucket_bytes is not None and (not isinstance(bucket_bytes, int) or bucket_bytes <= 0):
        raise OverlapError(f"bucket_bytes is {bucket_bytes!r}, expected a positive number of bytes, e.g. 4 << 20")
    if comm_dtype is not None and (not isinstance(comm_dtype, torch.dtype) or not comm_dtype.is_floating_point):
        raise OverlapError(f"comm_dtype is {comm_dtype!r}, expected a floating-point dtype such as torch.bfloat16")


def _any_device(group: dist.ProcessGroup) -> torch.device:
    return torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")


def _describe(names: list[str], parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[str]:
    lines = [f"optimizer {type(optimizer).__name__} with {len(optimizer.param_groups)} group(s)"]
    groups = group_numbers(optimizer, parameters)
    for name, parameter, group in zip(names, parameters, groups, strict=True):
        lines.append(f"{name} {tuple(parameter.shape)} {parameter.dtype} stride {parameter.stride()} group {group}")
    return lines


def _agree_on_values(model: nn.Module, transport: Any) -> None:
    """Rank 0's parameters and buffers for everybody, as DDP does."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            values = tensor.detach().contiguous()
            transport.broadcast(values).wait()
            if values.data_ptr() != tensor.data_ptr():
                tensor.copy_(values)


def _shared_parameters(model: nn.Module, parameters: list[nn.Parameter]) -> frozenset[int]:
    count: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            count[id(parameter)] = count.get(id(parameter), 0) + 1
    return frozenset(n for n, parameter in enumerate(parameters) if count[id(parameter)] > 1)


def _hook_up(
    model: nn.Module, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], handle: Overlap
) -> None:
    """Hooks of the model and the optimizer hold the handle: it lives as long as they do.

    Those of the parameters must not: they lie in C++, where the garbage collector cannot see that they are all that
    holds a model nobody trains any more.
    """
    schedule = handle.schedule
    weak_schedule = weakref.ref(schedule)

    def on_gradient(number: int) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            alive = weak_schedule()
            if alive is not None:
                alive.gradient_ready(number)

        return ready

    for number, parameter in enumerate(parameters):
        add_hook: Any = parameter.register_post_accumulate_grad_hook
        handle.hooks.append(add_hook(on_gradient(number)))
    opaque = [m for m in model.modules() if _reads_unseen(m)]
    handle.hooks += [
        model.register_forward_pre_hook(lambda module, args: handle.forward_begins(), prepend=True),
        model.register_forward_hook(lambda module, args, output: handle.forward_ended(), always_call=True),
        optimizer.register_step_pre_hook(lambda opt, args, kwargs: handle.before_step(args, kwargs)),
        optimizer.register_step_post_hook(lambda opt, args, kwargs: handle.after_step()),
        optimizer.register_state_dict_post_hook(lambda opt, state: handle.complete_state_dict(state)),
        optimizer.register_load_state_dict_post_hook(lambda opt: handle.state_was_loaded()),
    ]
    if opaque:
        handle.hooks.append(model.register_forward_pre_hook(lambda module, args: schedule.flush()))


def _reads_unseen(module: nn.Module) -> bool:
    """Compiled modules read parameters without passing through Python's torch functions."""
    return isinstance(module, torch.jit.ScriptModule) or getattr(module, "_compiled_call_impl", None) is not None
