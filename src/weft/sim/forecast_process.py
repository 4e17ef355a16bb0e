"""Forecasts in a process of their own: however many jobs there are, the controller does not wait for them.

The process reads one JSON document and answers with another; it has a low priority, a time limit, and no files.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import Any, cast

from weft.control.codec import state_from_json, state_to_json
from weft.core.speed import StepTime
from weft.core.status_rows import WhatifRow
from weft.errors import ControllerError, UsageError, WeftError
from weft.sim.queue_forecast import KnownJob, Question, Queue, assumptions, forecast, left_out

LIMIT_S = 20.0
_NICENESS = 10
_one_at_a_time = threading.Lock()


def ask(queue: Queue, question: Question, limit_s: float = LIMIT_S) -> WhatifRow:
    """The forecast as things are, and the one for ``question``; from any thread."""
    document = json.dumps({"queue": _queue_to_json(queue), "question": asdict(question)}, allow_nan=False)
    num_jobs = len(queue.state.jobs.active)
    if not _one_at_a_time.acquire(timeout=limit_s):
        raise ControllerError("another forecast is still being made: ask again later")
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=document.encode(), capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ControllerError(
            f"simulating {num_jobs} jobs took longer than {limit_s:g} s and was stopped: ask again when fewer jobs are "
            "waiting, or use `weft sim`"
        ) from None
    finally:
        _one_at_a_time.release()
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ControllerError(f"the forecast failed ({' '.join(last)[:200]}): nothing else is affected")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise UsageError(answer["error"])
    return cast(WhatifRow, answer)


def main() -> None:
    """One question on standard input, one answer on standard output."""
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (int(LIMIT_S), int(LIMIT_S)))
    document = json.load(sys.stdin)
    queue, question = _queue_from_json(document["queue"]), Question(**document["question"])
    answer: dict[str, Any]
    try:
        plan = forecast(queue, Question())
        unchanged = question == Question()
        answer = {"plan": plan, "whatif": plan if unchanged else forecast(queue, question)}
        missing = [sentence for one in (Question(), question) for sentence in left_out(queue, one)]
        answer["assumptions"] = [*dict.fromkeys(missing), *assumptions(queue)]
    except WeftError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout, allow_nan=False)


def _queue_to_json(queue: Queue) -> dict[str, Any]:
    return {
        "state": state_to_json(queue.state),
        "known": {
            job_id: {**asdict(known), "measured": _times(known.measured), "expected": _times(known.expected)}
            for job_id, known in queue.known.items()
        },
        **{name: getattr(queue, name) for name in _PLAIN},
    }


_PLAIN = ("now_s", "policy", "hold_s", "review_s", "restart_s", "handover_s", "quotas", "usual_s")


def _queue_from_json(document: dict[str, Any]) -> Queue:
    known = {
        job_id: KnownJob(**{**one, "measured": _read_times(one["measured"]), "expected": _read_times(one["expected"])})
        for job_id, one in document["known"].items()
    }
    return Queue(state_from_json(document["state"]), known=known, **{name: document[name] for name in _PLAIN})


def _times(times: Any) -> list[list[float]]:
    return [[size, time.step_s, time.exposed_s] for size, time in times.items()]


def _read_times(rows: list[Any]) -> dict[int, StepTime]:
    return {int(size): StepTime(step_s, exposed_s) for size, step_s, exposed_s in rows}


if __name__ == "__main__":
    main()
