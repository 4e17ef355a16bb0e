"""The routes.  Each makes one call to the controller; ids are looked up, never joined to a path.

Routes that may wait for the disk or the controller's loop are plain functions, which the framework runs in threads.
Routes that wait for a job are coroutines that poll: otherwise a hundred waiting clients would take all the threads that
submissions need.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter as Tally
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from weft.daemon.api.board import Board
from weft.daemon.api.broadcast import Broadcast
from weft.daemon.api.guard import PERMISSION
from weft.daemon.api.row_texts import RowTexts
from weft.daemon.api.rows import (
    decision_row,
    health_row,
    job_detail,
    job_row,
    most_interesting,
    node_row,
    sentence_row,
    timeline_row,
)
from weft.daemon.api.schemas import (
    ChangeRequest,
    Changes,
    Decisions,
    Health,
    Job,
    JobHistory,
    JobRequest,
    Jobs,
    JobTimeline,
    NodeRequest,
    Nodes,
    Outlook,
    Overview,
    Problem,
    Purged,
    PurgeRequest,
    Sentences,
    ShutdownRequest,
    Submitted,
    Whatif,
    WhatifRequest,
)
from weft.daemon.api.sessions import Permission
from weft.daemon.contract import StoppingError, UnknownJobError
from weft.daemon.ids import is_id
from weft.daemon.log_search import search
from weft.daemon.service import Controller
from weft.daemon.worker_output import WorkerLog
from weft.errors import UsageError

MAX_WAIT_S = 60.0
MAX_DECISIONS = 1000
MAX_SHOWN = 10_000
_DAY_S = 86400.0
_MIN_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.25

JobId = Annotated[str, Path(description="id of a job, as `weft submit` printed it")]
Detail = Annotated[bool, Query(description="everything about each job")]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in (
        (400, "the request is invalid"),
        (401, "no valid token"),
        (403, "foreign origin"),
        (404, "no such job"),
        (409, "the job is not in a state for this"),
        (408, "the body did not arrive in time"),
        (413, "body too large"),
        (421, "wrong Host"),
        (422, "a field is missing, unknown, or of the wrong type"),
        (503, "nothing was acknowledged: the journal cannot be written, or the controller is shutting down"),
    )
}


class Json(JSONResponse):
    """JSON in ASCII: no text from a job can break the encoding."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def make_router(controller: Controller) -> APIRouter:
    """All routes, bound to one controller."""
    router = APIRouter(default_response_class=Json, responses=PROBLEMS)
    _add_job_routes(router, controller)
    _add_watch_routes(router, controller)
    _add_cluster_routes(router, controller)
    return router


def _add_job_routes(router: APIRouter, controller: Controller) -> None:
    rows = RowTexts()

    @router.post("/v1/jobs", status_code=201, response_model=Submitted, tags=["jobs"])
    def submit(request: JobRequest) -> Response:
        """Submit a job.  Answered when the job is on disk."""
        job_id = controller.submit(request.submission())
        return Json({"id": job_id}, status_code=201, headers={"Location": f"/v1/jobs/{job_id}"})

    @router.post("/v1/outlook", response_model=Outlook, tags=["jobs"])
    def outlook(request: JobRequest) -> Response:
        """What the policy would give this job now.  Nothing is submitted."""
        return Json(controller.outlook(request.submission()))

    @router.post("/v1/whatif", response_model=Whatif, tags=["cluster"])
    def whatif(request: WhatifRequest) -> Response:
        """The simulator's forecast for the current queue, without and with changes.  Nothing is changed."""
        question = request.question()
        for job_id in question.jobs:
            _checked(job_id)
        return Json(controller.whatif(question))

    @router.get("/v1/jobs", response_model=Jobs, tags=["jobs"])
    def jobs(detail: Detail = False) -> Response:
        """All jobs in order of submission."""
        jobs, queue = controller.jobs(), controller.queue()
        if detail:
            return Json({"jobs": [job_detail(job, queue) for job in jobs]})
        return Response(rows.jobs(jobs, queue), media_type="application/json")

    @router.get("/v1/overview", response_model=Overview, tags=["jobs"])
    def overview(
        limit: Annotated[int, Query(ge=0, le=MAX_SHOWN, description="maximum number of jobs")] = 100,
    ) -> Response:
        """The number of jobs in each state, and some of them: running, waiting, then those that finished last."""
        jobs = controller.jobs()
        queue = controller.queue()
        shown = [job_detail(job, queue) for job in most_interesting(jobs, limit)]
        return Json({"jobs": shown, "counts": Tally(job.state.value for job in jobs)})

    @router.get("/v1/jobs/{job_id}", response_model=Job, tags=["jobs"])
    def job(job_id: JobId) -> Response:
        """Everything about one job."""
        return Json(job_detail(controller.job(_checked(job_id)), controller.queue()))

    @router.patch("/v1/jobs/{job_id}", response_model=Job, tags=["jobs"])
    def change(job_id: JobId, request: ChangeRequest) -> Response:
        """Change a job's weight, priority, or limits.  The next decision takes it into account."""
        controller.change_job(_checked(job_id), **request.model_dump(exclude_none=True))
        return Json(job_detail(controller.job(job_id), controller.queue()))

    @router.post("/v1/jobs/{job_id}/cancel", status_code=202, response_model=Job, tags=["jobs"])
    def cancel(job_id: JobId) -> Response:
        """Stop a job for good.  A second request kills its workers."""
        controller.cancel(_checked(job_id))
        return Json(job_detail(controller.job(job_id), controller.queue()), status_code=202)

    @router.get("/v1/jobs/{job_id}/explain", response_model=Sentences, tags=["jobs"])
    def explain(job_id: JobId) -> Response:
        """What happened to the job, and why."""
        return Json({"sentences": [sentence_row(one) for one in controller.explain(_checked(job_id))]})

    @router.get("/v1/jobs/{job_id}/history", response_model=JobHistory, tags=["jobs"])
    def history(job_id: JobId) -> Response:
        """The job's whole life: loss, step time, workers, and more over time, and what changed its workers."""
        return Json(controller.history(_checked(job_id)))


def _add_watch_routes(router: APIRouter, controller: Controller) -> None:
    @router.get("/v1/jobs/{job_id}/logs", response_class=PlainTextResponse, tags=["jobs"])
    async def logs(
        job_id: JobId,
        attempt: Annotated[int | None, Query(ge=1, le=2**31, description="default: the newest with output")] = None,
        rank: Annotated[int | None, Query(ge=0, le=2**31, description="which worker; default 0")] = None,
        stream: Annotated[Literal["out", "err"], Query(description="standard output or standard error")] = "out",
        follow: Annotated[bool, Query(description="continue until the attempt is over")] = False,
        tail_bytes: Annotated[int | None, Query(ge=0, le=2**53, description="only the last bytes")] = None,
        text: Annotated[
            str | None, Query(alias="search", min_length=1, max_length=200, description="only lines that contain this")
        ] = None,
    ) -> Response:
        """Output of one worker.  The headers give its attempt and rank, and how many bytes were skipped.

        With ``search``, only the last 1000 lines that contain the text; ``X-Weft-Matches`` says how many do.
        """
        log = controller.logs(_checked(job_id), attempt, rank, stream)
        headers = {"X-Weft-Attempt": str(log.attempt), "X-Weft-Rank": str(log.rank)}
        if text is not None:
            found = await asyncio.to_thread(search, log, text)
            headers |= {"X-Weft-Skipped-Bytes": str(found.skipped_bytes), "X-Weft-Matches": str(found.num_lines)}
            return Response(found.text, media_type="text/plain; charset=utf-8", headers=headers)
        headers["X-Weft-Skipped-Bytes"] = str(0 if tail_bytes is None else log.skip_to_last(tail_bytes))
        body = log.follow() if follow else _whole(log)
        return StreamingResponse(body, media_type="text/plain; charset=utf-8", headers=headers)

    @router.get("/v1/wait", response_model=Jobs, tags=["jobs"])
    async def wait(
        job_id: Annotated[list[str], Query(alias="id", min_length=1, max_length=1000)],
        timeout_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, allow_inf_nan=False)] = 30.0,
    ) -> Response:
        """Wait until all these jobs have finished or the time is up; returns their state at that time."""
        jobs = await _awaited(controller, job_id, timeout_s)
        return Json({"jobs": [job_row(job, controller.queue()) for job in jobs]})


def _add_cluster_routes(router: APIRouter, controller: Controller) -> None:
    @router.get("/v1/nodes", response_model=Nodes, tags=["cluster"])
    def nodes() -> Response:
        """Nodes, their devices, and the jobs on them."""
        return Json({"nodes": [node_row(node) for node in controller.nodes()]})

    @router.post("/v1/nodes/drain", response_model=Nodes, tags=["cluster"])
    def drain(node: NodeRequest) -> Response:
        """Take a node out of service: its jobs stop and restart on other nodes."""
        controller.drain(node.name)
        return nodes()

    @router.post("/v1/nodes/resume", response_model=Nodes, tags=["cluster"])
    def resume(node: NodeRequest) -> Response:
        """Return a drained node to service."""
        controller.drain(node.name, resume=True)
        return nodes()

    @router.get("/v1/decisions", response_model=Decisions, tags=["cluster"])
    def decisions(last: Annotated[int, Query(ge=1, le=MAX_DECISIONS)] = 100) -> Response:
        """The last decisions that changed something, with their reasons."""
        return Json({"decisions": [decision_row(one) for one in controller.decisions(last)]})

    @router.get("/v1/timeline", response_model=JobTimeline, tags=["cluster"])
    def timeline(
        since_s: Annotated[
            float | None, Query(allow_inf_nan=False, description="default: a day before until_s")
        ] = None,
        until_s: Annotated[float | None, Query(allow_inf_nan=False, description="default: now")] = None,
    ) -> Response:
        """Attempts that ran in this time, on their devices, oldest first; the newest 10,000."""
        until = controller.now_s() if until_s is None else until_s
        since = until - _DAY_S if since_s is None else since_s
        if since > until:
            raise UsageError(f"since_s is {since:.0f}, after until_s, {until:.0f}: expected an earlier time")
        jobs = {job.id: job for job in controller.jobs()}
        return Json(timeline_row(controller.timeline(since, until), jobs, controller.nodes(), since, until))

    board = Board(controller)

    @router.get("/v1/changes", response_model=Changes, tags=["cluster"])
    def changes(
        request: Request,
        since: Annotated[str, Query(max_length=40, description="the version of the last answer, if any")] = "",
    ) -> Response:
        """Jobs, nodes, and decisions that changed since the version of an earlier response; without one, everything."""
        return Response(board.changes(since, _permission(request)), media_type="application/json")

    broadcast = Broadcast(board)

    @router.get("/v1/stream", response_class=StreamingResponse, tags=["cluster"])
    async def stream(
        request: Request,
        since: Annotated[str, Query(max_length=40, description="the version of the last answer, if any")] = "",
    ) -> Response:
        """The responses of /v1/changes as server-sent events, one whenever something has changed."""
        events = broadcast.events(since, _permission(request))
        return StreamingResponse(events, media_type="text/event-stream")

    @router.post("/v1/purge", response_model=Purged, tags=["controller"])
    def purge(request: PurgeRequest) -> Response:
        """Delete jobs that finished longer ago than requested, with their logs and checkpoints."""
        return Json(controller.purge(request.older_than_s, dry_run=request.dry_run))

    @router.post("/v1/shutdown", status_code=202, tags=["controller"])
    def shutdown(request: Annotated[ShutdownRequest | None, Body()] = None) -> Response:
        """Shut down.  Jobs stay in the queue; their workers keep running unless ``stop_jobs`` is set."""
        controller.shutdown(stop_jobs=request is not None and request.stop_jobs)
        return Json({"status": "shutting down"}, status_code=202)

    @router.get("/metrics", response_class=PlainTextResponse, tags=["controller"])
    def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(controller.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/healthz", response_model=Health, tags=["controller"])
    def healthz(request: Request) -> Response:
        """Version, policy, pid, and warnings of the controller."""
        return Json(health_row(controller.policy_name, controller.warnings(), _permission(request)))


def _permission(request: Request) -> Permission:
    return Permission(request.scope[PERMISSION])


def _checked(job_id: str) -> str:
    if not is_id(job_id):
        raise UnknownJobError(f"there is no job {job_id[:80]!r}: `weft status` lists all jobs")
    return job_id


async def _whole(log: WorkerLog) -> AsyncIterator[bytes]:
    try:
        while data := log.read():
            yield data
    finally:
        log.close()


async def _awaited(controller: Controller, job_ids: Sequence[str], timeout_s: float) -> list[Any]:
    found: Mapping[str, Any] = {job_id: controller.job(_checked(job_id)) for job_id in job_ids}
    clock = asyncio.get_running_loop().time
    deadline_s, pause_s = clock() + timeout_s, _MIN_PAUSE_S
    while not all(job.state.is_final for job in found.values()) and (left_s := deadline_s - clock()) > 0:
        try:
            await asyncio.sleep(min(pause_s, left_s))
        except asyncio.CancelledError:
            # The server is shutting down and cancels all waits.
            raise StoppingError("the controller is shutting down: try again after `weft up`") from None
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        found = {job_id: controller.job(job_id) for job_id in found}
    return list(found.values())
