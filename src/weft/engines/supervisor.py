"""What ``weft run`` does: attempts, signals, restarts, and the exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from weft.core.worker_environment import CHECKPOINT_DIR, STOPPED_EXIT_CODE
from weft.engines import process_tree
from weft.engines.gang import Gang, GangOutcome, GangPatience
from weft.engines.output import Console
from weft.engines.pool_client import PoolClient, PoolLost
from weft.engines.rendezvous import Rendezvous, ReservedPort
from weft.engines.worker_launch import Devices, Script, gang


@dataclass(frozen=True)
class Run:
    """One job without a controller."""

    script: Script
    num_workers: int
    devices: Devices
    environment: Mapping[str, str]
    max_restarts: int = 0
    warm: bool = True
    needs_torch: bool = True
    outlive: bool = False
    log_dir: Path | None = None
    patience: GangPatience = field(default_factory=GangPatience)


class CaughtSignals:
    """SIGINT, SIGTERM, and SIGHUP as a file to select on, for the duration of a ``with`` block."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, signal._HANDLER] = {}
        self._wakeup_before = -1

    def fileno(self) -> int:
        return self._wake

    def take(self) -> list[int]:
        """Signals since the last call, oldest first."""
        try:
            return list(os.read(self._wake, 4096))
        except BlockingIOError:
            return []

    def __enter__(self) -> CaughtSignals:
        # The handler does nothing: the interpreter writes the number to the pipe that select() watches.
        self._before = {signum: signal.signal(signum, lambda *_: None) for signum in self.SIGNALS}
        self._wakeup_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self._wake)
        os.close(self._waker)


def supervise(run: Run, console: Console) -> int:
    """Run the job to its end and return its exit code."""
    process_tree.adopt_orphans()  # if the pool is killed, we become its workers' parent
    with CaughtSignals() as signals:
        pool = _launch_pool(run)
        try:
            attempt = 0
            while True:
                try:
                    outcome = _attempt(run, attempt, pool, signals, console)
                except PoolLost as lost:
                    pool.abandon()
                    outcome = GangOutcome(lost.exit_code, report=(str(lost),))
                console.say(*_in_words(outcome))
                stop_asked = outcome.stopped or bool(signals.take())
                if outcome.exit_code in (0, STOPPED_EXIT_CODE) or stop_asked or attempt == run.max_restarts:
                    return outcome.exit_code
                folder = run.environment.get(CHECKPOINT_DIR)
                checkpoint = f"checkpoint in {folder}" if folder else "checkpoint, if the script saves any"
                console.say(f"restart {attempt + 1} of {run.max_restarts}, from the newest {checkpoint}")
                attempt += 1
                if pool.process.returncode is not None:
                    pool = _launch_pool(run)
        finally:
            pool.close()


def _launch_pool(run: Run) -> PoolClient:
    return PoolClient.launch(
        warm=run.warm, environment=run.environment, outlive=run.outlive, needs_torch=run.needs_torch
    )


def _attempt(run: Run, attempt: int, pool: PoolClient, signals: CaughtSignals, console: Console) -> GangOutcome:
    # A cold process would take longer than rank 0 to load torch and serve the store.
    with Rendezvous(pool) if run.warm and run.needs_torch else ReservedPort() as place:
        workers = gang(
            run.script,
            num_workers=run.num_workers,
            devices=run.devices,
            port=place.port,
            environment={**run.environment, **place.environment},
            attempt=attempt + 1,  # counts from 1, as under the controller
        )
        started = Gang(pool, workers, console, patience=run.patience, log_dir=run.log_dir)
        place.serve(run.environment, run.devices.cores)
        return started.run(signals)


def _in_words(outcome: GangOutcome) -> tuple[str, ...]:
    if outcome.report:
        return outcome.report
    if outcome.exit_code == STOPPED_EXIT_CODE:
        return ("stopped after a checkpoint: run the same command to resume, with any number of workers",)
    if outcome.stopped:
        return ("stopped without a checkpoint",)
    return ()
