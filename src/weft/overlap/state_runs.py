"""Optimizer state as runs of elements, so that it can move to another plan, worker, or number of workers.

A :class:`StateRun` is a contiguous part of one state tensor of one parameter (in the parameter's memory order), or one
of its scalars.  Exporting, saving, loading, and re-bucketing all use runs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.overlap.flat import flat_view
from weft.overlap.layout import Piece
from weft.overlap.update import ShardUpdate

# Stored once per parameter, even if the parameter itself is a scalar.
_SCALAR_KEYS = frozenset({"step", "eta", "mu", "mu_product"})
_WHOLE = -1
_PORTION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class StateRun:
    """Elements ``[start, start + len(values))`` of a state tensor; ``start`` is -1 for a scalar.

    ``on_device``: a scalar that was sent as bytes but belongs on the parameter's device, like the step count of fused
    and capturable optimizers.
    """

    parameter: int
    key: str
    start: int
    values: torch.Tensor
    on_device: bool = False

    def scalar(self, device: torch.device) -> torch.Tensor:
        """A copy where the optimizer expects it; ``device`` is the parameter's."""
        values = self.values.detach()
        return values.to(device, copy=True) if self.on_device else values.clone()


def export_runs(updates: Iterable[ShardUpdate]) -> list[StateRun]:
    """This worker's part of the state.  The tensors are the live ones, not copies."""
    runs = []
    for update in updates:
        if update.optimizer is None:
            continue
        update.settle()
        for piece, slice_ in update.slices:
            for key, value in update.optimizer.state.get(slice_, {}).items():
                if not isinstance(value, torch.Tensor):
                    if value is not None:
                        runs.append(StateRun(piece.parameter, key, _WHOLE, torch.tensor(value)))
                elif value.dim() == 0:
                    runs.append(StateRun(piece.parameter, key, _WHOLE, value))
                else:
                    runs.append(StateRun(piece.parameter, key, piece.start, value))
    return runs


def import_runs(
    updates: Sequence[ShardUpdate], runs: Iterable[StateRun], parameters: Collection[int] | None = None
) -> None:
    """Replace the state of this worker's slices (of some parameters) by ``runs``; without runs they have none."""
    for update in updates:
        if update.optimizer is not None:
            for piece, slice_ in update.slices:
                if parameters is None or piece.parameter in parameters:
                    update.optimizer.state.pop(slice_, None)
    add_runs(updates, runs)


def add_runs(updates: Iterable[ShardUpdate], runs: Iterable[StateRun]) -> None:
    """Set the state of this worker's slices of the parameters in ``runs``; the others keep theirs."""
    by_parameter: dict[int, list[StateRun]] = {}
    for run in runs:
        by_parameter.setdefault(run.parameter, []).append(run)
    for update in updates:
        if update.optimizer is None:
            continue
        for piece, slice_ in update.slices:
            state: dict[str, Any] = {}
            for run in by_parameter.get(piece.parameter, ()):
                if run.start == _WHOLE:
                    state[run.key] = run.scalar(slice_.device)
                else:
                    _copy_overlap(state, piece, slice_, run)
            if state:
                update.optimizer.state[slice_] = state


def portions(parameters: Sequence[torch.Tensor]) -> list[range]:
    """Groups of neighboring parameters, small enough that their state may be in memory twice for a moment.

    >>> portions([torch.empty(3_000_000), torch.empty(2_000_000), torch.empty(10)])
    [range(0, 1), range(1, 3)]
    """
    found, start, num_bytes = [], 0, 0
    for number, parameter in enumerate(parameters):
        size = parameter.numel() * parameter.element_size()
        if number > start and num_bytes + size > _PORTION_BYTES:
            found.append(range(start, number))
            start, num_bytes = number, 0
        num_bytes += size
    return [*found, range(start, len(parameters))]


def runs_of_full_state(parameters: Sequence[torch.nn.Parameter], state: Mapping[Any, dict[str, Any]]) -> list[StateRun]:
    """An ordinary optimizer's state (full tensors), as runs."""
    runs = []
    for number, parameter in enumerate(parameters):
        for key, value in state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and key not in _SCALAR_KEYS:
                runs.append(StateRun(number, key, 0, flat_view(value, parameter)))
            elif value is not None:
                runs.append(StateRun(number, key, _WHOLE, torch.as_tensor(value)))
    return runs


def full_state(parameters: Sequence[torch.nn.Parameter], runs: Iterable[StateRun]) -> dict[int, dict[str, Any]]:
    """Ordinary state (full tensors in the parameters' shapes) from all workers' runs."""
    state: dict[int, dict[str, Any]] = {}
    for run in runs:
        of_parameter = state.setdefault(run.parameter, {})
        if run.start == _WHOLE:
            if run.key not in of_parameter:
                of_parameter[run.key] = run.scalar(parameters[run.parameter].device)
            continue
        parameter = parameters[run.parameter]
        if run.key not in of_parameter:
            of_parameter[run.key] = torch.zeros_like(
                parameter, dtype=run.values.dtype, memory_format=torch.preserve_format, requires_grad=False
            )
        line = flat_view(of_parameter[run.key], of_parameter[run.key])
        line[run.start : run.start + len(run.values)] = run.values
    return state


def overlapping(runs: Iterable[StateRun], pieces: Iterable[Piece]) -> list[StateRun]:
    """The parts of ``runs`` that ``pieces`` need."""
    by_parameter: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_parameter.setdefault(piece.parameter, []).append(piece)
    found = []
    for run in runs:
        for piece in by_parameter.get(run.parameter, ()):
            if run.start == _WHOLE:
                found.append(run)
                break
            low = max(run.start, piece.start)
            high = min(run.start + len(run.values), piece.start + piece.length)
            if low < high or piece.length == 0:
                part = run.values[low - run.start : high - run.start]
                found.append(StateRun(run.parameter, run.key, low, part))
    return found


def encode(runs: Sequence[StateRun]) -> torch.Tensor:
    """Runs as bytes: length of a JSON header, the header, and the raw elements, each aligned to 8 bytes."""
    values = [run.values.detach().to("cpu").contiguous().reshape(-1) for run in runs]
    rows = [
        [run.parameter, run.key, run.start, str(line.dtype)[6:], line.numel(), run.on_device or not run.values.is_cpu]
        for run, line in zip(runs, values, strict=True)
    ]
    header = json.dumps(rows).encode()
    sizes = [8, len(header), *(v.numel() * v.element_size() for v in values)]
    message = torch.empty(sum(map(_padded, sizes)), dtype=torch.uint8)
    parts = [torch.tensor([len(header)]), torch.frombuffer(bytearray(header), dtype=torch.uint8), *values]
    position = 0
    for part, size in zip(parts, sizes, strict=True):
        message[position : position + size] = part.view(torch.uint8)
        position += _padded(size)
    return message


def decode(message: torch.Tensor) -> list[StateRun]:
    """The inverse of :func:`encode`.  The values are views of the message."""
    length = int(message[:8].view(torch.int64).item())
    header = json.loads(bytes(message[8 : 8 + length].tolist()))
    position = 8 + _padded(length)
    runs = []
    for parameter, key, start, dtype_name, count, on_device in header:
        dtype = getattr(torch, dtype_name)
        size = count * dtype.itemsize
        values = message[position : position + size].view(dtype)
        is_scalar = start == _WHOLE
        runs.append(StateRun(parameter, key, start, values.reshape(()) if is_scalar else values, on_device))
        position += _padded(size)
    return runs


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 8) * 8


def _copy_overlap(state: dict[str, Any], piece: Piece, slice_: torch.Tensor, run: StateRun) -> None:
    low = max(run.start, piece.start)
    high = min(run.start + len(run.values), piece.start + piece.length)
    if low >= high and piece.length > 0:
        return
    if run.key not in state:
        state[run.key] = torch.zeros(piece.length, dtype=run.values.dtype, device=slice_.device)
    state[run.key][low - piece.start : high - piece.start] = run.values[low - run.start : high - run.start]
