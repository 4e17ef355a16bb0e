"""All workers begin with rank 0's parameters and buffers, as with DDP.

Workers that use the same seed, or load the same checkpoint, already have the same values.  They compare checksums, and
send values only if those differ: a whole model on a slow link would delay every start and every resize.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.overlap.checks import gathered, meeting_device
from weft.overlap.layout import checksum
from weft.overlap.transport.base import Transport


def agree_on_values(
    model: nn.Module, group: dist.ProcessGroup, transport: Transport, ignored: set[str], broadcast_buffers: bool
) -> None:
    """Copy rank 0's parameters and buffers to all workers that have others."""
    named = [*model.named_parameters(), *(model.named_buffers() if broadcast_buffers else ())]
    tensors = [tensor.detach() for name, tensor in named if name not in ignored]
    if dist.get_world_size(group) == 1 or _are_same(tensors, group):
        return
    sent = [tensor.contiguous() for tensor in tensors]
    for message in [transport.broadcast(values) for values in sent]:
        message.wait()
    for tensor, values in zip(tensors, sent, strict=True):
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values)


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
        values = tensor.contiguous()
        digest.update((ctypes.c_char * values.nbytes).from_address(values.data_ptr()) if values.nbytes else b"")
    return checksum(digest.digest())
