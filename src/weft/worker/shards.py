"""Which worker writes which part of the state, and how the parts are reassembled on a different number of workers.

    rank-00000.pt ...   parameters (divided by size: all workers have the same ones) and this worker's optimizer state
    replicated.pt       by rank 0: buffers, the optimizers' options, and everything else with a state dict

Optimizer state is always written as runs of elements (weft.overlap.state_runs), sharded or not.  So a run overlapped on
four workers can resume on one, or under DDP, and vice versa.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.errors import CheckpointError, UsageError
from weft.overlap.flat import flat_view
from weft.overlap.handle import Overlap, handle_of
from weft.overlap.sharded_state import ShardedState
from weft.overlap.state_runs import StateRun, full_state, runs_of_full_state
from weft.overlap.update import is_element_wise
from weft.worker.manifest import TensorEntry

REPLICATED_NAME = "replicated.pt"

_T = TypeVar("_T")


def rank_file_name(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel: names must not depend on how it is trained."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def distinct(objects: Iterable[_T]) -> list[_T]:
    """Each object once: ``run.resume`` may be given one under two names.

    >>> model = object()
    >>> distinct([model, model]) == [model]
    True
    """
    return list({id(one): one for one in objects}.values())


@dataclass(frozen=True)
class Registered:
    """The objects given to ``run.resume``, by name."""

    models: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def handles(self) -> list[Overlap]:
        found = (handle_of(model) for model in distinct(self.models.values()))
        return [handle for handle in found if handle is not None]

    def entries(self) -> dict[str, tuple[TensorEntry, ...]]:
        return {key: _entries(unwrapped(model)) for key, model in self.models.items()}

    def trained_parameters(self) -> set[int]:
        """The ids of the parameters that the optimizers update."""
        groups = (group for optimizer in self.optimizers.values() for group in optimizer.param_groups)
        return {id(parameter) for group in groups for parameter in group["params"] if parameter.requires_grad}

    def parameter_names(self) -> dict[int, str]:
        return {id(parameter): name for parameter, name in _named_parameters(self)}


def register(objects: Mapping[str, Any]) -> Registered:
    """Sort objects by kind, and refuse those that cannot be saved and loaded."""
    found = Registered()
    for name, thing in objects.items():
        if isinstance(thing, nn.Module):
            found.models[name] = thing
        elif isinstance(thing, torch.optim.Optimizer):
            found.optimizers[name] = thing
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            found.others[name] = thing
        else:
            raise UsageError(
                f"run.resume was given {name}= a {type(thing).__name__}, which has no state_dict() and "
                "load_state_dict(): give models, optimizers, schedulers, and objects with these two methods"
            )
    known = found.parameter_names()
    for name, optimizer in found.optimizers.items():
        if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
            raise UsageError(
                f"the optimizer given to run.resume as {name}= has parameters of a model that was not given: add "
                "model=... to the call"
            )
    return found


def capture_own(registered: Registered, rank: int, world_size: int) -> dict[str, Any]:
    """Copies of this worker's part, so that training can continue immediately."""
    for handle in registered.handles:
        handle.flush()
    parameters = {}
    for key, model in registered.models.items():
        named = dict(unwrapped(model).named_parameters())
        for name in _divided({n: p.numel() * p.element_size() for n, p in named.items()}, world_size)[rank]:
            parameters[f"{key}/{name}"] = _copy(named[name])
    runs = []
    names = registered.parameter_names()
    for key, optimizer in registered.optimizers.items():
        for parameter_name, run in _own_runs(optimizer, registered, names, rank, world_size):
            runs.append((key, parameter_name, run.key, run.start, _copy(run.values)))
    return {"parameters": parameters, "runs": runs}


def capture_replicated(registered: Registered) -> dict[str, Any]:
    """What rank 0 writes for all: the same on every worker, or rank 0's by convention."""
    names = registered.parameter_names()
    rest = {}
    for key, model in registered.models.items():
        plain = unwrapped(model)
        parameter_names = {name for name, _ in plain.named_parameters(remove_duplicate=False)}
        rest[key] = {n: _copied(v) for n, v in plain.state_dict().items() if n not in parameter_names}
    groups = {
        key: [
            {**{k: v for k, v in group.items() if k != "params"}, "params": [names[id(p)] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        for key, optimizer in registered.optimizers.items()
    }
    strides = {name: list(p.stride()) for p, name in _named_parameters(registered)}
    whole = {k: _copied(o.state_dict()) for k, o in registered.optimizers.items() if not is_element_wise(o)}
    others = {key: _copied(thing.state_dict()) for key, thing in registered.others.items()}
    tied = {key: _tied(unwrapped(model)) for key, model in registered.models.items()}
    return {
        "buffers": rest,
        "groups": _copied(groups),
        "strides": strides,
        "whole": whole,
        "others": others,
        "tied": tied,
    }


def _own_runs(
    optimizer: torch.optim.Optimizer, registered: Registered, names: dict[int, str], rank: int, world_size: int
) -> Iterable[tuple[str, StateRun]]:
    if not is_element_wise(optimizer):
        return []
    sharded = _sharded_state(optimizer, registered)
    if sharded is not None:
        return [(names[id(sharded.parameter(run.parameter))], run) for run in sharded.own_runs()]
    parameters = _parameters(optimizer)
    sizes = {str(n): p.numel() * p.element_size() for n, p in enumerate(parameters)}
    own = {int(n) for n in _divided(sizes, world_size)[rank]}
    runs = runs_of_full_state(parameters, optimizer.state)
    return [(names[id(parameters[r.parameter])], r) for r in runs if r.parameter in own]


def read_parts(path: Path, num_files: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All parts of a checkpoint, memory-mapped: a worker reads only what it needs."""
    names = [*(rank_file_name(rank) for rank in range(num_files)), REPLICATED_NAME]
    parts = []
    for name in names:
        try:
            parts.append(torch.load(path / name, map_location="cpu", weights_only=True, mmap=True))
        except Exception as error:
            raise CheckpointError(
                f"{path / name} cannot be loaded ({error}): start from an older checkpoint"
            ) from error
    return parts[:-1], parts[-1]


def model_state(key: str, parts: list[dict[str, Any]], replicated: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The state dict of one model; tied parameters under all of their names, if the checkpoint lists these."""
    prefix = f"{key}/"
    state = dict(replicated["buffers"][key])
    for part in parts:
        state.update({n[len(prefix) :]: v for n, v in part["parameters"].items() if n.startswith(prefix)})
    state.update({name: state[first] for name, first in replicated.get("tied", {}).get(key, {}).items()})
    return state


def restore(registered: Registered, parts: list[dict[str, Any]], replicated: dict[str, Any]) -> None:
    """Load everything registered; the caller has checked that the models match."""
    for key, model in registered.models.items():
        state = model_state(key, parts, replicated)
        plain = unwrapped(model)
        named = dict(plain.named_parameters())
        for name, parameter in plain.named_parameters(remove_duplicate=False):
            if name not in named:  # tied: saved once, under its first name
                first = next(n for n, p in named.items() if p is parameter)
                state[name] = state[first]
        plain.load_state_dict(state)
    for key, optimizer in registered.optimizers.items():
        _restore_optimizer(key, optimizer, registered, parts, replicated)
    for key, thing in registered.others.items():
        if key in replicated["others"]:
            thing.load_state_dict(_copied(replicated["others"][key]))


def _restore_optimizer(
    key: str,
    optimizer: torch.optim.Optimizer,
    registered: Registered,
    parts: list[dict[str, Any]],
    replicated: dict[str, Any],
) -> None:
    if key in replicated["whole"]:
        optimizer.load_state_dict(_copied(replicated["whole"][key]))
        return
    names = registered.parameter_names()
    saved_groups = replicated["groups"][key]
    saved = [name for group in saved_groups for name in group["params"]]
    here = [names[id(p)] for p in _parameters(optimizer)]
    if saved != here or [len(g["params"]) for g in saved_groups] != [len(g["params"]) for g in optimizer.param_groups]:
        differing = next((s for s, h in zip(saved, here, strict=False) if s != h), "the number of parameters")
        raise CheckpointError(
            f"the optimizer {key}= groups its parameters differently from the checkpoint's (first difference: "
            f"{differing}): use the same parameter groups as in the run that wrote it"
        )
    numbers = {name: number for number, name in enumerate(here)}
    sharded = _sharded_state(optimizer, registered)
    if sharded is not None:
        numbers = {names[id(p)]: number for number, p in enumerate(sharded.parameters)}
    runs = [
        StateRun(numbers[name], state_key, start, values)
        for part in parts
        for owner, name, state_key, start, values in part["runs"]
        if owner == key and name in numbers
    ]
    runs = _in_our_order(runs, sharded.parameters if sharded else _parameters(optimizer), names, replicated["strides"])
    groups = optimizer.state_dict()["param_groups"] if sharded is None else _packed_groups(optimizer)
    for group, saved_group in zip(groups, saved_groups, strict=True):
        group.update(_copied({k: v for k, v in saved_group.items() if k != "params"}))
    state = full_state(_parameters(optimizer), runs) if sharded is None else {}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    if sharded is not None:
        sharded.replace_all([_placed(run, optimizer, sharded) for run in runs])


def _in_our_order(
    runs: list[StateRun], parameters: Sequence[nn.Parameter], names: dict[int, str], strides: dict[str, list[int]]
) -> list[StateRun]:
    """Runs count elements in memory order, which differs if only one of the two jobs uses channels_last."""
    changed = {
        number for number, p in enumerate(parameters) if tuple(strides[names[id(p)]]) != p.stride() and p.numel() > 1
    }
    whole: dict[tuple[int, str], torch.Tensor] = {}
    for run in runs:
        if run.parameter in changed and run.start >= 0:
            parameter = parameters[run.parameter]
            if (run.parameter, run.key) not in whole:
                whole[run.parameter, run.key] = torch.empty_strided(
                    parameter.shape, strides[names[id(parameter)]], dtype=run.values.dtype
                )
            line = flat_view(whole[run.parameter, run.key], whole[run.parameter, run.key])
            line[run.start : run.start + len(run.values)] = run.values
    kept = [run for run in runs if run.parameter not in changed or run.start < 0]
    return kept + [StateRun(n, key, 0, flat_view(value, parameters[n])) for (n, key), value in whole.items()]


def _tied(model: nn.Module) -> dict[str, str]:
    """Further names of tied parameters, each with the name under which its values are saved."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if name != first[id(parameter)]}


def _named_parameters(registered: Registered) -> list[tuple[nn.Parameter, str]]:
    return [
        (parameter, f"{key}/{name}")
        for key, model in registered.models.items()
        for name, parameter in unwrapped(model).named_parameters()
    ]


def _placed(run: StateRun, optimizer: torch.optim.Optimizer, sharded: ShardedState) -> StateRun:
    """Step counts live on the parameters' device if the optimizer's kernel reads them there."""
    on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    if run.values.dim() == 0 and on_device:
        return StateRun(run.parameter, run.key, run.start, run.values.to(sharded.parameter(run.parameter).device))
    return run


def _packed_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """``state_dict()["param_groups"]`` without asking the other workers for their state."""
    index = {id(p): n for n, p in enumerate(_parameters(optimizer))}
    return [{**group, "params": [index[id(p)] for p in group["params"]]} for group in optimizer.param_groups]


def _sharded_state(optimizer: torch.optim.Optimizer, registered: Registered) -> ShardedState | None:
    for handle in registered.handles:
        for part in handle.parts:
            if part.optimizer is optimizer and isinstance(part.state, ShardedState):
                return part.state
    return None


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _entries(model: nn.Module) -> tuple[TensorEntry, ...]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    saved = model.state_dict(keep_vars=True)
    return tuple(
        TensorEntry(name, tuple(tensor.shape), str(tensor.dtype)[6:])
        for name, tensor in tensors.items()
        if name in saved
    )


def _divided(sizes: Mapping[str, int], num_workers: int) -> list[list[str]]:
    """Divide names among workers so that all write about the same amount."""
    own: list[list[str]] = [[] for _ in range(num_workers)]
    load = [0] * num_workers
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        least = load.index(min(load))
        own[least].append(name)
        load[least] += sizes[name]
    return own


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _copied(value: Any) -> Any:
    """A deep copy of a state dict: tensors on the CPU, new containers, everything else shared."""
    if isinstance(value, torch.Tensor):
        return _copy(value)
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(inner) for inner in value) if not hasattr(value, "_fields") else value
    return value
