"""The controller as an object, used by the REST routes, tests, or a notebook.

``Controller(...)`` restores the state of an earlier controller from the journal; ``start`` runs the loop in its own
thread.  Methods may be called from any thread.  Those that write send a request to the loop and return when it is on
disk; concurrent callers share one commit.  Those that read return immediately and see a consistent state.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from weft.control.queue_order import QueuePlace, place_in_words
from weft.control.state import Job, State
from weft.core.cluster import Cluster
from weft.core.engine import LOCAL_NODE, ChecksLaunch, Engine
from weft.core.events import CancelRequested, Event, JobChanged, JobSubmitted, NodeDrained, NodeResumed
from weft.core.plural import plural
from weft.core.reason import HeldUp, code_of, in_words
from weft.core.status_rows import HistoryRow, OutlookRow, PurgeRow, WhatifRow
from weft.core.submission import Submission
from weft.daemon import job_reasons
from weft.daemon.attempt_bars import AttemptBar, between
from weft.daemon.changes import check_change
from weft.daemon.clock import SteadyClock
from weft.daemon.commit_log import CommitLog
from weft.daemon.contract import Decision, LogStream, NodeStatus, NodeView, Sentence, UnknownJobError
from weft.daemon.disk import Space, low_in_words
from weft.daemon.faults import Faults
from weft.daemon.forecasting import queue_now
from weft.daemon.history import History
from weft.daemon.home import Home
from weft.daemon.ids import new_id
from weft.daemon.knowledge import Knowledge
from weft.daemon.loop import Loop
from weft.daemon.metrics import Metrics, job_series
from weft.daemon.otel_traces import JobTraces
from weft.daemon.recovery import MAX_AHEAD_S, load_knowledge, load_state
from weft.daemon.report_channel import JobChannel
from weft.daemon.retention import Retention
from weft.daemon.scheduling import Scheduler, SchedulingOptions
from weft.daemon.series_files import SeriesFiles
from weft.daemon.worker_output import WorkerLog, find_log
from weft.engines.plain_script import check_batch_range, is_plain_script
from weft.errors import UsageError
from weft.sim import forecast_process
from weft.sim.queue_forecast import Question
from weft.store import Journal

RESTART_PRIOR_S = 1.0
"""Assumed cost of a restart before any was measured; the warm pool makes them short."""

Result = TypeVar("Result")


class Controller:
    """One controller in this process."""

    def __init__(
        self,
        home: Home,
        journal: Journal,
        engine: Engine,
        options: SchedulingOptions | None = None,
        *,
        paranoid: bool = False,
        accept_loss: bool = False,
        keep_s: float | None = None,
        traces: JobTraces | None = None,
        free_bytes: Callable[[], int | None] = lambda: None,
        clock: Callable[[float], SteadyClock] = SteadyClock,
    ) -> None:
        """Takes over ``journal`` and ``engine``; the home is locked by the caller."""
        options = options or SchedulingOptions()
        self._home, self._journal, self._engine = home, journal, engine
        self._history = History()
        self._series = SeriesFiles(home)
        self._metrics = Metrics()
        self._scheduler = Scheduler(options, free_bytes, self._metrics.decision_errors.inc)
        self._faults = Faults(self._metrics)
        state = load_state(journal, engine, self._history, faults=self._faults, accept_loss=accept_loss)
        self._knowledge = Knowledge(state.cluster, RESTART_PRIOR_S, options.handover_s)
        load_knowledge(home, state, self._knowledge)
        self._clock = clock(state.now_s)
        self._channel = JobChannel(home.channel_socket)
        self._past: History | None = None
        self._past_lock = threading.Lock()
        commits = CommitLog(journal, self._history, self._metrics, self._faults, state, paranoid=paranoid)
        self._loop = Loop(
            home,
            engine,
            commits,
            self._channel,
            self._scheduler,
            self._knowledge,
            self._series,
            self._clock,
            traces,
        )
        self.ready = self._loop.ready
        """Set when the loop has completed its first pass, or has ended before it could."""
        self.finished = self._loop.finished
        """Set when the loop has ended, for whatever reason."""
        self._retention = Retention(home, journal, self._loop.request, self.finished, keep_s)

    def start(self) -> None:
        """Find the workers of an earlier controller, and run."""
        self._loop.start()
        self._retention.start()
        self._series.start()

    @property
    def policy_name(self) -> str:
        return self._scheduler.policy.name

    @property
    def failure(self) -> BaseException | None:
        """What ended the loop, if it was not a shutdown."""
        return self._loop.failure

    def now_s(self) -> float:
        """The controller's clock."""
        return self._clock.now_s()

    # Writing -------------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> str:
        """Accept the job and return its id, once it is durable."""
        if isinstance(self._engine, ChecksLaunch):
            self._engine.check(submission.launch)
        check_batch_range(submission.launch)
        can_resume = not is_plain_script(submission.launch)

        def make(state: State, now_s: float) -> tuple[list[Event], str]:
            _check_fits(submission, state, self._scheduler.options.quotas)
            job_id = new_id(state.jobs)
            spec = submission.spec(job_id, now_s)
            self._knowledge.of(job_id).can_resume = can_resume
            return [JobSubmitted(now_s, spec, submission.total_steps, submission.name, submission.launch)], job_id

        answer: Future[str] = self._loop.request(make)
        return answer.result()

    def cancel(self, job_id: str) -> None:
        """Stop a job for good; the second call kills its workers.  Does nothing to a finished job."""

        def make(state: State, now_s: float) -> tuple[list[Event], None]:
            job = _job_in(state, job_id)
            return ([] if job.state.is_final else [CancelRequested(now_s, job_id, "canceled by its owner")]), None

        self._loop.request(make).result()

    def change_job(self, job_id: str, **values: float | None) -> None:
        """Change weight, priority, min_workers, or max_workers of a job that has not finished."""

        def make(state: State, now_s: float) -> tuple[list[Event], None]:
            job = _job_in(state, job_id)
            event = JobChanged(now_s, job_id, **values)  # type: ignore[arg-type]
            known = self._knowledge.of(job_id)
            check_change(job, event, state.cluster, can_resume=known.attempt > 0 and known.can_resume)
            return [event], None

        self._loop.request(make).result()

    def drain(self, name: str, *, resume: bool = False) -> None:
        """Take a node out of service, or return it; its jobs stop and restart on other nodes."""

        def make(state: State, now_s: float) -> tuple[list[Event], None]:
            names = [_shown_name(one) for one in state.cluster.node_names]
            if name not in names:
                raise UsageError(f"there is no node {name!r}: expected one of {', '.join(names)}")
            node = names.index(name)
            change = NodeResumed(now_s, node) if resume else NodeDrained(now_s, node, "drained by an operator")
            return [change], None

        self._loop.request(make).result()

    def purge(self, older_than_s: float, *, dry_run: bool = False) -> PurgeRow:
        """Delete jobs that finished longer ago than this, with their logs and checkpoints."""
        return self._retention.purge(older_than_s, dry_run=dry_run)

    def rebind_channel(self) -> Future[None]:
        """Listen to workers on a new socket, because the old one's file was deleted."""
        return self._loop.rebind_channel()

    def shutdown(self, stop_jobs: bool = False) -> None:
        """Start shutting down and return; ``finished`` is set at the end.  ``stop_jobs`` stops the workers first."""
        self._loop.shut_down(stop_jobs=stop_jobs)

    def join(self) -> None:
        """Wait until the loop has ended."""
        self._loop.join()

    # Reading -------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """All jobs in order of submission, with the newest step each has reported."""
        faulty = self._faults.by_job
        return [
            # All others are as the journal has them: they have neither devices nor an error that could hold them up.
            self._newest(job) if job.devices or job.wanted or (faulty and job.id in faulty) else job
            for job in self._loop.state.jobs.in_order()
        ]

    def job(self, job_id: str) -> Job:
        return self._newest(_job_in(self._loop.state, job_id))

    def queue(self) -> Mapping[str, QueuePlace]:
        return self._scheduler.queue

    def explain(self, job_id: str) -> list[Sentence]:
        """What happened to the job and why, oldest first; the last sentence is about now."""
        job = _job_in(self._loop.state, job_id)
        sentences = self._before().of(job_id) + self._history.of(job_id)
        if not job.state.is_final:
            now = self._in_loop(lambda state, now_s: self._standing(state.jobs[job_id], now_s))
            if not sentences or now.text != sentences[-1].text:
                sentences.append(now)
        elif job.reason and (not sentences or job.reason not in sentences[-1].text):
            sentences.append(Sentence(job.finished_s or 0.0, job.reason))
        return sentences

    def history(self, job_id: str) -> HistoryRow:
        """The job's whole life in numbers, in a bounded number of points."""
        job = _job_in(self._loop.state, job_id)
        known = None if job.state.is_final else self._in_loop(lambda state, now_s: self._knowledge.speeds(job))
        return self._series.row(job, known)

    def timeline(self, since_s: float, until_s: float) -> list[AttemptBar]:
        """Which job had which devices when, oldest first."""
        return between(self._history.bars.after(self._before().bars, self._loop.state.jobs), since_s, until_s)

    def decisions(self, last: int = 100) -> list[Decision]:
        """The last decisions that changed something, oldest first."""
        return self._history.decisions(last)

    def outlook(self, submission: Submission) -> OutlookRow:
        """What the policy would give this job now; changes nothing."""
        check_batch_range(submission.launch)
        can_resume = not is_plain_script(submission.launch)

        def ask(state: State, now_s: float) -> OutlookRow:
            _check_fits(submission, state, self._scheduler.options.quotas)
            spec = submission.spec(new_id(state.jobs), now_s)
            with self._knowledge.supposing(spec.id, can_resume=can_resume):
                workers, reason = self._scheduler.outlook(state, self._knowledge, spec, submission.total_steps, now_s)
            return {"workers": workers, "reason": in_words(reason, state.name_of), "reason_code": code_of(reason)}

        return self._in_loop(ask)

    def whatif(self, question: Question) -> WhatifRow:
        """The simulator's forecast for the jobs that are running and waiting, without and with changes."""
        for job_id in question.jobs:
            _job_in(self._loop.state, job_id)
        queue = self._in_loop(lambda state, now_s: queue_now(state, self._scheduler, self._knowledge, now_s))
        return forecast_process.ask(queue, question)

    def nodes(self) -> list[NodeView]:
        state = self._loop.state
        cluster = state.cluster
        holders: dict[int, tuple[str, ...]] = {}
        for job in state.jobs.active.values():
            for device in job.devices:
                holders[device] = (*holders.get(device, ()), job.id)
        return [
            NodeView(
                node,
                _shown_name(name),
                _status_of(cluster, node),
                {device: holders.get(device, ()) for device in cluster.devices_of(node)},
                cluster.kinds[node] if cluster.kinds else "",
            )
            for node, name in enumerate(cluster.node_names)
        ]

    def logs(
        self, job_id: str, attempt: int | None = None, rank: int | None = None, stream: LogStream = "out"
    ) -> WorkerLog:
        """A worker's output; by default of worker 0 in the newest attempt that has any."""
        job = _job_in(self._loop.state, job_id)
        ended = job.finished_s is not None
        path, chosen, worker = find_log(self._home.attempts(job_id), job_id, attempt, rank, stream, job.attempt, ended)

        def is_over() -> bool:
            now = self._loop.state.jobs[job_id]
            return now.attempt != chosen or not now.devices

        log = WorkerLog(path, chosen, worker, is_over)
        log.check()
        return log

    def warnings(self) -> list[str]:
        """What needs attention: a full disk, a wrong clock, skipped events."""
        ahead_s = self._clock.now_s() - time.time()
        clock = (
            f"the controller's clock is {ahead_s:.0f} s ahead of this machine's: `weft down` and `weft up` correct it; "
            "jobs keep running"
        )
        num_left_out = self._faults.num_events_left_out
        events = f"skipped {plural(num_left_out, 'event')} that could not be applied: see {self._home.log_file}"
        found = [
            self._loop.waits_for_disk,
            low_in_words(self._home),
            clock if ahead_s > MAX_AHEAD_S else "",
            events if num_left_out else "",
        ]
        return [warning for warning in [*found, *self._engine.warnings()] if warning]

    def metrics(self) -> bytes:
        """Prometheus text."""
        num_aside = len(self._scheduler.guarded.aside)
        try:
            space = Space.at(self._home.root)
        except OSError:
            space = None
        num_dropped, num_troubled = self._channel.num_dropped, self._loop.num_troubled
        text = self._metrics.text(self._loop.state, num_dropped, num_aside, num_troubled, space)
        return text + job_series(self._newest(job) for job in self._loop.state.jobs.active.values())

    def _newest(self, job: Job) -> Job:
        hint = "" if job.state.is_final else self._loop.hint(job)
        now = HeldUp(hint) if hint else job_reasons.until_its_start(job)
        if now is not None:
            job = replace(job, reason=in_words(now), reason_code=code_of(now))
        progress = self._knowledge.reports.progress(job)
        return job if progress is job.progress else replace(job, progress=progress)

    def _standing(self, job: Job, now_s: float) -> Sentence:
        decided = self._loop.decided
        text = None
        if decided and not job.is_cancelled:
            text = self._scheduler.explain(decided, job, self._loop.state, self._knowledge)
        text = self._loop.hint(job) or text or job.reason
        if assigned := job_reasons.until_its_start(job):
            text = f"{in_words(assigned)}; {text}"
        place = None if job.devices else self._scheduler.queue.get(job.id)
        return Sentence(now_s, f"{text}; {place_in_words(place, now_s)}" if place else text)

    def _before(self) -> History:
        """What happened before the events that this controller has replayed or made; read on first use."""
        with self._past_lock:
            if self._past is None:
                past = History()
                for seq, event in self._journal.read():
                    if seq > self._journal.loaded_seq:
                        break
                    past.note(event)
                self._past = past
            return self._past

    def _in_loop(self, ask: Callable[[State, float], Result]) -> Result:
        """Policies keep state between decisions, so only the loop's thread may call them."""
        answer: Future[Result] = self._loop.request(lambda state, now_s: ((), ask(state, now_s)))
        return answer.result()


def _job_in(state: State, job_id: str) -> Job:
    job = state.jobs.get(job_id)
    if job is None:
        raise UnknownJobError(f"there is no job {job_id!r}: `weft status` lists all jobs")
    return job


def _shown_name(name: str) -> str:
    """The name of a node that users see."""
    return socket.gethostname() if name == LOCAL_NODE else name


def _status_of(cluster: Cluster, node: int) -> NodeStatus:
    if node in cluster.failed_nodes:
        return NodeStatus.LOST
    if node in cluster.drained_nodes:
        return NodeStatus.DRAINED
    return NodeStatus.LEAVING if node in cluster.leaving_nodes else NodeStatus.UP


def _check_fits(submission: Submission, state: State, quotas: Mapping[str, int]) -> None:
    """Reject a job that could never run, even with every node up."""
    num_devices = sum(state.cluster.devices_by_node)
    wants = f"{f'job {submission.name}' if submission.name else 'the job'} wants at least "
    wants += plural(submission.min_workers, "worker")
    if not submission.spec("this-job", 0.0).allowed_sizes(num_devices):
        raise UsageError(f"{wants}, this cluster has {plural(num_devices, 'device')}: lower --workers or add nodes")
    quota = quotas.get(submission.user)
    if quota is not None and submission.min_workers > quota:
        raise UsageError(
            f"{wants}, the quota of {submission.user} is {quota}: lower --workers or start the controller with a "
            "larger --quota"
        )
