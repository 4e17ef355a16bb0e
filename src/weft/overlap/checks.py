"""Checks before anything is changed; each refusal says what to do."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from weft.errors import OverlapError
from weft.overlap.graphs import check_not_captured
from weft.overlap.layout import checksum
from weft.overlap.update import is_element_wise

# Parameters that are currently overlapped; weak, so that it keeps no model alive.
_TAKEN = WeakIdKeyDictionary()


def take(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        _TAKEN[parameter] = True


def is_taken(parameter: nn.Parameter) -> bool:
    return parameter in _TAKEN


def give_back(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter in _TAKEN:
            del _TAKEN[parameter]


@dataclass(frozen=True)
class PartPlan:
    """An optimizer with its trainable parameters, or those that belong to no optimizer."""

    optimizer: torch.optim.Optimizer | None
    element_wise: bool
    names: list[str]
    parameters: list[nn.Parameter]

    def needs_service(self, group: dist.ProcessGroup) -> bool:
        """Whether other workers keep parts of the optimizer's state."""
        return self.element_wise and dist.get_world_size(group) > 1

    @property
    def num_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for parameter in self.parameters)


def check_local(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], eager: bool, ignored: Collection[str]
) -> list[PartPlan]:
    """The parts to overlap; raises :class:`OverlapError`."""
    if not isinstance(model, nn.Module):
        raise OverlapError(f"the model given to weft.overlap is a {type(model).__name__}, expected a torch.nn.Module")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OverlapError(
                f"the optimizer given to weft.overlap is a {type(optimizer).__name__}, expected a "
                "torch.optim.Optimizer or a list of them"
            )
        _check_initialized(optimizer)
    if not optimizers:
        raise OverlapError("the list of optimizers given to weft.overlap is empty, expected at least one optimizer")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise OverlapError(
            "the model is wrapped in DistributedDataParallel: give weft.overlap the plain module instead"
        )
    named = dict(model.named_parameters())
    _check_parameters({name: parameter for name, parameter in named.items() if name not in ignored})
    _check_modules(model)
    of_model = {id(parameter): name for name, parameter in named.items()}
    in_optimizer = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    foreign = [p for p in in_optimizer if id(p) not in of_model]
    if foreign:
        raise OverlapError(
            f"the optimizer has {len(foreign)} parameter(s) that are not in the model (the first has shape "
            f"{tuple(foreign[0].shape)}): create the optimizer from model.parameters() of the same model"
        )
    unknown = set(ignored) - set(named) - {name for name, _ in model.named_buffers()}
    if unknown:
        raise OverlapError(
            f"ignore contains {sorted(unknown)[0]!r}, which the model does not have: use names from "
            "model.named_parameters() and model.named_buffers()"
        )
    trainable = [(name, p) for name, p in named.items() if p.requires_grad and name not in ignored]
    if not trainable:
        raise OverlapError("the model has no parameter that requires a gradient: there is nothing to overlap")
    plans = [_plan(optimizer, trainable) for optimizer in optimizers if not _only_ignored(optimizer, named, ignored)]
    _check_plans(plans, of_model, eager)
    held = {id(p) for p in in_optimizer}
    orphans = [(name, p) for name, p in trainable if id(p) not in held]
    if orphans:
        plans.append(PartPlan(None, False, [name for name, _ in orphans], [p for _, p in orphans]))
    return plans


def _only_ignored(optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter], ignored: Collection[str]) -> bool:
    """Whether weft can leave this optimizer alone."""
    ignored_ids = {id(named[name]) for name in ignored if name in named}
    return all(id(p) in ignored_ids for group in optimizer.param_groups for p in group["params"])


def _check_initialized(optimizer: torch.optim.Optimizer) -> None:
    """Refuse wrappers that are optimizers in name only, because they never call ``Optimizer.__init__``.

    That call also makes ``step()`` run hooks; if a wrapper only sets the attributes, its hooks never run.
    """
    missing = [name for name in _NEEDED if not hasattr(optimizer, name)]
    if not missing and getattr(type(optimizer).step, "hooked", False):
        return
    inner = [name for name, value in vars(optimizer).items() if isinstance(value, torch.optim.Optimizer)]
    kind = type(optimizer).__name__
    if inner:
        raise OverlapError(
            f"the optimizer is a {kind} that wraps a {type(getattr(optimizer, inner[0])).__name__}: give weft.overlap "
            f"the inner one (optimizer.{inner[0]}) and keep calling the wrapper's step()"
        )
    found = f"{missing[0]} is missing" if missing else "its step() runs no hooks"
    raise OverlapError(
        f"the optimizer is a {kind} that has not called torch.optim.Optimizer.__init__ ({found}): call it in its "
        "__init__, or give weft.overlap the optimizer that it uses"
    )


_NEEDED = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_post_hooks",
    "state",
    "param_groups",
    "defaults",
)


def _plan(optimizer: torch.optim.Optimizer, trainable: list[tuple[str, nn.Parameter]]) -> PartPlan:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = [(name, p) for name, p in trainable if id(p) in held]
    return PartPlan(optimizer, is_element_wise(optimizer), [name for name, _ in own], [p for _, p in own])


def _check_plans(plans: list[PartPlan], names: dict[int, str], eager: bool) -> None:
    holder: dict[int, int] = {}
    for number, plan in enumerate(plans):
        which = f"optimizer {number} ({type(plan.optimizer).__name__})" if len(plans) > 1 else "the optimizer"
        if not plan.parameters:
            raise OverlapError(
                f"{which} has no parameter that requires a gradient: there is nothing to overlap; omit it, or unfreeze "
                "its parameters first"
            )
        for parameter in plan.parameters:
            if holder.setdefault(id(parameter), number) != number:
                raise OverlapError(
                    f"parameter {names[id(parameter)]} is in two optimizers, {holder[id(parameter)]} and {number}: "
                    "give each parameter to one of them"
                )
        if eager and not plan.element_wise:
            raise OverlapError(
                f"eager=True updates parameters bucket by bucket, but {type(plan.optimizer).__name__} is not known to "
                "work element by element: use eager=False"
            )


def _check_parameters(named: dict[str, nn.Parameter]) -> None:
    seen: dict[int, str] = {}
    for name, parameter in named.items():
        if is_taken(parameter):
            raise OverlapError(
                f"weft.overlap was already called on this model ({name} is overlapped): call detach() on the first "
                "handle before making another"
            )
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise OverlapError(f"parameter {name} has no shape yet: run one forward of the lazy module first")
        if parameter.is_meta:
            raise OverlapError(f"parameter {name} is on the meta device: materialize the model first")
        if hasattr(parameter, "_local_tensor"):
            raise OverlapError(f"parameter {name} is a DTensor (FSDP?): give weft.overlap the plain module")
        if parameter.is_complex():
            raise OverlapError(
                f"parameter {name} is complex, but weft.overlap supports real parameters only: use "
                "DistributedDataParallel for this model"
            )
        pointer = parameter.data_ptr()
        if pointer and pointer in seen:
            raise OverlapError(
                f"parameters {seen[pointer]} and {name} share memory but are different objects: tie them by assigning "
                "the same nn.Parameter to both modules"
            )
        seen[pointer] = name
    devices = {parameter.device for parameter in named.values()}
    if len(devices) > 1:
        raise OverlapError(
            f"the model's parameters are on several devices ({sorted(map(str, devices))}), expected one: move the "
            "whole model to one device before calling weft.overlap"
        )


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        check_not_captured(name, module)
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise OverlapError(
                f"module {name} has sparse=True, but weft.overlap supports only dense gradients: set sparse=False, or "
                "use DistributedDataParallel for this model"
            )


def meeting_device(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """The device on which workers compare their settings: the same on all of them, whatever their models are.

    A group for both (``cpu:gloo,cuda:nccl``) uses different backends for CPU and CUDA tensors.  A worker that refuses a
    model before it knows its device must not wait on one backend while the other workers wait on the other.
    """
    kinds = sorted({offered.type for offered in group._device_types})
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    return device if device.type in kinds else torch.device(kinds[0])


def check_alike(
    group: dist.ProcessGroup, device: torch.device, description: list[str], refusal: OverlapError | None
) -> None:
    """Raise on all workers unless all have the same description.  Collective.  ``device``: that of the parameters."""
    device = meeting_device(group, device)
    refused = -1
    values = gathered(group, device, refused if refusal else checksum(description))
    if refusal is not None:
        raise refusal
    if refused in values:
        raise OverlapError(
            f"worker {values.index(refused)} refused weft.overlap: look for the message in its log "
            "(nothing was changed here)"
        )
    if len(set(values)) > 1:
        raise OverlapError(_first_difference(gathered_values(group, device, description)))


def gathered(group: dist.ProcessGroup | None, device: torch.device, value: int) -> list[int]:
    """Every worker's value, in the order of ranks.  Collective."""
    mine = torch.tensor([value], device=device)
    values = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(values, mine, group=group)
    return [int(value.item()) for value in values]


def gathered_values(group: dist.ProcessGroup | None, device: torch.device, value: Any) -> list[Any]:
    """Every worker's value, in the order of ranks.  Collective.

    Sent as JSON rather than pickle, so that another worker can send only data.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    sizes = gathered(group, device, len(text))
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(text)] = text
    rows = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(rows, padded, group=group)
    return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]


def _first_difference(lines: list[list[str]]) -> str:
    for worker in range(1, len(lines)):
        for first, other in zip(lines[0], lines[worker], strict=False):
            if first != other:
                return (
                    f"workers have different models or settings: worker 0 has `{first}` where worker {worker} has "
                    f"`{other}`; build the same model with the same options, in the same order, on every worker"
                )
        if len(lines[0]) != len(lines[worker]):
            return (
                f"workers have different models: worker 0 has {len(lines[0])} parameters and settings, worker {worker} "
                f"has {len(lines[worker])}; build the same model on every worker"
            )
    return "workers have different models or settings"
