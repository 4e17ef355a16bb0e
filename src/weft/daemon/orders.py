"""Carrying out actions: calls to the engine and the channel, and what is done when a call fails."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from weft.control.state import Job
from weft.core import worker_environment as names
from weft.core.actions import StartWorkers
from weft.core.engine import Engine, StartOrder
from weft.core.events import Fate, WorkersExited
from weft.core.failpoints import failpoint
from weft.daemon.channel import JobChannel
from weft.daemon.home import Home
from weft.daemon.knowledge import Knowledge
from weft.daemon.metrics import Metrics
from weft.daemon.sharing import Sharing
from weft.errors import WeftError

_log = logging.getLogger(__name__)

_TRY_AGAIN_S = 1.0


class Orders:
    """One controller's way to its engine.  Calls are idempotent there, so a failed one is simply repeated."""

    def __init__(
        self,
        home: Home,
        engine: Engine,
        channel: JobChannel,
        sharing: Sharing,
        knowledge: Knowledge,
        metrics: Metrics,
    ) -> None:
        self._home, self._engine, self._channel, self._sharing = home, engine, channel, sharing
        self._knowledge, self._metrics = knowledge, metrics
        self._failed: dict[tuple[str, str, int], Callable[[], None]] = {}
        self.due_s = math.inf
        """When calls that failed are to be repeated."""

    def start(self, job: Job, action: StartWorkers, now_s: float) -> WorkersExited | None:
        """Order the workers; returns how the attempt ended if it could not even be ordered."""
        if job.launch is None:
            return WorkersExited(now_s, job.id, action.attempt, Fate.FAILED, 1, "the job has no command to start")
        failpoint("controller.before_start")
        try:
            checkpoints = self._home.checkpoints(job.id)
            checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
            environment = {
                names.JOB_ID: job.id,
                names.ATTEMPT: str(action.attempt),
                names.CHANNEL: str(self._home.channel_socket),
                names.CHECKPOINT_DIR: str(checkpoints),
                **self._sharing.environment(job, action.devices),
            }
            self._engine.start(StartOrder(job.id, action.attempt, action.devices, job.launch, environment))
        except (WeftError, OSError) as error:
            _log.error("attempt %d of job %s cannot be started: %s", action.attempt, job.id, error)
            self._metrics.engine_errors.inc()
            reason = f"its workers cannot be started: {error}"
            return WorkersExited(now_s, job.id, action.attempt, Fate.LOST, 1, reason)
        failpoint("controller.after_start")
        if job.workers_since_s is None:  # else it runs since before this controller was started
            self._knowledge.start_ordered(job.id, now_s)
        return None

    def stop(self, job_id: str, attempt: int, now_s: float) -> None:
        """Ask the workers to leave, by the channel and by the engine's signal."""
        self._knowledge.stop_ordered(job_id, now_s)
        failpoint("controller.before_stop")
        self._channel.stop(job_id, attempt)
        self._call("stop", job_id, attempt, self._engine.stop)
        failpoint("controller.after_stop")

    def kill(self, job_id: str, attempt: int) -> None:
        failpoint("controller.before_kill")
        self._call("kill", job_id, attempt, self._engine.kill)
        failpoint("controller.after_kill")

    def forget(self, job_id: str, attempt: int) -> None:
        """The end of the attempt is written down."""
        self._channel.forget(job_id, attempt)
        failpoint("controller.before_forget")
        self._call("forget", job_id, attempt, self._engine.forget)
        failpoint("controller.after_forget")

    def try_again(self, now_s: float) -> None:
        """Repeat calls that failed, once a second."""
        if self._failed and self.due_s == math.inf:
            self.due_s = now_s + _TRY_AGAIN_S
        elif now_s >= self.due_s:
            self.due_s = math.inf
            waiting, self._failed = self._failed, {}
            for again in waiting.values():
                again()

    def _call(self, what: str, job_id: str, attempt: int, call: Callable[[str, int], None]) -> None:
        try:
            call(job_id, attempt)
        except (WeftError, OSError) as error:
            _log.error("attempt %d of job %s: %s failed, will be tried again: %s", attempt, job_id, what, error)
            self._metrics.engine_errors.inc()
            self._failed[what, job_id, attempt] = lambda: self._call(what, job_id, attempt, call)
