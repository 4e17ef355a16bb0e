"""Which of this machine's devices an engine gives away."""

from __future__ import annotations

from collections.abc import Mapping

from weft.core.submission import MAX_WORKERS
from weft.engines.worker_launch import Devices
from weft.errors import EngineError


def checked_count(num_devices: int | None, machine: Devices) -> int:
    if num_devices is None:
        return machine.num_workers()
    if num_devices < 1:
        raise EngineError(f"an engine with {num_devices} devices: expected 1 or more")
    if num_devices > MAX_WORKERS:
        raise EngineError(
            f"{num_devices} devices on one machine: expected at most {MAX_WORKERS}, each runs a worker of its own"
        )
    if machine.num_gpus and num_devices > machine.num_gpus:
        raise EngineError(f"{num_devices} devices on a machine with {machine.num_gpus} GPUs: ask for at most as many")
    return num_devices


def gpu_names(environment: Mapping[str, str], num_gpus: int) -> list[str]:
    """What CUDA calls the GPUs that this engine may use."""
    chosen = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (chosen or [str(number) for number in range(num_gpus)])[:num_gpus]
