"""The transport for a process group and a device."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.device import device_of
from weft.overlap.transport.base import Transport
from weft.overlap.transport.gloo import GlooTransport
from weft.overlap.transport.grid import GridTransport
from weft.overlap.transport.groups import make_group, timeout_of
from weft.overlap.transport.host_identity import HostIdentity, agreed_layout, own_identity
from weft.overlap.transport.host_layout import MIN_GRID_WORKERS, HostLayout, grid_layout
from weft.overlap.transport.host_memory import HostMemory, PageAddress
from weft.overlap.transport.hosts import HostsTransport
from weft.overlap.transport.messages import Circle, Messages
from weft.overlap.transport.nccl import NcclTransport
from weft.overlap.transport.network_threads import let_compute_finish_first, network_threads
from weft.overlap.transport.receive_window import tcp_connections

_log = logging.getLogger("weft.overlap")


def transport_for(group: dist.ProcessGroup, device: torch.device) -> Transport:
    """A transport with its own process groups and the same workers as ``group``.  Collective."""
    if device.type == "cpu":
        return _over_gloo(group, timeout_of(group).total_seconds())
    return NcclTransport(make_group(group, "nccl"), make_group(group, "nccl"), device_of(device))


def _over_gloo(group: dist.ProcessGroup, timeout_s: float) -> Transport:
    threads, connections = network_threads(), tcp_connections()
    everyone = make_group(group, "gloo")
    rank = dist.get_rank(everyone)
    layout, memory = _meet(everyone, timeout_s)
    is_direct = layout.num_workers < MIN_GRID_WORKERS or (layout.has_two_levels and memory is None)
    if is_direct:
        circles = [Circle(range(layout.num_workers), everyone, make_group(everyone, "gloo"))]
    else:
        connections = tcp_connections()
        layout = grid_layout(layout.num_workers) if memory is None else layout
        # Every worker makes every group, in the same order: groups are numbered.
        made = [
            Circle(members, make_group(everyone, "gloo", members), make_group(everyone, "gloo", members))
            for members in (*layout.columns, *(layout.hosts if memory is None else ()))
        ]
        circles = [circle for circle in made if rank in circle.members]
    messages = Messages(everyone, circles, tcp_connections() - connections)
    let_compute_finish_first(network_threads() - threads)
    if memory is not None:
        return HostsTransport(messages, layout, memory)
    return GlooTransport(messages, layout) if is_direct else GridTransport(messages, layout, timeout_s)


def _meet(group: dist.ProcessGroup, timeout_s: float) -> tuple[HostLayout, HostMemory | None]:
    """Which workers share a host, and their shared memory if it helps and every host allows it.  Collective."""
    rank, num_workers = dist.get_rank(group), dist.get_world_size(group)
    identities: list[HostIdentity] = [own_identity()] * num_workers
    dist.all_gather_object(identities, identities[0], group=group)
    layout = agreed_layout(identities)
    if not layout.has_two_levels:
        return layout, None
    problem: OSError | AttributeError | None = None  # no such system call, or not permitted
    memory: HostMemory | None = None
    addresses: list[PageAddress | None] = [None] * num_workers
    try:
        memory = HostMemory(rank, num_workers)
        own = memory.address
    except (OSError, AttributeError) as error:
        problem, own = error, None
    dist.all_gather_object(addresses, own, group=group)
    try:
        if memory is not None:
            found = [(rank, addresses[rank]) for rank in layout.neighbors(rank)]
            memory.meet([(rank, address) for rank, address in found if address is not None], timeout_s)
    except OSError as error:
        problem = error
    failed = torch.tensor(float(problem is not None))
    dist.all_reduce(failed, dist.ReduceOp.MAX, group=group)
    if memory is not None and not failed:
        return layout, memory
    if problem is not None:
        _log.warning(
            "worker %d cannot share memory with the other workers on its host (%s: %s): gradients go to every worker "
            "in direct messages, which puts more bytes on the host's link; results are the same",
            rank,
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
