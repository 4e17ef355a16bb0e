"""Sharing a GPU needs NVIDIA's multi-process service (MPS).

NCCL's kernels occupy the device while they wait for the network.  Without MPS, the kernels of two processes never run
at the same time, so a job that only communicates would keep the other one from computing.  We have not measured sharing
on GPUs.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from weft.errors import LeaseError

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT_PIPES = Path("/tmp/nvidia-mps")
_DAEMON = "nvidia-cuda-mps-control"


def has_mps(environment: Mapping[str, str], proc: Path = Path("/proc")) -> bool:
    """Whether the MPS daemon is running and its pipe is where CUDA looks for it."""
    pipe = Path(environment.get(PIPE_DIRECTORY) or _DEFAULT_PIPES) / "control"
    try:
        is_pipe = stat.S_ISFIFO(pipe.stat().st_mode)
    except OSError:
        return False
    return is_pipe and any(_is_daemon(process) for process in proc.glob("[0-9]*"))


def check_sharing(backend: str, environment: Mapping[str, str], proc: Path = Path("/proc")) -> None:
    """Refuse to share a GPU between jobs that use NCCL, unless MPS is running."""
    if "nccl" in backend.lower() and not has_mps(environment, proc):
        where = environment.get(PIPE_DIRECTORY) or _DEFAULT_PIPES
        raise LeaseError(
            f"this job uses NCCL and shares its GPU, but MPS is not running (no {_DAEMON} with a control pipe in "
            f"{where}): NCCL's waiting kernels would keep the other job from computing. Start it with "
            f"`{_DAEMON} -d` before the jobs, or do not share"
        )


def _is_daemon(process: Path) -> bool:
    try:
        # The kernel truncates names to 15 bytes.
        return (process / "comm").read_text().strip() == _DAEMON[:15]
    except OSError:
        return False  # it has ended
