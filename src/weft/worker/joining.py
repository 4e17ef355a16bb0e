"""Joining the other workers at the start, and leaving them at the end."""

from __future__ import annotations

import datetime
import os
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import rendezvous

from weft.errors import SessionError
from weft.worker.environment import WorkerEnvironment
from weft.worker.peers import Peers

_NAMED_AT_MOST = 8


def choose_device(environment: WorkerEnvironment) -> torch.device:
    """The GPU of this worker's local rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if environment.local_rank >= count:
        raise SessionError(
            f"worker {environment.rank} has LOCAL_RANK={environment.local_rank}, but this machine shows {count} "
            "GPU(s): start at most one worker per GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES='' to train on CPUs"
        )
    device = torch.device("cuda", environment.local_rank)
    torch.cuda.set_device(device)
    return device


def choose_num_threads(environment: WorkerEnvironment) -> int | None:
    """Cores that are this worker's own; ``None`` when somebody has already said how many threads to use."""
    if environment.thread_count_given:
        return None
    return max(1, len(os.sched_getaffinity(0)) // environment.local_world_size)


def join(environment: WorkerEnvironment, device: torch.device) -> Peers:
    """Make the process group.  A script that is alone gets one too, so that nothing else has to ask."""
    rank, world_size = environment.rank, environment.world_size
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    store = HashStore() if environment.alone else _meet(environment)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=environment.collective_timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return peers_of_running_group()


def peers_of_running_group() -> Peers:
    """Peers over the default group where it carries CPU tensors, else over one beside it."""
    group = dist.group.WORLD
    if dist.get_world_size() > 1 and "gloo" not in dist.get_backend_config(group):
        group = dist.new_group(backend="gloo")
    return Peers(dist.get_rank(), dist.get_world_size(), group)


def _meet(environment: WorkerEnvironment) -> Store:
    """The store that all workers have reached; names those that have not."""
    rank, world_size, limit_s = environment.rank, environment.world_size, environment.start_timeout_s
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    began_s = time.monotonic()
    timeout = datetime.timedelta(seconds=max(limit_s, 1.0))
    try:
        store: Store
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    except dist.DistError as error:
        raise SessionError(
            f"worker {rank} of {world_size} waited {time.monotonic() - began_s:.0f} s at {address} and not all workers "
            f"came ({_first_line(error)}): start all {world_size}, look for the first error in the others' output, and "
            "check that the address is reachable from every host"
        ) from error
    store.set(f"weft/here/{rank}", "1")
    everybody = [f"weft/here/{other}" for other in range(world_size)]
    try:
        store.wait(everybody, timeout)
    except dist.DistError as error:
        missing = [other for other, key in enumerate(everybody) if not store.check([key])]
        named = ", ".join(map(str, missing[:_NAMED_AT_MOST])) + (", ..." if len(missing) > _NAMED_AT_MOST else "")
        raise SessionError(
            f"worker {rank} of {world_size} waited {limit_s:.0f} s at {address} for worker(s) {named}: they were not "
            "started, or failed before they joined; look for the first error in their output"
        ) from error
    return store


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
