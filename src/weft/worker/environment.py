"""A worker's settings, read once from the environment variables of torchrun and of weft.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.core import worker_environment as names
from weft.core.submission import batch_range
from weft.errors import UsageError

_DEFAULT_CHECKPOINT_EVERY_S = 600.0
_DEFAULT_START_TIMEOUT_S = 120.0
_DEFAULT_COLLECTIVE_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """Set by the launcher; a script started by hand is worker 0 of 1."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    checkpoint_dir: Path | None
    checkpoint_every_s: float
    checkpoint_host: int | None
    """The number of this host, if its checkpoint folder is its own; None if all hosts use the same one."""
    channel: str | None
    stop_file: Path | None
    job_id: str | None
    attempt: int
    start_timeout_s: float
    collective_timeout_s: float
    stall_s: float
    batch_range: tuple[int, int] | None
    """Global batch sizes that the job's owner allows; None to use the script's own."""
    batch_size: int | None
    """The size that the controller has chosen for this attempt."""
    thread_count_given: bool
    master_port: int

    @property
    def first_rank_here(self) -> int:
        """The lowest rank on this host."""
        return self.rank - self.local_rank


def read_environment(environ: Mapping[str, str]) -> WorkerEnvironment:
    """Check and convert; missing variables get their defaults.

    >>> read_environment({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).rank
    1
    """
    rank = _number(environ, "RANK", 0)
    world_size = _number(environ, "WORLD_SIZE", 1)
    if world_size < 1 or not 0 <= rank < world_size:
        raise UsageError(
            f"RANK={rank} and WORLD_SIZE={world_size} do not fit together, expected 0 <= RANK < WORLD_SIZE: start the "
            "script with `weft run` or torchrun, or unset both to train alone"
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if world_size > 1 and missing:
        raise UsageError(
            f"WORLD_SIZE is {world_size} without {' and '.join(missing)}: the workers cannot find each other; "
            "start the script with `weft run --workers N` or torchrun"
        )
    master_port = _number(environ, "MASTER_PORT", 0)
    if not 0 <= master_port < 1 << 16:
        raise UsageError(f"MASTER_PORT={master_port} in the environment: expected a port number below 65536")
    checkpoint_dir = environ.get(names.CHECKPOINT_DIR)
    stop_file = environ.get(names.STOP_FILE)
    return WorkerEnvironment(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        local_world_size=max(_number(environ, "LOCAL_WORLD_SIZE", 1), 1),
        checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir else None,
        checkpoint_every_s=_seconds(environ, names.CHECKPOINT_EVERY_S, _DEFAULT_CHECKPOINT_EVERY_S),
        checkpoint_host=_number(environ, "GROUP_RANK", 0) if environ.get(names.CHECKPOINT_RELAY) == "1" else None,
        channel=environ.get(names.CHANNEL) or None,
        stop_file=Path(stop_file) if stop_file else None,
        job_id=environ.get(names.JOB_ID) or None,
        attempt=_number(environ, names.ATTEMPT, 1),
        start_timeout_s=_seconds(environ, names.START_TIMEOUT_S, _DEFAULT_START_TIMEOUT_S),
        collective_timeout_s=_seconds(environ, names.COLLECTIVE_TIMEOUT_S, _DEFAULT_COLLECTIVE_TIMEOUT_S),
        stall_s=_seconds(environ, names.STALL_S, 0.0),
        batch_range=batch_range(text) if (text := environ.get(names.BATCH_RANGE, "")) else None,
        batch_size=_number(environ, names.BATCH_SIZE, 0) or None,
        master_port=master_port,
        thread_count_given=bool(environ.get("OMP_NUM_THREADS")),
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise UsageError(f"{name}={text!r} in the environment, expected a whole number: correct or unset it") from None


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise UsageError(f"{name}={text!r} in the environment, expected a number of seconds: correct or unset it")
    return value
