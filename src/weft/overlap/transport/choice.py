"""Which carrier fits a process group and a device."""

from __future__ import annotations

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.device import device_of
from weft.overlap.transport.base import Transport
from weft.overlap.transport.gloo import GlooTransport
from weft.overlap.transport.groups import make_group
from weft.overlap.transport.nccl import NcclTransport
from weft.overlap.transport.network_threads import let_computing_finish_first, network_threads
from weft.overlap.transport.receive_window import tcp_connections


def transport_for(group: dist.ProcessGroup, device: torch.device) -> Transport:
    """A carrier on groups of its own, with the same workers as ``group``.  Collective."""
    if device.type == "cpu":
        threads, connections = network_threads(), tcp_connections()
        upward, downward = make_group(group, "gloo"), make_group(group, "gloo")
        let_computing_finish_first(network_threads() - threads)
        return GlooTransport(upward, downward, tcp_connections() - connections)
    return NcclTransport(make_group(group, "nccl"), make_group(group, "nccl"), device_of(device))


def check_device(device: torch.device) -> None:
    """Whether there is a carrier at all, before anything is made."""
    if device.type != "cpu" and not (device.type == "cuda" and dist.is_nccl_available()):
        raise OverlapError(
            f"weft.overlap has no transport for parameters on {device}: expected CPU (gloo) or CUDA (NCCL); "
            "move the model before calling weft.overlap"
        )
