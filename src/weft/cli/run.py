"""``weft run train.py``: one training script on several workers of this machine, without a controller."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from weft.core.worker_environment import CHECKPOINT_DIR, JOB_ID, LEASE, STALL_S
from weft.crossover.launch import ensure_server
from weft.engines.gang import Patience
from weft.engines.launch import Devices, num_workers_of, script_of
from weft.engines.output import Console
from weft.engines.supervisor import Run, supervise
from weft.errors import InputError, UsageError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# Everything from the script's name on belongs to the script.
BEHIND_SCRIPT = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=BEHIND_SCRIPT)
def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", show_default=False)] = None,
    workers: Annotated[str, typer.Option(help="How many, or `auto`: one per GPU, without GPUs one per core.")] = "auto",
    is_module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as with `python -m`.")] = False,
    checkpoint_dir: Annotated[Path | None, typer.Option(help="Where weft.session() keeps checkpoints.")] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="Start again after a failure, at most so often.")] = 0,
    grace_s: Annotated[float, typer.Option(min=0, help="Time to save between a stop request and the kill.")] = 120.0,
    hang_s: Annotated[float, typer.Option(min=0, help="How long a worker may stand still, stopped by a signal.")] = 5.0,
    stall_s: Annotated[float, typer.Option(min=0, help="End the job when no step ends for so long; 0: never.")] = 0.0,
    cold: Annotated[bool, typer.Option("--cold", help="A fresh interpreter per worker instead of a fork.")] = False,
    log_dir: Annotated[Path | None, typer.Option(help="Output to rank<N>.out and .err here, not joined.")] = None,
    outlive: Annotated[bool, typer.Option("--outlive", help="Let workers go on if weft run dies.")] = False,
    share: Annotated[bool, typer.Option("--share", help="Take turns on the devices with other such runs.")] = False,
) -> None:
    """Run SCRIPT on several workers: one core (or GPU) each, output joined with ranks in front.

    The first Ctrl-C or SIGTERM asks the workers to stop after this step with a checkpoint, the second kills them.
    When one worker fails all are stopped, and the first cause is shown first.

    Exit codes: 0 all done; 75 stopped after a checkpoint; 143 or 130 stopped without; 124 a worker hung; 128 + N
    a worker was killed by signal N; 2 wrong usage; else the exit code of the worker that failed first.
    """
    devices = Devices.of_this_machine()
    num_workers = num_workers_of(workers, devices)
    script = script_of(command or [], is_module=is_module, cwd=os.getcwd())
    if outlive and log_dir is None:
        raise UsageError("--outlive needs --log-dir: output cannot go to a weft that has ended")
    environment = dict(os.environ)
    if checkpoint_dir is not None:
        environment[CHECKPOINT_DIR] = str(_folder(checkpoint_dir))
    if stall_s > 0:
        environment[STALL_S] = str(stall_s)
    if share:
        environment |= _lease(environment)
    job = Run(
        script=script,
        num_workers=num_workers,
        devices=devices,
        environment=environment,
        max_restarts=max_restarts,
        warm=not cold,
        outlive=outlive,
        log_dir=None if log_dir is None else _folder(log_dir),
        patience=Patience(grace_s=grace_s, hang_s=hang_s),
    )
    console = Console()
    if num_workers > devices.num_workers():
        console.say(f"{num_workers} workers share {devices.num_workers()} devices: expect no gain in speed")
    raise typer.Exit(supervise(job, console))


def _lease(environment: Mapping[str, str]) -> dict[str, str]:
    """What tells the workers to take turns.  The server is the one of this user's other runs; a worker's device is its
    place on this machine."""
    home = Path(environment.get("WEFT_HOME") or Path.home() / ".weft")
    return {
        LEASE: str(ensure_server(home)),
        JOB_ID: environment.get(JOB_ID) or f"run {os.getpid()}",
    }


def _folder(path: Path) -> Path:
    """The folder, made if need be; the workers may run elsewhere, so its whole path."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be made ({error.strerror}): give a folder you may write to", file=str(path)
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError("may not be written to by you: give a folder you may write to", file=str(path))
    return path.absolute()
