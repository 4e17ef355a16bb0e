"""All workers begin with rank 0's parameters and buffers, as with DDP.

Workers that use the same seed, or load the same checkpoint, already have the same values.  They compare checksums, and
send values only if those differ: a whole model on a slow link would delay every start and every resize.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import OverlapError
from weft.overlap.checks import gathered, meeting_device
from weft.overlap.layout import checksum
from weft.overlap.transport.base import Transport


def described_values(model: nn.Module, ignored: Collection[str], broadcast_buffers: bool) -> list[str]:
    """What workers compare before they send values: gloo ends the process if two workers' messages differ in size.

    Raises :class:`OverlapError` for values that cannot be sent.
    """
    lines = []
    for name, tensor in _values(model, ignored, broadcast_buffers).items():
        problem = _problem_of(tensor)
        if problem:
            raise OverlapError(
                f"{name} is {problem}, so rank 0's values cannot be copied to the other workers: change that, or leave "
                f"it alone with weft.overlap(..., ignore=[{name!r}])"
            )
        lines.append(f"{name} {tuple(tensor.shape)} {tensor.dtype} on {tensor.device.type}")
    return lines


def agree_on_values(
    model: nn.Module,
    group: dist.ProcessGroup,
    transport: Transport,
    ignored: Collection[str],
    broadcast_buffers: bool,
) -> None:
    """Copy rank 0's parameters and buffers to all workers that have others."""
    tensors = list(_values(model, ignored, broadcast_buffers).values())
    if dist.get_world_size(group) == 1 or _are_same(tensors, group):
        return
    sent = [as_bytes(tensor) for tensor in tensors]
    for message in [transport.broadcast(values) for values in sent]:
        message.wait()
    for tensor, values in zip(tensors, sent, strict=True):
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values.view(tensor.dtype).view(tensor.shape))


def _values(model: nn.Module, ignored: Collection[str], broadcast_buffers: bool) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *(model.named_buffers() if broadcast_buffers else ())]
    return {name: tensor.detach() for name, tensor in named if name not in ignored}


def _problem_of(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "nested" if tensor.is_nested else f"sparse ({tensor.layout})"
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_meta:
        return "on the meta device"
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return "expanded (several elements share memory; clone() would give each its own)"
    return ""


def _are_same(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> bool:
    """Whether all workers have the same bits.

    Only for values in main memory: copying them from a GPU takes longer than sending them over NCCL.
    """
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return False
    device = meeting_device(group, torch.device("cpu"))
    return len(set(gathered(group, device, value_checksum(tensors)))) == 1


def value_checksum(tensors: Sequence[Tensor]) -> int:
    """The same for the same bits in the same order, however they are laid out in memory.

    >>> zero = torch.tensor([0.0])
    >>> value_checksum([zero]) == value_checksum([zero.clone()]), value_checksum([zero]) == value_checksum([-zero])
    (True, False)
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        values = as_bytes(tensor)
        digest.update((ctypes.c_char * values.nbytes).from_address(values.data_ptr()) if values.nbytes else b"")
    return checksum(digest.digest())


def as_bytes(tensor: Tensor) -> Tensor:
    """The values of a tensor in order; its own memory if they are there without gaps.

    >>> as_bytes(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)[:, 1])
    tensor([2, 4], dtype=torch.uint8)
    """
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
