"""The loop: what happened -> reducer -> journal -> answers and actions.  One thread, the only writer.

    requests (submit, cancel)  \\
    engine.poll()                >  events --reduce--> journal.append --> answers, then actions
    workers' reports           /                                                    |
    decision due  --scheduler--^----------------------------------------------------'

Everything that arrives during a commit goes into the next one, so that many submissions share one disk write.  Nothing
is answered or acted on before it is durable.
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
from weft.control.node_changes import node_changes
from weft.control.pending_actions import actions_outstanding, attempts_never_begun
from weft.control.state import Job, State
from weft.core.actions import Action, Decide, StartWorkers, StopWorkers
from weft.core.engine import Engine, EngineEvent, EngineNode, SharesOnNodes
from weft.core.events import DevicesAssigned, Event, Fate, ProgressReported, WorkersExited, WorkersStarted
from weft.core.reason import ControllerDown
from weft.core.step_report import StepReport
from weft.core.worker_environment import STOPPED_EXIT_CODE
from weft.daemon import recovery
from weft.daemon.clock import SteadyClock
from weft.daemon.commit_log import Batch, CommitLog
from weft.daemon.engine_news import EngineNews
from weft.daemon.home import Home
from weft.daemon.inbox import Inbox, Maker
from weft.daemon.job_reasons import told
from weft.daemon.knowledge import Knowledge
from weft.daemon.newest_reports import MeanLosses
from weft.daemon.orders import Orders
from weft.daemon.otel_traces import JobTraces
from weft.daemon.report_channel import JobChannel
from weft.daemon.scheduling import DecisionTimer, Scheduler
from weft.daemon.series_files import SeriesFiles
from weft.daemon.sharing import LeaseServers

_log = logging.getLogger(__name__)

_PAUSE_S = 0.05
"""After an error: a repeated failure must not use up a whole core."""


class Loop:
    """One controller's thread.  Other threads read ``state`` and put requests."""

    def __init__(
        self,
        home: Home,
        engine: Engine,
        commits: CommitLog,
        channel: JobChannel,
        scheduler: Scheduler,
        knowledge: Knowledge,
        series: SeriesFiles,
        clock: SteadyClock,
        traces: JobTraces | None = None,
    ) -> None:
        self.decided: DecisionResult | None = None
        self.finished = threading.Event()
        self.failure: BaseException | None = None
        self._home, self._engine, self._commits, self._channel = home, engine, commits, channel
        self._scheduler, self._knowledge, self._series, self._clock = scheduler, knowledge, series, clock
        self._metrics, self._faults = commits.metrics, commits.faults
        self._inbox = Inbox(knowledge.reports)
        self._losses = MeanLosses()
        self._traces = traces
        self._timer = DecisionTimer()
        self.ready = threading.Event()
        """Set when the loop has completed its first pass, or has failed to."""
        nodes = engine if isinstance(engine, SharesOnNodes) else None
        self._sharing = LeaseServers(home.sockets, enabled=scheduler.options.crossover, nodes=nodes)
        self._orders = Orders(home, engine, channel, self._sharing, knowledge, self._metrics)
        self._saving = recovery.Saving(home, commits.journal, knowledge)
        self._stopping = False
        self._nodes: tuple[EngineNode, ...] = ()
        """What the engine last said about its nodes."""
        self._stop_jobs = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._inbox, selectors.EVENT_READ)
        self._selector.register(channel.fileno(), selectors.EVENT_READ)
        self._news = EngineNews(engine, self._selector, self._faults, self._metrics)
        self._thread = threading.Thread(target=self._run, name="weft-loop", daemon=True)

    @property
    def state(self) -> State:
        return self._commits.state

    @property
    def waits_for_disk(self) -> str:
        """Why nothing can be written now, if so."""
        return self._commits.waits_for_disk

    def start(self) -> None:
        """Catch up on what an earlier controller left undone, then run."""
        for job_id, attempt in recovery.unexpected_attempts(self.state, self._engine):
            self._orders.kill(job_id, attempt, self._clock.now_s())
        ended = attempts_never_begun(self.state, set(self._engine.known()), self._clock.now_s())
        self._inbox.events.extend(ended)
        over = {(event.job_id, event.attempt) for event in ended}
        outstanding = actions_outstanding(self.state)
        self._act([one for one in outstanding if isinstance(one, Decide) or (one.job_id, one.attempt) not in over])
        self._sharing.follow(self.state)
        self._thread.start()

    def request(self, make: Maker) -> Future[Any]:
        """Have events made, written and acted on; the future is set when they are durable."""
        return self._inbox.put(make)

    def rebind_channel(self) -> Future[None]:
        """Have workers report to a new socket, because the old one's file was deleted."""

        def rebind(state: State, now_s: float) -> tuple[Sequence[Event], None]:
            self._selector.unregister(self._channel.fileno())
            try:
                self._channel.bind_again()
            finally:
                self._selector.register(self._channel.fileno(), selectors.EVENT_READ)
            return (), None

        return self.request(rebind)

    def shut_down(self, *, stop_jobs: bool) -> None:
        """End after the pending requests; with ``stop_jobs``, after the last worker has exited."""
        self._stop_jobs = self._stop_jobs or stop_jobs
        self._stopping = True
        self._inbox.refuse_more()
        self._inbox.wake()

    def hint(self, job: Job) -> str:
        """What holds up the job's current attempt, if known."""
        attempt = job.id, job.attempt
        trouble = (self._news.hints.get(attempt) or self._orders.hint(*attempt)) if job.devices else ""
        return trouble or self._faults.by_job.get(job.id, "")

    @property
    def num_troubled(self) -> int:
        """Number of attempts that are held up."""
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
            _log.critical("the controller is stopping; its workers keep running: %r", error, exc_info=True)
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
        all_news = list(self._news.poll(now_s, descriptors, self.state))
        # A worker's last report is in the channel before its exit is known.
        if self._channel.fileno() in descriptors or any(isinstance(news, WorkersExited) for news in all_news):
            with self._faults.contained("reports"):
                self._take_reports(now_s)
        for news in all_news:
            with self._faults.contained("news of an attempt", news.job_id):
                self._inbox.events.extend(self._sorted_out(news, now_s))
        self._follow_nodes(now_s)
        progress, events = self._inbox.take_events(now_s) if now_s >= self._commits.try_again_s else ([], [])
        batch = self._commits.batch([*progress, *events])
        for request in self._inbox.take_requests():
            request.add_to(batch, self.state, now_s, self._faults)
        if not self._write(batch, now_s):
            self._inbox.put_back(events)
        if self._stopping:
            self._stop_workers(now_s)
        elif now_s >= max(self._timer.due_s, self._commits.try_again_s):
            self._decide(now_s)
        # After the decision: what fails while it is carried out is retried in a second, not with the next news.
        self._inbox.events.extend(self._orders.try_again(now_s))
        self._saving.knowledge_if_due(now_s)
        if self._news.due_s == math.inf:
            self._news.plan(now_s, self.state)

    def _follow_nodes(self, now_s: float) -> None:
        nodes = self._engine.nodes()
        if nodes is not self._nodes:
            self._nodes = nodes
            self._inbox.events.extend(node_changes(self.state.cluster, nodes, now_s))

    def _take_reports(self, now_s: float) -> None:
        for report in self._channel.receive(self._is_stopping):
            self._metrics.reports.inc()
            with self._faults.contained("a report", report.job_id):
                self._take_report(report, now_s)

    def _is_stopping(self, job_id: str, attempt: int) -> bool | None:
        """Whether the attempt was asked to stop; ``None`` if it is not the current attempt of a job."""
        job = self.state.jobs.active.get(job_id)
        if job is None or job.attempt != attempt or not job.devices:
            return None
        return job.is_cancelled or job.devices != job.wanted

    def _take_report(self, report: StepReport, now_s: float) -> None:
        report = self._losses.averaged(report)
        if self._knowledge.reported(self.state.jobs[report.job_id], report, now_s):
            self._timer.want(now_s)
        self._series.reported(self.state.jobs[report.job_id], report, now_s)
        if report.rank == 0:
            self._saving.knowledge_changed(now_s)

    def _sorted_out(self, event: EngineEvent, now_s: float) -> list[Event]:
        """The events that follow from news of a current attempt; any other attempt is forgotten."""
        job = self.state.jobs.active.get(event.job_id)
        if job is None or job.attempt != event.attempt or not job.devices:
            if isinstance(event, WorkersExited):
                self._orders.forget(event.job_id, event.attempt)
            return []
        if not isinstance(event, WorkersExited) and job.workers_since_s is not None:
            return []
        # The wall clock may have been changed: move the event to between the last one and now.
        in_order = replace(event, at_s=min(max(event.at_s, self.state.now_s), now_s))
        if isinstance(in_order, WorkersStarted):
            in_order = replace(in_order, devices=job.devices)
        event_to_json(in_order)
        return [*self._knowledge.reports.take_of(event.job_id, now_s), *self._unreported(in_order, job), in_order]

    def _unreported(self, event: EngineEvent, job: Job) -> list[Event]:
        """Progress whose reports nobody received because no controller was running, according to a checkpoint."""
        if not isinstance(event, WorkersExited) or event.fate not in (Fate.COMPLETED, Fate.STOPPED):
            return []
        known = self._knowledge.reports.progress(job)
        step = self._home.saved_step(job.id)
        if step <= known.step:
            return []
        return [ProgressReported(event.at_s, job.id, job.attempt, replace(known, step=step))]

    # Writing and acting --------------------------------------------------------------------------------------------

    def _write(self, batch: Batch, now_s: float) -> bool:
        """Make the events durable and answer, then act; ``False`` if they could not be written."""
        before = self.state
        if not self._commits.write(batch, now_s):
            return False
        self._knowledge.cluster = self.state.cluster
        for event in batch.events:
            with self._faults.contained("the consequences of an event", getattr(event, "job_id", None)):
                if isinstance(event, WorkersExited):
                    self._attempt_over(event)
                elif isinstance(event, WorkersStarted):
                    self._knowledge.restarts.started(event.job_id, event.at_s)
        with self._faults.contained("the histories of jobs"):
            self._series.happened(before, self.state, batch.events)
        if self._traces is not None:
            with self._faults.contained("traces"):
                self._traces.happened(before, batch.states)
        self._act(batch.actions)
        with self._faults.contained("sharing"):
            self._sharing.follow(self.state)
        self._saving.snapshot_if_due(self.state)
        return True

    def _attempt_over(self, event: WorkersExited) -> None:
        saved = event.fate is not Fate.STOPPED or event.exit_code in (0, STOPPED_EXIT_CODE)
        self._knowledge.stopped(event.job_id, event.attempt, self._clock.now_s(), saved=saved)
        self._faults.by_job.pop(event.job_id, None)
        self._losses.forget(event.job_id)
        if event.job_id not in self.state.jobs.active:
            job = self.state.jobs[event.job_id]
            self._series.learned(job, self._knowledge.speeds(job))
            self._knowledge.finished(job)
        self._orders.forget(event.job_id, event.attempt)

    def _act(self, actions: Sequence[Action]) -> None:
        now_s = self._clock.now_s()
        for action in actions:
            if isinstance(action, Decide):
                self._timer.want(now_s)
                continue
            with self._faults.contained("an action", action.job_id):
                if isinstance(action, StartWorkers):
                    end = self._orders.start(self.state.jobs[action.job_id], action, self.state.cluster, now_s)
                elif isinstance(action, StopWorkers):
                    end = self._orders.stop(action.job_id, action.attempt, now_s)
                else:
                    end = self._orders.kill(action.job_id, action.attempt, now_s)
                self._inbox.events.extend([] if end is None else [end])

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
            # Running jobs continue, and can be watched and canceled: better than no controller.
            self._metrics.decision_errors.inc()
            _log.exception("no decision could be made; trying again in %g s", self._timer.failed(now_s))
            return
        took_s = time.perf_counter() - began
        self._metrics.decision_s.observe(took_s)
        self._timer.made(now_s, took_s, decided.allocation.valid_until_s)
        if decided.event.reasons and not self._write(self._commits.batch([decided.event]), now_s):
            self._scheduler.repeat()
            self._timer.not_written(self._commits.try_again_s)

    # Shutting down -------------------------------------------------------------------------------------------------

    def _stop_workers(self, now_s: float) -> None:
        active = [job for job in self.state.jobs.active.values() if not job.is_cancelled]
        if self._stop_jobs and any(job.wanted for job in active) and now_s >= self._commits.try_again_s:
            sentences, codes = told({job.id: ControllerDown() for job in active if job.wanted}, self.state)
            event = DevicesAssigned(now_s, {}, reasons=sentences, reason_codes=codes)
            self._write(self._commits.batch([event]), now_s)

    def _may_end(self) -> bool:
        if not self._stopping or self._inbox.has_requests:
            return False
        return not self._stop_jobs or not any(job.devices or job.wanted for job in self.state.jobs.active.values())

    def _save_for_next_time(self) -> None:
        now_s = self._clock.now_s()
        self._write(self._commits.batch(self._knowledge.reports.take(now_s)), now_s)
        self._saving.snapshot(self.state)
        self._saving.knowledge()
        self._series.close()

    def _close(self) -> None:
        self._inbox.close()
        self._selector.close()
        self._sharing.close(stop=self._stop_jobs and self.failure is None)
        self._channel.close()
        self._engine.close()
        self._commits.journal.close()
        if self._traces is not None:
            self._traces.close()
        self.ready.set()
        self.finished.set()
