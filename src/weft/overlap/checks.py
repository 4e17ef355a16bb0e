"""What must be true before anything is touched: refusals with a message that says what to do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from weft.errors import OverlapError
from weft.overlap.layout import checksum

# Parameters that are overlapped now; weak, so that a model that is thrown away is forgotten.
_TAKEN = WeakIdKeyDictionary()


def take(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        _TAKEN[parameter] = True


def give_back(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter in _TAKEN:
            del _TAKEN[parameter]


def check_local(
    model: nn.Module, optimizer: torch.optim.Optimizer, eager: bool, element_wise: bool
) -> tuple[list[str], list[nn.Parameter]]:
    """The names and parameters to overlap, or an :class:`OverlapError`."""
    if not isinstance(model, nn.Module):
        raise OverlapError(f"the model given to weft.overlap is a {type(model).__name__}, expected a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OverlapError(
            f"the optimizer given to weft.overlap is a {type(optimizer).__name__}, expected a torch.optim.Optimizer"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise OverlapError(
            "the model is wrapped in DistributedDataParallel: give weft.overlap the plain module instead"
        )
    named = dict(model.named_parameters())
    _check_parameters(named)
    _check_modules(model)
    of_model = {id(parameter): name for name, parameter in named.items()}
    in_optimizer = [p for group in optimizer.param_groups for p in group["params"]]
    foreign = [p for p in in_optimizer if id(p) not in of_model]
    if foreign:
        raise OverlapError(
            f"the optimizer holds {len(foreign)} parameter(s) that are not in the model (the first has shape "
            f"{tuple(foreign[0].shape)}): make the optimizer from model.parameters() of the same model"
        )
    held = {id(p) for p in in_optimizer}
    missing = [name for name, p in named.items() if p.requires_grad and id(p) not in held]
    if missing:
        raise OverlapError(
            f"{len(missing)} trainable parameter(s) of the model are not in the optimizer ({missing[0]}, ...), so "
            "their gradients would stay local: add them to the optimizer or freeze them with requires_grad_(False)"
        )
    trainable = [(name, p) for name, p in named.items() if p.requires_grad]
    if not trainable:
        raise OverlapError("the model has no parameter that requires a gradient: there is nothing to overlap")
    if eager and not element_wise:
        raise OverlapError(
            f"eager=True updates parameters bucket by bucket, but {type(optimizer).__name__} is not known to work "
            "element by element: use eager=False"
        )
    return [name for name, _ in trainable], [parameter for _, parameter in trainable]


def _check_parameters(named: dict[str, nn.Parameter]) -> None:
    seen: dict[int, str] = {}
    for name, parameter in named.items():
        if parameter in _TAKEN:
            raise OverlapError(
                f"weft.overlap was already called on this model ({name} is overlapped): call detach() on the first "
                "handle before making another"
            )
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise OverlapError(f"parameter {name} has no shape yet: run one forward of the lazy module first")
        if parameter.is_meta:
            raise OverlapError(f"parameter {name} is on the meta device: materialise the model first")
        if hasattr(parameter, "_local_tensor"):
            raise OverlapError(f"parameter {name} is a DTensor (FSDP?): give weft.overlap the plain module")
        if parameter.is_complex():
            raise OverlapError(f"parameter {name} is complex, weft.overlap handles real parameters only")
        pointer = parameter.data_ptr()
        if pointer and pointer in seen:
            raise OverlapError(
                f"parameters {seen[pointer]} and {name} share memory but are two parameters: tie them by assigning the "
                "same nn.Parameter to both modules"
            )
        seen[pointer] = name
    devices = {parameter.device for parameter in named.values()}
    if len(devices) > 1:
        raise OverlapError(f"the model's parameters are on several devices ({sorted(map(str, devices))}), expected one")


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise OverlapError(
                f"module {name} has sparse=True: weft.overlap handles dense gradients only; set sparse=False, or leave "
                "this model to DistributedDataParallel"
            )


def check_alike(
    group: dist.ProcessGroup, device: torch.device, description: list[str], refusal: OverlapError | None
) -> None:
    """All workers have the same plan, or all of them raise.  Collective."""
    workers = dist.get_world_size(group)
    refused = -1
    mine = torch.tensor([refused if refusal else checksum(description)], device=device)
    sums = [torch.zeros_like(mine) for _ in range(workers)]
    dist.all_gather(sums, mine, group=group)
    values = [int(value.item()) for value in sums]
    if refusal is not None:
        raise refusal
    if refused in values:
        raise OverlapError(
            f"worker {values.index(refused)} refused weft.overlap: look for the message in its log "
            "(nothing was changed here)"
        )
    if len(set(values)) > 1:
        theirs = _gather_texts(group, device, "\n".join(description))
        raise OverlapError(_first_difference(theirs))


def _gather_texts(group: dist.ProcessGroup, device: torch.device, text: str) -> list[str]:
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
    size = torch.tensor([len(data)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    longest = max(int(s.item()) for s in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(data)] = data
    rows = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(rows, padded, group=group)
    return [bytes(row[: int(s.item())].tolist()).decode() for row, s in zip(rows, sizes, strict=True)]


def _first_difference(texts: list[str]) -> str:
    lines = [text.split("\n") for text in texts]
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
