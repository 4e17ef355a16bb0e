"""What a worker is before it runs: a script, its environment, its cores.  Plain data; starts no process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.core.plural import plural
from weft.core.worker_environment import ATTEMPT
from weft.errors import EngineError, InputError, UsageError


@dataclass(frozen=True)
class Script:
    """What the user wants to run, as they would write it after ``python``."""

    target: str  # a file, or a module's name when is_module
    args: tuple[str, ...] = ()
    is_module: bool = False
    cwd: str = "."
    is_command: bool = False  # not Python: ``target`` is a program, looked up in PATH

    def __str__(self) -> str:
        return f"-m {self.target}" if self.is_module else self.target


MAX_RUN_WORKERS = 1024  # of one `weft run`
SERVES_WORKERS = -1  # in place of a rank: a process that serves the workers and need not outlast them


@dataclass(frozen=True)
class Worker:
    """One rank of one attempt, ready to be started."""

    rank: int
    script: Script
    environment: dict[str, str]
    cores: tuple[int, ...]
    fresh: bool = False  # needs its own interpreter even where a fork would be faster

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Worker:
        script = Script(**{**document["script"], "args": tuple(document["script"]["args"])})
        return Worker(**{**document, "script": script, "cores": tuple(document["cores"])})


@dataclass(frozen=True)
class GangPart:
    """The workers of an attempt that run on this node, if the attempt spans several nodes."""

    first_rank: int
    world_size: int
    node_rank: int
    num_nodes: int
    address: str
    """Of this node, as seen from the other nodes."""
    interface: str
    """The network interface that has this address."""
    master_address: str = ""
    """Where the workers meet; empty for the part that opens the meeting place itself."""
    master_port: int = 0
    store_is_served: bool = False
    """Whether the node of rank 0 serves the store, rather than rank 0 itself."""

    @property
    def leads(self) -> bool:
        return self.node_rank == 0


@dataclass(frozen=True)
class Devices:
    """The cores we may run on, and the number of visible GPUs."""

    cores: tuple[int, ...]
    num_gpus: int = 0

    @staticmethod
    def of_this_machine(environment: Mapping[str, str] = os.environ) -> Devices:
        return Devices(tuple(sorted(os.sched_getaffinity(0))), visible_gpus(environment))

    def num_workers(self) -> int:
        """One worker per GPU; on a machine without GPUs, one per core."""
        return self.num_gpus or len(self.cores)

    def cores_of(self, rank: int, num_workers: int) -> tuple[int, ...]:
        """The cores of one worker.

        On a machine without GPUs a core is the device: one per worker, shared if there are more workers than cores.
        With GPUs, cores only feed the devices, and all of them are divided among the workers.

        >>> Devices((0, 1, 2, 3)).cores_of(1, num_workers=2)
        (1,)
        >>> Devices((0, 1, 2, 3), num_gpus=2).cores_of(1, num_workers=2)
        (1, 3)
        """
        if self.num_gpus and num_workers <= len(self.cores):
            return self.cores[rank::num_workers]
        return (self.cores[rank % len(self.cores)],)


def visible_gpus(environment: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    """How many GPUs a worker would see, counted without loading a driver library."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    present = sum(1 for file in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", file.name))
    if chosen is None or not present:
        return present
    # CUDA reads the list up to the first entry that names no device, such as -1.
    num_chosen = 0
    for name in chosen.split(","):
        if not name.strip() or name.strip().startswith("-"):
            break
        num_chosen += 1
    return min(num_chosen, present)


def gpu_names(environment: Mapping[str, str], num_gpus: int) -> list[str]:
    """What CUDA calls the GPUs that an engine may use."""
    chosen = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (chosen or [str(number) for number in range(num_gpus)])[:num_gpus]


def checked_count(num_devices: int | None, machine: Devices) -> int:
    """How many devices an engine on this machine assigns."""
    if num_devices is None:
        return machine.num_workers()
    from weft.core.submission import MAX_WORKERS  # `weft run` and its pool do not need it, and should start quickly

    if not 1 <= num_devices <= MAX_WORKERS:
        raise EngineError(f"{num_devices} devices: expected 1 to {MAX_WORKERS} on one machine, one worker each")
    if machine.num_gpus and num_devices > machine.num_gpus:
        has = plural(machine.num_gpus, "GPU")
        raise EngineError(f"{num_devices} devices, but this machine has {has}: use at most that many")
    return num_devices


def num_workers_of(text: str, devices: Devices) -> int:
    """``--workers``: a positive number, or ``auto`` for one worker per device."""
    if text == "auto":
        return devices.num_workers()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--workers {text}: expected a whole number of at least 1, or auto for one per device")
    if int(text) > MAX_RUN_WORKERS:
        raise UsageError(
            f"--workers {text}: expected at most {MAX_RUN_WORKERS}; this machine has "
            f"{plural(devices.num_workers(), 'device')}"
        )
    return int(text)


def script_of(command: Sequence[str], *, is_module: bool, cwd: str) -> Script:
    """The user's command after the options, checked before anything is started."""
    if not command:
        raise UsageError("no script to run: expected `weft run [options] train.py [arguments of train.py]`")
    target, *args = command
    if not is_module:
        path = Path(cwd, target)
        if not path.exists():
            raise InputError("no such file: expected the path to a Python script", file=target)
        if path.is_dir() and not (path / "__main__.py").exists():
            raise InputError("this folder has no __main__.py: expected the path to a Python script", file=target)
        if not os.access(path, os.R_OK):
            raise InputError("permission denied: make the script readable", file=target)
    return Script(target, tuple(args), is_module, cwd)


def gang(
    script: Script, *, num_workers: int, devices: Devices, port: int, environment: Mapping[str, str], attempt: int = 1
) -> list[Worker]:
    """The workers of one attempt that has the machine to itself."""
    cores_by_rank = [devices.cores_of(rank, num_workers) for rank in range(num_workers)]
    return placed_gang(script, cores_by_rank=cores_by_rank, port=port, environment=environment, attempt=attempt)


def placed_gang(
    script: Script,
    *,
    cores_by_rank: Sequence[tuple[int, ...]],
    port: int,
    environment: Mapping[str, str],
    attempt: int = 1,
    fresh: bool = False,
    part: GangPart | None = None,
) -> list[Worker]:
    """The workers of one attempt, or of the ``part`` of it that runs here.

    Variables are torchrun's, so that a script cannot tell the difference.
    """
    workers = []
    part = part or GangPart(0, len(cores_by_rank), 0, 1, address="127.0.0.1", interface="lo")
    for local_rank, cores in enumerate(cores_by_rank):
        rank = part.first_rank + local_rank
        own = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "GROUP_RANK": str(part.node_rank),
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "WORLD_SIZE": str(part.world_size),
            "LOCAL_WORLD_SIZE": str(len(cores_by_rank)),
            "GROUP_WORLD_SIZE": str(part.num_nodes),
            "ROLE_WORLD_SIZE": str(part.world_size),
            "MASTER_ADDR": part.master_address or part.address,
            "MASTER_PORT": str(port),
            ATTEMPT: str(attempt),
        }
        # Defaults that the user's environment overrides.
        defaults = {"OMP_NUM_THREADS": str(len(cores)), "GLOO_SOCKET_IFNAME": part.interface}
        if part.num_nodes > 1:
            defaults["NCCL_SOCKET_IFNAME"] = part.interface
        workers.append(Worker(rank, script, {**defaults, **environment, **own}, cores, fresh))
    return workers
