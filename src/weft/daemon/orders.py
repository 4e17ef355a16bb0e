"""Carries out actions: calls the engine and the channel, and repeats calls that fail."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable

from weft.control.state import Job
from weft.core import worker_environment as names
from weft.core.actions import StartWorkers
from weft.core.cluster import Cluster
from weft.core.engine import Engine, StartOrder
from weft.core.events import Fate, WorkersExited
from weft.daemon.home import Home
from weft.daemon.knowledge import Knowledge
from weft.daemon.metrics import Metrics
from weft.daemon.report_channel import JobChannel
from weft.daemon.sharing import LeaseServers
from weft.process.failpoints import failpoint

_log = logging.getLogger(__name__)

_TRY_AGAIN_S = 1.0


class Orders:
    """Engine calls are idempotent, so a failed one is simply repeated."""

    def __init__(
        self,
        home: Home,
        engine: Engine,
        channel: JobChannel,
        sharing: LeaseServers,
        knowledge: Knowledge,
        metrics: Metrics,
    ) -> None:
        self._home, self._engine, self._channel, self._sharing = home, engine, channel, sharing
        self._knowledge, self._metrics = knowledge, metrics
        self._failed: dict[tuple[str, str, int], Callable[[], None]] = {}
        self._waiting: dict[tuple[str, int], tuple[Job, StartWorkers, Cluster, str]] = {}
        """Attempts that could not be ordered yet, and why."""
        self.due_s = math.inf
        """When to repeat calls that failed."""

    def hint(self, job_id: str, attempt: int) -> str:
        """Why this attempt could not be ordered yet; "" if it was."""
        waiting = self._waiting.get((job_id, attempt))
        return "" if waiting is None else waiting[3]

    def start(self, job: Job, action: StartWorkers, cluster: Cluster, now_s: float) -> WorkersExited | None:
        """Order the workers; returns the attempt's end if it cannot be started at all."""
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
                **self._knowledge.batches.environment(job, len(action.devices)),
            }
            names_of = tuple(cluster.device_name(device) for device in action.devices)
            self._engine.start(StartOrder(job.id, action.attempt, action.devices, job.launch, environment, names_of))
        except Exception as error:
            self._metrics.engine_errors.inc()
            if isinstance(error, OSError):
                # The home cannot be written to now.  That is not the job's fault, and nothing was started.
                self._waiting[job.id, action.attempt] = (job, action, cluster, _wait_in_words(error))
                return None
            _log.error("attempt %d of job %s cannot be started: %s", action.attempt, job.id, error)
            reason = f"its workers cannot be started: {error}"
            return WorkersExited(now_s, job.id, action.attempt, Fate.LOST, 1, reason)
        failpoint("controller.after_start")
        if job.workers_since_s is None:  # otherwise an earlier controller started it
            self._knowledge.restarts.start_ordered(job.id, now_s)
        return None

    def stop(self, job_id: str, attempt: int, now_s: float) -> WorkersExited | None:
        """Ask the workers to stop, through the channel and the engine; returns the attempt's end if there are none."""
        if (job_id, attempt) in self._waiting:
            return self._dropped(job_id, attempt, now_s)
        self._knowledge.restarts.stop_ordered(job_id, now_s)
        failpoint("controller.before_stop")
        self._channel.stop(job_id, attempt)
        self._call("stop", job_id, attempt, self._engine.stop)
        failpoint("controller.after_stop")
        return None

    def kill(self, job_id: str, attempt: int, now_s: float) -> WorkersExited | None:
        """Kill the workers; returns the attempt's end if there are none."""
        if (job_id, attempt) in self._waiting:
            return self._dropped(job_id, attempt, now_s)
        failpoint("controller.before_kill")
        self._call("kill", job_id, attempt, self._engine.kill)
        failpoint("controller.after_kill")
        return None

    def forget(self, job_id: str, attempt: int) -> None:
        """The attempt's end is durable."""
        self._channel.forget(job_id, attempt)
        failpoint("controller.before_forget")
        self._call("forget", job_id, attempt, self._engine.forget)
        failpoint("controller.after_forget")

    def try_again(self, now_s: float) -> list[WorkersExited]:
        """Repeat calls that failed, once a second; returns the ends of attempts that cannot be started."""
        if (self._failed or self._waiting) and self.due_s == math.inf:
            self.due_s = now_s + _TRY_AGAIN_S
        if now_s < self.due_s:
            return []
        self.due_s = math.inf
        failed, self._failed = self._failed, {}
        for again in failed.values():
            again()
        waiting, self._waiting = self._waiting, {}
        ends = [self.start(job, action, cluster, now_s) for job, action, cluster, _ in waiting.values()]
        return [end for end in ends if end is not None]

    def _dropped(self, job_id: str, attempt: int, now_s: float) -> WorkersExited:
        del self._waiting[job_id, attempt]
        return WorkersExited(now_s, job_id, attempt, Fate.STOPPED, reason="stopped before it was started")

    def _call(self, what: str, job_id: str, attempt: int, call: Callable[[str, int], None]) -> None:
        try:
            call(job_id, attempt)
        except Exception as error:
            _log.error("attempt %d of job %s: %s failed, retrying: %s", attempt, job_id, what, error)
            self._metrics.engine_errors.inc()
            self._failed[what, job_id, attempt] = lambda: self._call(what, job_id, attempt, call)


def _wait_in_words(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "waits for disk space before it can start"
    return f"cannot be started yet ({error}): retrying every second"
