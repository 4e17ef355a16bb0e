"""The loop: what happened -> journal -> reducer -> actions -> engine.  One thread, the only writer.

    requests (submit, cancel)  \\
    engine.poll()                >  events --journal.append--> reduce --> answers, then actions
    reports of the workers     /                                 |
    decision due  --scheduler--^---------------------------------'

Everything that came in while the last commit was under way goes into the next one, so that many submissions share one
write to the disk.  Nobody is told of anything, and nothing is done, before it is written down.
"""

from __future__ import annotations

import json
import logging
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from weft.control.invariants import check
from weft.control.pending_actions import actions_outstanding, attempts_never_begun
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.actions import Action, Decide, StartWorkers, StopWorkers
from weft.core.engine import Engine
from weft.core.events import DevicesAssigned, Event, Fate, ProgressReported, WorkersExited, WorkersStarted
from weft.core.worker_environment import STOPPED_EXIT_CODE
from weft.daemon import recovery
from weft.daemon.channel import JobChannel
from weft.daemon.clock import SteadyClock
from weft.daemon.contract import StoppingError
from weft.daemon.history import History
from weft.daemon.home import Home, write_whole
from weft.daemon.knowledge import Knowledge
from weft.daemon.metrics import Metrics
from weft.daemon.orders import Orders
from weft.daemon.progress import ProgressBatch, is_stopping
from weft.daemon.scheduling import Scheduler, Verdict
from weft.daemon.sharing import Sharing
from weft.errors import StoreError
from weft.store import Journal

_log = logging.getLogger(__name__)

_GATHER_S = 0.05
"""What happens together is decided together."""
_MIN_GAP_S = 0.25
_REST_PER_DECISION = 10.0
"""Deciding takes at most a tenth of the time."""
_DECIDE_AGAIN_S = 10.0
_ASK_ENGINE_EVERY_S = 0.5
_TRY_AGAIN_S = 1.0
_SNAPSHOT_EVERY = 2000
_SAVE_KNOWLEDGE_EVERY_S = 30.0
_MAX_REQUESTS_AT_ONCE = 500

Maker = Callable[[State, float], tuple[Sequence[Event], Any]]
"""From state and time to the events of a request and the answer to it; raises if it cannot be met."""


@dataclass(slots=True)
class _Request:
    make: Maker
    answer: Future[Any]


class Loop:
    """One controller's thread.  Others read ``state`` (replaced as a whole, never changed) and put requests."""

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
        clock: SteadyClock,
        state: State,
        *,
        paranoid: bool = False,
    ) -> None:
        self.state = state
        self.verdict: Verdict | None = None
        self.changed = threading.Condition()
        """Notified when a job has changed in more than its progress, and at the end."""
        self.finished = threading.Event()
        self.failure: BaseException | None = None
        self._home, self._journal, self._engine, self._channel = home, journal, engine, channel
        self._scheduler, self._knowledge, self._history = scheduler, knowledge, history
        self._metrics, self._clock, self._paranoid = metrics, clock, paranoid
        self._sharing = Sharing(home.sockets, enabled=scheduler.options.crossover)
        self._orders = Orders(home, engine, channel, self._sharing, knowledge, metrics)
        self._requests: deque[_Request] = deque()
        self._requests_lock = threading.Lock()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._progress = ProgressBatch()
        self._unwritten: list[Event] = []
        """Told by the engine, not written down yet."""
        self._try_again_s = -math.inf
        self._decide_at_s = math.inf
        self._rested_s = -math.inf
        self._ask_engine_s = math.inf
        self._snapshot_at = _SNAPSHOT_EVERY
        self._knowledge_changed_s = math.inf
        self._going_down = False
        self._stop_jobs = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(channel.fileno(), selectors.EVENT_READ)
        if engine.fileno() >= 0:
            self._selector.register(engine.fileno(), selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="weft-loop", daemon=True)

    def start(self) -> None:
        """Take up what was left undone, then run."""
        for job_id, attempt in recovery.strangers(self.state, self._engine):
            self._orders.kill(job_id, attempt)
        never = attempts_never_begun(self.state, set(self._engine.known()), self._clock.now_s())
        self._unwritten.extend(never)
        begun = {(event.job_id, event.attempt) for event in never}
        self._act(
            [a for a in actions_outstanding(self.state) if isinstance(a, Decide) or (a.job_id, a.attempt) not in begun]
        )
        self._ask_engine_s = self._clock.now_s()
        self._sharing.follow(self.state)
        self._thread.start()

    def request(self, make: Maker) -> Future[Any]:
        """Have events made, written down and acted upon; the future is set when they are durable."""
        answer: Future[Any] = Future()
        with self._requests_lock:
            if self._closed or self._going_down:
                raise StoppingError("the controller is going down and takes nothing new: start it again with `weft up`")
            self._requests.append(_Request(make, answer))
        self.wake()
        return answer

    def go_down(self, *, stop_jobs: bool) -> None:
        """End after what is under way; ``stop_jobs``: after the last worker has left."""
        self._stop_jobs = self._stop_jobs or stop_jobs
        self._going_down = True
        self.wake()

    def wake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def join(self) -> None:
        self._thread.join()

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._may_end():
                self._turn(self._selector.select(self._timeout_s()))
            self._save_for_next_time()
        except BaseException as error:
            _log.critical("the controller stops, its workers go on: %r", error, exc_info=True)
            self.failure = error
        finally:
            self._close()

    def _timeout_s(self) -> float | None:
        if self._requests:
            return 0.0
        due_s = min(
            max(self._decide_at_s, self._rested_s, self._try_again_s),
            max(self._progress.due_s, self._try_again_s),
            self._ask_engine_s,
            self._orders.due_s,
            self._knowledge_changed_s + _SAVE_KNOWLEDGE_EVERY_S,
        )
        if self._unwritten:
            due_s = min(due_s, self._try_again_s)
        return None if due_s == math.inf else max(due_s - self._clock.now_s(), 0.0)

    def _turn(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> None:
        descriptors = {key.fd for key, _ in ready}
        if self._wake in descriptors:
            os.eventfd_read(self._wake)
        now_s = self._clock.now_s()
        if self._channel.fileno() in descriptors:
            self._take_reports(now_s)
        if self._engine.fileno() in descriptors or now_s >= self._ask_engine_s:
            self._unwritten.extend(self._engine_news(now_s))
        told: list[Event] = []
        events: list[Event] = []
        if now_s >= self._try_again_s:
            told, self._unwritten = self._unwritten, []
            events = [*(self._progress.take(now_s) if now_s >= self._progress.due_s else ()), *told]
        answers: list[tuple[Future[Any], Any]] = []
        for request in self._taken():
            try:
                made, answer = request.make(self.state, now_s)
            except Exception as error:
                request.answer.set_exception(error)
            else:
                events.extend(made)
                answers.append((request.answer, answer))
        if not self._write(events, answers, now_s):
            self._unwritten = told + self._unwritten
        self._orders.try_again(now_s)
        if self._going_down:
            self._stop_everybody(now_s)
        elif now_s >= self._decide_at_s and now_s >= max(self._rested_s, self._try_again_s):
            self._decide(now_s)
        if now_s >= self._knowledge_changed_s + _SAVE_KNOWLEDGE_EVERY_S:
            self._save_knowledge()
        self._ask_engine_s = now_s + _ASK_ENGINE_EVERY_S if self._engine_must_be_asked() else math.inf

    def _engine_must_be_asked(self) -> bool:
        return self._engine.fileno() < 0 and any(job.devices for job in self.state.jobs.active.values())

    def _taken(self) -> list[_Request]:
        with self._requests_lock:
            return [self._requests.popleft() for _ in range(min(len(self._requests), _MAX_REQUESTS_AT_ONCE))]

    def _take_reports(self, now_s: float) -> None:
        def fence(job_id: str, attempt: int) -> bool | None:
            return is_stopping(self.state, job_id, attempt)

        for report in self._channel.receive(fence):
            self._metrics.reports.inc()
            job = self.state.jobs[report.job_id]
            if self._knowledge.reported(job, report, now_s):
                self._want_decision(now_s)
            if report.rank == 0:
                self._progress.add(report)
                if self._knowledge_changed_s == math.inf:
                    self._knowledge_changed_s = now_s

    def _engine_news(self, now_s: float) -> list[Event]:
        """What the engine tells about present attempts; the rest is forgotten."""
        news: list[Event] = []
        for event in self._engine.poll():
            job = self.state.jobs.active.get(event.job_id)
            if job is None or job.attempt != event.attempt or not job.devices:
                if isinstance(event, WorkersExited):
                    self._orders.forget(event.job_id, event.attempt)
            elif isinstance(event, WorkersExited) or job.workers_since_s is None:
                # The workers' clock may have been set: what they tell lies between the last event and now.
                news.extend(self._progress.take_of(event.job_id, now_s))
                news.append(replace(event, at_s=min(max(event.at_s, self.state.now_s), now_s)))
        return news

    # Writing down and acting ---------------------------------------------------------------------------------------

    def _write(self, events: list[Event], answers: list[tuple[Future[Any], Any]], now_s: float) -> bool:
        """Make the events durable, then answer and act; ``False`` when they could not be written."""
        if events:
            try:
                began = time.perf_counter()
                self._journal.append(events)
                self._metrics.commit_s.observe(time.perf_counter() - began)
            except StoreError as error:
                self._not_written(error, answers, now_s)
                return False
            self._try_again_s = -math.inf
        actions = self._reduce(events)
        for future, answer in answers:
            future.set_result(answer)
        self._act(actions)
        self._sharing.follow(self.state)
        if self._journal.num_events_since_snapshot >= self._snapshot_at:
            self._save_snapshot()
        return True

    def _not_written(self, error: StoreError, answers: list[tuple[Future[Any], Any]], now_s: float) -> None:
        """Nothing was acknowledged; what the engine told is tried again, the rest is for its senders to repeat."""
        _log.error("%s", error)
        self._metrics.store_errors.inc()
        for future, _ in answers:
            future.set_exception(error)
        self._try_again_s = now_s + _TRY_AGAIN_S

    def _reduce(self, events: Sequence[Event]) -> list[Action]:
        actions: list[Action] = []
        state = self.state
        for event in events:
            state, asked = reduce(state, event)
            if self._paranoid:
                check(state)
            actions.extend(asked)
            self._history.note(event)
            self._metrics.events.labels(type(event).__name__).inc()
        self.state = state
        for event in events:
            if isinstance(event, WorkersExited):
                self._attempt_over(event)
            elif isinstance(event, WorkersStarted):
                self._knowledge.started(event.job_id, event.at_s)
        if any(not isinstance(event, ProgressReported) for event in events):
            with self.changed:
                self.changed.notify_all()
        return actions

    def _attempt_over(self, event: WorkersExited) -> None:
        saved = event.fate is not Fate.STOPPED or event.exit_code in (0, STOPPED_EXIT_CODE)
        self._knowledge.stopped(event.job_id, event.attempt, self._clock.now_s(), saved=saved)
        if event.job_id not in self.state.jobs.active:
            self._knowledge.forget(event.job_id)
        self._orders.forget(event.job_id, event.attempt)

    def _act(self, actions: Sequence[Action]) -> None:
        now_s = self._clock.now_s()
        for action in actions:
            if isinstance(action, Decide):
                self._want_decision(now_s)
            elif isinstance(action, StartWorkers):
                lost = self._orders.start(self.state.jobs[action.job_id], action, now_s)
                if lost is not None:
                    self._unwritten.append(lost)
            elif isinstance(action, StopWorkers):
                self._orders.stop(action.job_id, action.attempt, now_s)
            else:
                self._orders.kill(action.job_id, action.attempt)

    def _want_decision(self, now_s: float) -> None:
        self._decide_at_s = min(self._decide_at_s, now_s + _GATHER_S)

    def _decide(self, now_s: float) -> None:
        self._decide_at_s = math.inf
        if not self.state.jobs.active:
            self.verdict = None
            return
        active = self.state.jobs.active.values()
        self._knowledge.pairs.over(frozenset((job.id, job.partner)) for job in active if job.partner is not None)
        began = time.perf_counter()
        try:
            verdict = self.verdict = self._scheduler.decide(self.state, self._knowledge, now_s)
        except Exception:
            # Jobs that run go on, and can be watched and cancelled: better than a controller that is gone.
            _log.exception("no decision could be made; it is tried again in %g s", _DECIDE_AGAIN_S)
            self._metrics.decision_errors.inc()
            self._decide_at_s = self._rested_s = now_s + _DECIDE_AGAIN_S
            return
        took_s = time.perf_counter() - began
        self._metrics.decision_s.observe(took_s)
        self._rested_s = now_s + max(_MIN_GAP_S, _REST_PER_DECISION * took_s)
        self._decide_at_s = max(verdict.allocation.valid_until_s, self._rested_s)
        if verdict.event is not None and not self._write([verdict.event], [], now_s):
            self._scheduler.repeat()
            self._decide_at_s = self._try_again_s

    # Going down ----------------------------------------------------------------------------------------------------

    def _stop_everybody(self, now_s: float) -> None:
        active = [job for job in self.state.jobs.active.values() if not job.is_cancelled]
        if self._stop_jobs and any(job.wanted for job in active) and now_s >= self._try_again_s:
            reason = "stopped with the controller, goes on when it is started again"
            event = DevicesAssigned(now_s, {}, reasons={job.id: reason for job in active if job.wanted})
            self._write([event], [], now_s)

    def _may_end(self) -> bool:
        if not self._going_down or self._requests:
            return False
        return not self._stop_jobs or not any(job.devices or job.wanted for job in self.state.jobs.active.values())

    def _save_for_next_time(self) -> None:
        if self._progress.due_s < math.inf:
            self._write(list(self._progress.take(self._clock.now_s())), [], self._clock.now_s())
        self._save_snapshot()
        self._save_knowledge()

    def _save_snapshot(self) -> None:
        self._snapshot_at = self._journal.num_events_since_snapshot + _SNAPSHOT_EVERY
        try:
            self._journal.save_snapshot(self._journal.seq, self.state)
            self._snapshot_at = _SNAPSHOT_EVERY
        except (StoreError, OSError) as error:
            _log.warning("no snapshot, the journal stays longer: %s", error)

    def _save_knowledge(self) -> None:
        self._knowledge_changed_s = math.inf
        try:
            write_whole(self._home.knowledge_file, json.dumps(self._knowledge.document()).encode())
        except OSError as error:
            _log.warning("measured speeds were not saved: %s", error)

    def _close(self) -> None:
        with self._requests_lock:
            self._closed = True
        for request in self._taken():
            request.answer.set_exception(StoppingError("the controller went down: nothing was done; start it again"))
        self._selector.close()
        self._sharing.close(stop=self._stop_jobs and self.failure is None)
        self._channel.close()
        self._engine.close()
        self._journal.close()
        self.finished.set()
        with self.changed:
            self.changed.notify_all()
