"""Joining the other workers: device, threads, and process group."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from weft.errors import SessionError
from weft.worker.environment import WorkerEnvironment
from weft.worker.meeting import meet
from weft.worker.peers import Peers


def choose_device(environment: WorkerEnvironment) -> torch.device:
    """The GPU of this worker's local rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if environment.local_rank >= count:
        raise SessionError(
            f"worker {environment.rank} has LOCAL_RANK={environment.local_rank}, but this machine has {count} GPU(s): "
            "start at most one worker per GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES='' to train on CPUs"
        )
    device = torch.device("cuda", environment.local_rank)
    torch.cuda.set_device(device)
    return device


def choose_num_threads(environment: WorkerEnvironment) -> int | None:
    """This worker's share of the cores; ``None`` if the number of threads is already set."""
    if environment.thread_count_given:
        return None
    return max(1, len(os.sched_getaffinity(0)) // environment.local_world_size)


def join(environment: WorkerEnvironment, device: torch.device) -> Peers:
    """Create the process group.  A single worker gets one too, so that it is not a special case elsewhere."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    dist.init_process_group(
        backend,
        store=HashStore() if environment.world_size == 1 else meet(environment),
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=datetime.timedelta(seconds=environment.collective_timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return peers_of_running_group()


def peers_of_running_group() -> Peers:
    """Peers over the default group if it carries CPU tensors, else over a new one."""
    group = dist.group.WORLD
    if dist.get_world_size() > 1 and "gloo" not in dist.get_backend_config(group):
        group = dist.new_group(backend="gloo")
    return Peers(dist.get_rank(), dist.get_world_size(), group)
