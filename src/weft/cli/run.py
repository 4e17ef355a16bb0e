"""``weft run train.py``: one training script on several workers on this machine, without a controller."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from weft.core.command_line import Option, Rest
from weft.core.plural import plural
from weft.core.worker_environment import CHECKPOINT_DIR, JOB_ID, STALL_S
from weft.engines.gang import GangPatience
from weft.engines.output import Console
from weft.engines.plain_script import needs_no_torch
from weft.engines.supervisor import Run, supervise
from weft.engines.worker_launch import Devices, num_workers_of, script_of
from weft.errors import InputError, LeaseError, UsageError

if TYPE_CHECKING:
    from weft.crossover.run_lease import RunLease


def run(
    command: Annotated[list[str], Rest("SCRIPT [ARGS]...", "a Python script; everything after it is passed on to it")],
    workers: Annotated[
        str, Option("number of workers; auto is one per GPU, or one per core without GPUs", metavar="N")
    ] = "auto",
    is_module: Annotated[bool, Option("SCRIPT is a module name, as in `python -m`", name="-m")] = False,
    checkpoint_dir: Annotated[
        Path | None, Option("where weft.session() keeps checkpoints", "checkpoints/SCRIPT", metavar="DIR")
    ] = None,
    max_restarts: Annotated[int, Option("restart after a failure, at most N times", min=0)] = 0,
    grace_s: Annotated[float, Option("time to save a checkpoint before workers are killed", min=0)] = 120.0,
    hang_s: Annotated[float, Option("how long a worker may be stopped by a signal before the job ends", min=0)] = 5.0,
    stall_s: Annotated[float, Option("end the job if no step finishes for this long; 0 means never", min=0)] = 0.0,
    cold: Annotated[bool, Option("start a new interpreter per worker instead of forking")] = False,
    log_dir: Annotated[
        Path | None, Option("write output to rank<N>.out and rank<N>.err in DIR", "the terminal", metavar="DIR")
    ] = None,
    outlive: Annotated[bool, Option("let workers keep running if `weft run` is killed; needs --log-dir")] = False,
    share: Annotated[bool, Option("take turns on the devices with other runs that use --share")] = False,
) -> None:
    """Run SCRIPT on several workers, one core (or GPU) each. Output lines are prefixed with the worker's rank.

    The first Ctrl-C or SIGTERM asks the workers to save a checkpoint and stop after the current step; the second kills
    them. When one worker fails, all are stopped, and the original error is shown first.

    Exit codes: 0 success; 75 stopped after a checkpoint; 143 or 130 stopped without one; 124 a worker hung; 128 + N
    a worker was killed by signal N; 2 usage error; otherwise the exit code of the worker that failed first.
    """
    devices = Devices.of_this_machine()
    num_workers = num_workers_of(workers, devices)
    script = script_of(command[command[:1] == ["--"] :], is_module=is_module, cwd=os.getcwd())
    if outlive and log_dir is None:
        raise UsageError("--outlive needs --log-dir: without it, output goes to this `weft run`")
    environment = dict(os.environ)
    if checkpoint_dir is not None:
        environment[CHECKPOINT_DIR] = str(_folder(checkpoint_dir))
    if stall_s > 0:
        environment[STALL_S] = str(stall_s)
    console = Console()
    lease = _lease(environment, console) if share else None
    if lease is not None:
        environment |= lease.environment
        console.say(lease.in_words())
    job = Run(
        script=script,
        num_workers=num_workers,
        devices=devices,
        environment=environment,
        max_restarts=max_restarts,
        warm=not cold,
        # A script without torch should not wait for torch to be imported.
        needs_torch=script.is_module or not needs_no_torch(Path(script.cwd, script.target)),
        outlive=outlive,
        log_dir=None if log_dir is None else _folder(log_dir),
        patience=GangPatience(grace_s=grace_s, hang_s=hang_s),
    )
    if num_workers > devices.num_workers():
        console.say(f"{num_workers} workers share {plural(devices.num_workers(), 'device')}: do not expect a speedup")
    try:
        raise SystemExit(supervise(job, console))
    finally:
        if lease is not None:
            lease.close()


def _lease(environment: Mapping[str, str], console: Console) -> RunLease | None:
    """All runs of this user share one lease server; a worker's device is its position on this machine.

    Taking turns changes only the speed: without a server, the run starts all the same.
    """
    from weft.crossover.run_lease import RunLease  # only for --share

    home = Path(environment.get("WEFT_HOME") or Path.home() / ".weft")
    try:
        return RunLease.opened(home, environment.get(JOB_ID) or f"run {os.getpid()}")
    except (LeaseError, OSError) as error:
        console.say(f"does not take turns with other runs: {error}")
        return None


def _folder(path: Path) -> Path:
    """The folder's absolute path (workers may run elsewhere); created if necessary."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be created ({error.strerror}): choose a folder you can write to", file=str(path)
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError("permission denied: choose a folder you can write to", file=str(path))
    return path.absolute()
