"""The loop: what happened -> journal -> reducer -> actions -> engine.  One thread, the only writer.

    requests (submit, cancel)  \\
    engine.poll()                >  events --journal.append--> reduce --> answers, then actions
    reports of the workers     /                                 |
    decision due  --scheduler--^---------------------------------'

Everything that came in while the last commit was under way goes into the next one, so that many submissions share one
write to the disk.  Nobody is told of anything, and nothing is done, before it is written down.
"""

from __future__ import annotations

import logging
import math
import selectors
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from weft.control.codec import event_to_json
from weft.control.decision import DecisionResult
from weft.control.pending_actions import actions_outstanding, attempts_never_begun
from weft.control.state import Job, State
from weft.core.actions import Action, Decide, StartWorkers, StopWorkers
from weft.core.engine import Engine, EngineEvent
from weft.core.events import DevicesAssigned, Event, Fate, ProgressReported, WorkersExited, WorkersStarted
from weft.core.worker_environment import STOPPED_EXIT_CODE
from weft.daemon import recovery
from weft.daemon.clock import SteadyClock
from weft.daemon.commit_log import Batch, CommitLog
from weft.daemon.decision_timer import DecisionTimer
from weft.daemon.engine_news import EngineNews
from weft.daemon.faults import Faults
from weft.daemon.history import History
from weft.daemon.home import Home
from weft.daemon.inbox import Inbox, Maker
from weft.daemon.knowledge import Knowledge
from weft.daemon.metrics import Metrics
from weft.daemon.orders import Orders
from weft.daemon.progress_batch import is_stopping
from weft.daemon.report_channel import JobChannel, WorkerReport
from weft.daemon.saving import Saving
from weft.daemon.scheduling import Scheduler
from weft.daemon.sharing import LeaseServers
from weft.store import Journal

_log = logging.getLogger(__name__)

_PAUSE_S = 0.05
"""After something failed: what fails again and again must not take a whole core."""


class Loop:
    """One controller's thread.  Others read ``state`` and put requests."""

    def __init__(
        self,
        home: Home,
        journal: Journal,
        engine: Engine,
        channel: JobChannel,
        scheduler: Scheduler,
        knowledge: Knowledge,
        history: History,
        metrics: Metrics,
        faults: Faults,
        clock: SteadyClock,
        state: State,
        *,
        paranoid: bool = False,
    ) -> None:
        self.decided: DecisionResult | None = None
        self.changed = threading.Condition()
        """Notified when a job has changed in more than its progress, and at the end."""
        self.finished = threading.Event()
        self.failure: BaseException | None = None
        self._journal, self._engine, self._channel = journal, engine, channel
        self._scheduler, self._knowledge = scheduler, knowledge
        self._metrics, self._clock, self._faults = metrics, clock, faults
        self._commits = CommitLog(journal, history, metrics, faults, state, paranoid=paranoid)
        self._inbox = Inbox()
        self._timer = DecisionTimer()
        self.ready = threading.Event()
        """Set when the loop has gone round once, or has failed to."""
        self._sharing = LeaseServers(home.sockets, enabled=scheduler.options.crossover)
        self._orders = Orders(home, engine, channel, self._sharing, knowledge, metrics)
        self._saving = Saving(home, journal, knowledge)
        self._going_down = False
        self._stop_jobs = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._inbox, selectors.EVENT_READ)
        self._selector.register(channel.fileno(), selectors.EVENT_READ)
        self._news = EngineNews(engine, self._selector, self._faults, metrics)
        self._thread = threading.Thread(target=self._run, name="weft-loop", daemon=True)

    @property
    def state(self) -> State:
        return self._commits.state

    @property
    def waits_for_disk(self) -> str:
        """Why nothing can be written at present, if so."""
        return self._commits.waits_for_disk

    def start(self) -> None:
        """Take up what was left undone, then run."""
        for job_id, attempt in recovery.strangers(self.state, self._engine):
            self._orders.kill(job_id, attempt, self._clock.now_s())
        never = attempts_never_begun(self.state, set(self._engine.known()), self._clock.now_s())
        self._inbox.told.extend(never)
        begun = {(event.job_id, event.attempt) for event in never}
        self._act(
            [a for a in actions_outstanding(self.state) if isinstance(a, Decide) or (a.job_id, a.attempt) not in begun]
        )
        self._sharing.follow(self.state)
        self._thread.start()

    def request(self, make: Maker) -> Future[Any]:
        """Have events made, written down and acted upon; the future is set when they are durable."""
        return self._inbox.put(make)

    def rebind_channel(self) -> Future[None]:
        """Have workers report to a new socket: the file of the old one was deleted."""

        def rebind(state: State, now_s: float) -> tuple[Sequence[Event], None]:
            self._selector.unregister(self._channel.fileno())
            try:
                self._channel.bind_again()
            finally:
                self._selector.register(self._channel.fileno(), selectors.EVENT_READ)
            return (), None

        return self.request(rebind)

    def go_down(self, *, stop_jobs: bool) -> None:
        """End after what is under way; ``stop_jobs``: after the last worker has left."""
        self._stop_jobs = self._stop_jobs or stop_jobs
        self._going_down = True
        self._inbox.refuse_more()
        self._inbox.wake()

    def hint(self, job: Job) -> str:
        """What keeps the present attempt of a job from getting on, as far as is known."""
        attempt = job.id, job.attempt
        told = (self._news.hints.get(attempt) or self._orders.hint(*attempt)) if job.devices else ""
        return told or self._faults.by_job.get(job.id, "")

    @property
    def num_troubled(self) -> int:
        """Attempts that do not get on."""
        return len(self._news.hints)

    def join(self) -> None:
        self._thread.join()

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._turn(self._selector.select(0.0))
            self.ready.set()
            while not self._may_end():
                ready = self._selector.select(self._timeout_s())
                num_faults = self._faults.num_contained
                with self._faults.contained("the loop"):
                    self._turn(ready)
                if self._faults.num_contained > num_faults:
                    time.sleep(_PAUSE_S)
            with self._faults.contained("saving for the next start"):
                self._save_for_next_time()
        except BaseException as error:
            _log.critical("the controller stops, its workers go on: %r", error, exc_info=True)
            self.failure = error
        finally:
            self._close()

    def _timeout_s(self) -> float | None:
        if self._inbox.has_requests:
            return 0.0
        try_again_s = self._commits.try_again_s
        due_s = min(
            max(self._timer.due_s, try_again_s),
            self._inbox.due_s(try_again_s),
            self._news.due_s,
            self._orders.due_s,
            self._saving.due_s,
        )
        return None if due_s == math.inf else max(due_s - self._clock.now_s(), 0.0)

    def _turn(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        descriptors = {key.fd for key, _ in ready}
        if self._inbox.fileno() in descriptors:
            self._inbox.woken()
        now_s = self._clock.now_s()
        if self._channel.fileno() in descriptors:
            with self._faults.contained("reports"):
                self._take_reports(now_s)
        for news in self._news.poll(now_s, descriptors, self.state):
            with self._faults.contained("news of an attempt", news.job_id):
                self._inbox.told.extend(self._sorted_out(news, now_s))
        progress, told = self._inbox.take_told(now_s) if now_s >= self._commits.try_again_s else ([], [])
        batch = self._commits.batch([*progress, *told])
        for request in self._inbox.take_requests():
            request.add_to(batch, self.state, now_s, self._faults)
        if not self._write(batch, now_s):
            self._inbox.put_back(told)
        self._inbox.told.extend(self._orders.try_again(now_s))
        if self._going_down:
            self._stop_everybody(now_s)
        elif now_s >= max(self._timer.due_s, self._commits.try_again_s):
            self._decide(now_s)
        self._saving.knowledge_if_due(now_s)
        if self._news.due_s == math.inf:
            self._news.plan(now_s, self.state)

    def _take_reports(self, now_s: float) -> None:
        def fence(job_id: str, attempt: int) -> bool | None:
            return is_stopping(self.state, job_id, attempt)

        for report in self._channel.receive(fence):
            self._metrics.reports.inc()
            with self._faults.contained("a report", report.job_id):
                self._take_report(report, now_s)

    def _take_report(self, report: WorkerReport, now_s: float) -> None:
        if self._knowledge.reported(self.state.jobs[report.job_id], report, now_s):
            self._timer.want(now_s)
        if report.rank == 0:
            self._inbox.progress.add(report)
            self._saving.knowledge_changed(now_s)

    def _sorted_out(self, event: EngineEvent, now_s: float) -> list[Event]:
        """What the engine tells about a present attempt; any other is forgotten."""
        job = self.state.jobs.active.get(event.job_id)
        if job is None or job.attempt != event.attempt or not job.devices:
            if isinstance(event, WorkersExited):
                self._orders.forget(event.job_id, event.attempt)
            return []
        if not isinstance(event, WorkersExited) and job.workers_since_s is not None:
            return []
        # The workers' clock may have been set: what they tell lies between the last event and now.
        told = replace(event, at_s=min(max(event.at_s, self.state.now_s), now_s))
        event_to_json(told)
        return [*self._inbox.progress.take_of(event.job_id, now_s), told]

    # Writing and acting --------------------------------------------------------------------------------------------

    def _write(self, batch: Batch, now_s: float) -> bool:
        """Make the events durable and answer, then act; ``False`` when they could not be written."""
        if not self._commits.write(batch, now_s):
            return False
        for event in batch.events:
            with self._faults.contained("what follows from an event", getattr(event, "job_id", None)):
                if isinstance(event, WorkersExited):
                    self._attempt_over(event)
                elif isinstance(event, WorkersStarted):
                    self._knowledge.started(event.job_id, event.at_s)
        if any(not isinstance(event, ProgressReported) for event in batch.events):
            with self.changed:
                self.changed.notify_all()
        self._act(batch.actions)
        with self._faults.contained("sharing"):
            self._sharing.follow(self.state)
        self._saving.snapshot_if_due(self.state)
        return True

    def _attempt_over(self, event: WorkersExited) -> None:
        saved = event.fate is not Fate.STOPPED or event.exit_code in (0, STOPPED_EXIT_CODE)
        self._knowledge.stopped(event.job_id, event.attempt, self._clock.now_s(), saved=saved)
        self._faults.by_job.pop(event.job_id, None)
        if event.job_id not in self.state.jobs.active:
            self._knowledge.forget(event.job_id)
        self._orders.forget(event.job_id, event.attempt)

    def _act(self, actions: Sequence[Action]) -> None:
        now_s = self._clock.now_s()
        for action in actions:
            if isinstance(action, Decide):
                self._timer.want(now_s)
                continue
            with self._faults.contained("an action", action.job_id):
                if isinstance(action, StartWorkers):
                    end = self._orders.start(self.state.jobs[action.job_id], action, now_s)
                elif isinstance(action, StopWorkers):
                    end = self._orders.stop(action.job_id, action.attempt, now_s)
                else:
                    end = self._orders.kill(action.job_id, action.attempt, now_s)
                self._inbox.told.extend([] if end is None else [end])

    def _decide(self, now_s: float) -> None:
        self._timer.begin()
        if not self.state.jobs.active:
            self.decided = None
            return
        active = self.state.jobs.active.values()
        self._knowledge.pairs.over(frozenset((job.id, job.partner)) for job in active if job.partner is not None)
        began = time.perf_counter()
        try:
            decided = self.decided = self._scheduler.decide(self.state, self._knowledge, now_s)
        except Exception:
            # Running jobs continue, and can be watched and canceled: better than a controller that is gone.
            self._metrics.decision_errors.inc()
            _log.exception("no decision could be made; trying again in %g s", self._timer.failed(now_s))
            return
        took_s = time.perf_counter() - began
        self._metrics.decision_s.observe(took_s)
        self._timer.made(now_s, took_s, decided.allocation.valid_until_s)
        if decided.event.reasons and not self._write(self._commits.batch([decided.event]), now_s):
            self._scheduler.repeat()
            self._timer.not_written(self._commits.try_again_s)

    # Going down ----------------------------------------------------------------------------------------------------

    def _stop_everybody(self, now_s: float) -> None:
        active = [job for job in self.state.jobs.active.values() if not job.is_cancelled]
        if self._stop_jobs and any(job.wanted for job in active) and now_s >= self._commits.try_again_s:
            reason = "stopped with the controller, goes on when it is started again"
            event = DevicesAssigned(now_s, {}, reasons={job.id: reason for job in active if job.wanted})
            self._write(self._commits.batch([event]), now_s)

    def _may_end(self) -> bool:
        if not self._going_down or self._inbox.has_requests:
            return False
        return not self._stop_jobs or not any(job.devices or job.wanted for job in self.state.jobs.active.values())

    def _save_for_next_time(self) -> None:
        now_s = self._clock.now_s()
        self._write(self._commits.batch(self._inbox.take_progress(now_s)), now_s)
        self._saving.snapshot(self.state)
        self._saving.knowledge()

    def _close(self) -> None:
        self._inbox.close()
        self._selector.close()
        self._sharing.close(stop=self._stop_jobs and self.failure is None)
        self._channel.close()
        self._engine.close()
        self._journal.close()
        self.ready.set()
        self.finished.set()
        with self.changed:
            self.changed.notify_all()
