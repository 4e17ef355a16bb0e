"""The transport for a process group and a device."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.device import device_of
from weft.overlap.transport.base import Transport
from weft.overlap.transport.gloo import GlooTransport
from weft.overlap.transport.groups import make_group, timeout_of
from weft.overlap.transport.host_identity import HostIdentity, agreed_layout, own_identity
from weft.overlap.transport.host_layout import HostLayout
from weft.overlap.transport.host_memory import HostMemory, PageAddress
from weft.overlap.transport.hosts import HostsTransport
from weft.overlap.transport.messages import Messages
from weft.overlap.transport.nccl import NcclTransport
from weft.overlap.transport.network_threads import let_compute_finish_first, network_threads
from weft.overlap.transport.receive_window import tcp_connections

logger = logging.getLogger("weft.overlap")


def transport_for(group: dist.ProcessGroup, device: torch.device) -> Transport:
    """A transport with its own process groups and the same workers as ``group``.  Collective."""
    if device.type == "cpu":
        threads, connections = network_threads(), tcp_connections()
        upward, downward = make_group(group, "gloo"), make_group(group, "gloo")
        let_compute_finish_first(network_threads() - threads)
        messages = Messages(upward, downward, tcp_connections() - connections)
        layout, memory = _meet(messages, timeout_of(group).total_seconds())
        return GlooTransport(messages, layout) if memory is None else HostsTransport(messages, layout, memory)
    return NcclTransport(make_group(group, "nccl"), make_group(group, "nccl"), device_of(device))


def _meet(messages: Messages, timeout_s: float) -> tuple[HostLayout, HostMemory | None]:
    """Which workers share a host, and their shared memory if it helps and every host allows it.  Collective."""
    identities: list[HostIdentity] = [own_identity()] * messages.num_workers
    dist.all_gather_object(identities, identities[0], group=messages.group)
    layout = agreed_layout(identities)
    if not layout.has_two_levels:
        return layout, None
    problem: OSError | AttributeError | None = None  # no such system call, or not permitted
    memory: HostMemory | None = None
    addresses: list[PageAddress | None] = [None] * messages.num_workers
    try:
        memory = HostMemory(messages.rank, messages.num_workers)
        own = memory.address
    except (OSError, AttributeError) as error:
        problem, own = error, None
    dist.all_gather_object(addresses, own, group=messages.group)
    try:
        if memory is not None:
            found = [(rank, addresses[rank]) for rank in layout.neighbors(messages.rank)]
            memory.meet([(rank, address) for rank, address in found if address is not None], timeout_s)
    except OSError as error:
        problem = error
    failed = messages.all_reduce(torch.tensor(float(problem is not None)), maximum=True)
    if memory is not None and not failed:
        return layout, memory
    if problem is not None:
        logger.warning(
            "worker %d cannot share memory with the other workers on its host (%s: %s): gradients go to every worker "
            "in direct messages, which puts more bytes on the host's link; results are the same",
            messages.rank,
            type(problem).__name__,
            problem,
        )
    if memory is not None:
        memory.close()
    return layout, None


def check_device(device: torch.device) -> None:
    """Raise early if no transport fits, before anything is created."""
    if device.type != "cpu" and not (device.type == "cuda" and dist.is_nccl_available()):
        raise OverlapError(
            f"weft.overlap has no transport for parameters on {device}: expected CPU (gloo) or CUDA (NCCL); "
            "move the model before calling weft.overlap"
        )
