"""A controller as a process that a test can kill: requests as lines of JSON on stdin, answers on stdout.

    python -m tests.crash.controller_driver HOME NUM_DEVICES

Used where the loop, the journal and the engine are in question and the web server is not.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.home import Home
from weft.daemon.scheduling import SchedulingOptions
from weft.daemon.service import Controller
from weft.engines.local import LocalEngine
from weft.errors import WeftError
from weft.store import Journal


def answer(controller: Controller, request: dict[str, Any]) -> Any:
    match request["ask"]:
        case "submit":
            launch = Launch(tuple(request["argv"]), request["cwd"], request["environment"], request["max_restarts"])
            return controller.submit(Submission(launch, **request["options"]))
        case "cancel":
            return controller.cancel(request["job_id"])
        case "wait":
            deadline_s = time.monotonic() + request["timeout_s"]
            while time.monotonic() < deadline_s and not controller.finished.is_set():
                jobs = [controller.job(job_id) for job_id in request["job_ids"]]
                if all(job.state.is_final for job in jobs):
                    break
                time.sleep(0.01)
            return {job_id: controller.job(job_id).state.value for job_id in request["job_ids"]}
        case "jobs":
            return [
                {
                    "id": job.id,
                    "state": job.state.value,
                    "attempt": job.attempt,
                    "step": job.progress.step,
                    "devices": list(job.devices),
                    "restarts": job.num_restarts,
                    "reason": job.reason,
                    "submitted_s": job.submitted_s,
                    "finished_s": job.finished_s,
                }
                for job in controller.jobs()
            ]
        case _:
            return controller.shutdown(stop_jobs=request["stop_jobs"])


def main() -> None:
    home = Home(Path(sys.argv[1]))
    home.prepare()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    writing = threading.Lock()

    def reply(text: dict[str, Any]) -> None:
        with writing:
            print(json.dumps(text), flush=True)

    def serve(controller: Controller, request: dict[str, Any], call: Callable[..., Any]) -> None:
        try:
            reply({"number": request["number"], "result": call(controller, request)})
        except WeftError as error:
            reply({"number": request["number"], "error": f"{type(error).__name__}: {error}"})

    with home.locked():
        engine = LocalEngine(home.root, num_devices=int(sys.argv[2]), warm=False, grace_s=10.0)
        options = SchedulingOptions(hold_s=0.5)
        controller = Controller(home, Journal(home.journal_file), engine, options, paranoid=True)
        controller.start()
        reply({"number": 0, "result": "ready"})
        for line in sys.stdin:
            request = json.loads(line)
            threading.Thread(target=serve, args=(controller, request, answer), daemon=True).start()
            if request["ask"] == "shutdown":
                break
        else:
            controller.shutdown()
        controller.join()
        if controller.failure is not None:
            raise controller.failure


if __name__ == "__main__":
    main()
