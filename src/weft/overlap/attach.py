"""``weft.overlap(model, optimizer)``: check, build, install hooks, return the handle."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from weft.errors import OverlapError
from weft.overlap import checks
from weft.overlap.buffers import BufferSync
from weft.overlap.compiled import CompiledModules
from weft.overlap.first_values import agree_on_values, described_values
from weft.overlap.flat import FlatMemory
from weft.overlap.handle import Overlap
from weft.overlap.initial_state import WholeState
from weft.overlap.layout import uniform_cuts
from weft.overlap.open_connections import Connections, close_abandoned
from weft.overlap.part import OptimizerState, Part
from weft.overlap.passes import Passes
from weft.overlap.replicated import ReplicatedSchedule
from weft.overlap.rnn_weights import RnnWeights
from weft.overlap.round import Round
from weft.overlap.schedule_interface import Schedule
from weft.overlap.sharded import ShardedSchedule
from weft.overlap.sharded_state import ShardedState, complete
from weft.overlap.state_service import StateChanges, StateService
from weft.overlap.timing import StepClock
from weft.overlap.transport import transport_for
from weft.overlap.transport.choice import check_device
from weft.overlap.transport.groups import make_group
from weft.overlap.update import group_numbers
from weft.perf.fusion import default_bucket_bytes

_log = logging.getLogger("weft.overlap")

_DDP_PREFIX = "module."


def overlap(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    eager: bool = False,
    tune: bool = True,
    bucket_bytes: int | None = None,
    comm_dtype: torch.dtype | None = None,
    enabled: bool = True,
    exact_clipping: bool = False,
    broadcast_buffers: bool = True,
    ignore: Iterable[str] = (),
    process_group: dist.ProcessGroup | None = None,
) -> Overlap:
    """Train ``model`` data-parallel, with communication under backward and the next forward.

    The training loop does not change; every worker calls this once, after creating the optimizer.

    Args:
        optimizer: one or several, each with its own parameters of the model (Muon for matrices, AdamW for the rest).
        eager: also update and gather during backward.  Not with gradient clipping or GradScaler.
        tune: find the best bucket sizes during the first steps.  Off when ``bucket_bytes`` is given.
        bucket_bytes: a fixed size for all buckets.
        comm_dtype: send gradients in this dtype (``torch.bfloat16`` halves their bytes; not bit-exact).
        enabled: ``False`` gives the same numbers without any overlap, for comparison.
        exact_clipping: gradient norms equal DDP's bit for bit with two workers, and are the same bits under every plan
            with more.  Shards then hold whole parameters, which sends some padding (see docs/overlap.md).
        broadcast_buffers: ``False`` lets each worker keep its own buffers.
        ignore: names of parameters and buffers to leave alone: not averaged, not copied from rank 0.
        process_group: the workers; by default, all.

    >>> handle = weft.overlap(model, optimizer)             # doctest: +SKIP
    >>> for x, y in data:                                   # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loss_fn(model(x), y).backward()
    ...     optimizer.step()
    """
    if not dist.is_available() or not dist.is_initialized():
        raise OverlapError(
            "weft.overlap needs a process group, but none is initialized: start the script with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    group = dist.group.WORLD if process_group is None else process_group
    if not isinstance(group, dist.ProcessGroup):
        raise OverlapError(
            f"process_group is {process_group!r}, expected a group that this worker is in: call weft.overlap only on "
            "the workers you gave to torch.distributed.new_group()"
        )
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    ignored = {*ignore, *_ignored_by_ddp(model)}
    refusal: OverlapError | None = None
    plans: list[checks.PartPlan] = []
    values: list[str] = []
    try:
        _check_options(bucket_bytes, comm_dtype)
        plans = checks.check_local(model, optimizers, eager, ignored)
        if dist.get_world_size(group) > 1:
            values = described_values(model, ignored, broadcast_buffers)
    except OverlapError as error:
        refusal = error
    except Exception as error:  # unexpected, but the other workers must not wait for us
        refusal = unexpected(error)
    device = plans[0].parameters[0].device if plans else _any_device(group)
    settings = f"eager={eager} tune={tune} bucket_bytes={bucket_bytes} comm_dtype={comm_dtype} enabled={enabled}"
    settings += f" exact_clipping={exact_clipping} broadcast_buffers={broadcast_buffers} ignore={sorted(ignored)}"
    description = [settings, f"on {device.type}", *(line for plan in plans for line in _describe(plan)), *values]
    checks.check_alike(group, device, [] if refusal else description, refusal)
    check_device(device)  # now known to be the same on all workers
    close_abandoned(group, checks.meeting_device(group, device))

    # The main part first: it is tuned, and usually has the most to send.
    plans.sort(key=lambda plan: (plan.optimizer is None, not plan.element_wise, -plan.num_bytes))
    # First everything collective, then what may fail on a single worker, then a check that it failed on none.
    transports = [transport_for(group, device) for _ in plans]
    services = [
        StateService(transport.quiet_group or make_group(group, "gloo")) if plan.needs_service(group) else None
        for plan, transport in zip(plans, transports, strict=True)
    ]
    agree_on_values(model, group, transports[0], ignored, broadcast_buffers)
    shared = _shared_parameters(model)
    ignored_parameters = [parameter for name, parameter in model.named_parameters() if name in ignored]
    parts: list[Part] = []
    connections = Connections(group, services, transports)
    rnns = RnnWeights(model)
    with ExitStack() as undo:
        undo.callback(rnns.remove)  # last, when the weights have left the flat memory
        undo.callback(connections.close, group)
        try:
            clocks = [StepClock(transport.rank, device=transport.device) for transport in transports]
            buffers = BufferSync(
                model, transports[0], clocks[0], group, enabled=broadcast_buffers, ignored=frozenset(ignored)
            )
            named = {name: p for plan in plans for name, p in zip(plan.names, plan.parameters, strict=True)}
            passes = Passes(model, named, buffers)
            for plan, transport, clock, service in zip(plans, transports, clocks, services, strict=True):
                objects = (lambda: False) if parts else buffers.changed
                round = Round(plan.names, plan.parameters, transport, clock, comm_dtype, objects)
                changes = StateChanges(service)
                schedule, make_state = _schedule(plan, round, passes, changes, eager, enabled, shared)
                passes.schedules.append(schedule)
                # Until the first backward shows the actual order: last module first.
                order = range(len(plan.parameters))[::-1]
                whole = exact_clipping and schedule.is_sharded
                memory = FlatMemory(plan.parameters, order, transport.num_workers, whole)
                undo.callback(memory.release)
                cuts = []
                for lane in memory.lanes:
                    size = bucket_bytes or default_bucket_bytes(lane.num_elements * lane.element_bytes)
                    cuts.append(uniform_cuts(lane, size, transport.num_workers))
                schedule.lay_out(memory, cuts)
                if plan.optimizer is not None:
                    undo.callback(setattr, plan.optimizer, "state", plan.optimizer.state)
                tuned = tune and enabled and bucket_bytes is None and not parts
                parts.append(Part(plan.optimizer, schedule, make_state(), ignored=ignored_parameters, tune=tuned))
            handle = Overlap(model, parts, passes, buffers, group, connections)
            undo.callback(handle.remove_hooks)
            _hook_up(model, handle)
        except Exception as error:
            refusal = unexpected(error)
        checks.check_alike(group, device, [] if refusal else description, refusal)
        undo.pop_all()
    handle.hooks.append(rnns)
    rnns.warn()
    for plan in plans:
        checks.take(plan.parameters)
    return handle


def unexpected(error: Exception) -> OverlapError:
    refusal = OverlapError(
        f"weft.overlap failed with {type(error).__name__}: {error}; nothing was changed, and the same model and "
        "optimizer can be trained without weft; unless the error is about your optimizer's options or about memory, "
        "please report it"
    )
    refusal.__cause__ = error
    return refusal


def _schedule(
    plan: checks.PartPlan,
    round: Round,
    passes: Passes,
    changes: StateChanges,
    eager: bool,
    enabled: bool,
    shared: set[int],
) -> tuple[Schedule, Callable[[], OptimizerState]]:
    """A schedule, and a factory for its optimizer's state, to be called once the schedule has a plan."""
    if plan.optimizer is None or not plan.element_wise:
        replicated = ReplicatedSchedule(round, passes, overlapped=enabled)
        return replicated, partial(WholeState, plan.optimizer, replicated)
    numbers = frozenset(n for n, parameter in enumerate(plan.parameters) if id(parameter) in shared)
    sharded = ShardedSchedule(round, passes, plan.optimizer, changes, eager=eager, overlapped=enabled, shared=numbers)
    return sharded, partial(ShardedState, sharded, changes)


def _check_options(bucket_bytes: int | None, comm_dtype: torch.dtype | None) -> None:
    if bucket_bytes is not None and (not isinstance(bucket_bytes, int) or bucket_bytes <= 0):
        raise OverlapError(f"bucket_bytes is {bucket_bytes!r}, expected a positive number of bytes, e.g. 4 << 20")
    if comm_dtype is not None and (not isinstance(comm_dtype, torch.dtype) or not comm_dtype.is_floating_point):
        raise OverlapError(f"comm_dtype is {comm_dtype!r}, expected a floating-point dtype such as torch.bfloat16")


def _ignored_by_ddp(model: nn.Module) -> set[str]:
    """What the model told DDP to ignore, in DDP's own attribute."""
    names = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    return names & {name for name, _ in (*model.named_parameters(), *model.named_buffers())} if names else names


def _any_device(group: dist.ProcessGroup) -> torch.device:
    return torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")


def _describe(plan: checks.PartPlan) -> list[str]:
    groups = [0] * len(plan.parameters)
    lines = ["parameters of no optimizer"]
    if plan.optimizer is not None:
        lines = [f"optimizer {type(plan.optimizer).__name__} with {len(plan.optimizer.param_groups)} group(s)"]
        groups = group_numbers(plan.optimizer, plan.parameters)
    for name, parameter, group in zip(plan.names, plan.parameters, groups, strict=True):
        lines.append(f"{name} {tuple(parameter.shape)} {parameter.dtype} stride {parameter.stride()} group {group}")
    return lines


def _shared_parameters(model: nn.Module) -> set[int]:
    count = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return {parameter for parameter, number in count.items() if number > 1}


def _hook_up(model: nn.Module, handle: Overlap) -> None:
    """The hooks of the model and the optimizers keep the handle alive."""
    for part in handle.parts:
        _hook_up_gradients(part.schedule, handle)
        if part.optimizer is not None:
            _hook_up_optimizer(part.optimizer, part, handle)
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())

    def begins() -> None:
        handle.passes.forward_begins()
        if scripted:  # reads parameters without going through Python
            handle.flush()

    passes = handle.passes
    compiled = CompiledModules(model, handle.parts, passes.submodule_begins)
    compiled.hook_up_root(begins, passes.forward_ended)
    add_load_hook: Any = model.register_load_state_dict_pre_hook
    handle.hooks += [compiled, add_load_hook(_ddp_prefix_stripper())]
    passes.listen_to([module for module in model.modules() if module._buffers])


def _ddp_prefix_stripper() -> Callable[..., None]:
    """A hook that removes ``module.`` from a state dict saved by a DistributedDataParallel model; logs that once."""
    is_logged = False

    def strip(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        nonlocal is_logged
        if prefix or not state_dict or not all(key.startswith(_DDP_PREFIX) for key in state_dict):
            return
        if any(key.startswith(_DDP_PREFIX) for key in module.state_dict(keep_vars=True)):
            return
        for key in list(state_dict):
            state_dict[key[len(_DDP_PREFIX) :]] = state_dict.pop(key)
        if not is_logged:
            is_logged = True
            _log.warning("removed %r from the keys of a state dict of a DistributedDataParallel model", _DDP_PREFIX)

    return strip


def _hook_up_gradients(schedule: Schedule, handle: Overlap) -> None:
    """Hooks of parameters must not keep the handle alive: they live in C++, where the garbage collector cannot see the
    reference cycle."""
    weak_schedule = weakref.ref(schedule)

    def on_gradient(number: int) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            alive = weak_schedule()
            if alive is not None:
                alive.gradient_ready(number)

        return ready

    for number, parameter in enumerate(schedule.parameters):
        add_hook: Any = parameter.register_post_accumulate_grad_hook
        handle.hooks.append(add_hook(on_gradient(number)))


def _hook_up_optimizer(optimizer: torch.optim.Optimizer, part: Part, handle: Overlap) -> None:
    handle.hooks += [
        optimizer.register_step_pre_hook(lambda opt, args, kwargs: handle.before_step(part, args, kwargs)),
        optimizer.register_step_post_hook(lambda opt, args, kwargs: handle.after_step(part)),
        optimizer.register_state_dict_pre_hook(lambda opt: part.state.adopt()),
        optimizer.register_load_state_dict_post_hook(lambda opt: part.state.adopt()),
    ]
    if part.schedule.is_sharded:
        handle.hooks.append(optimizer.register_state_dict_post_hook(lambda opt, found: complete(found)))
