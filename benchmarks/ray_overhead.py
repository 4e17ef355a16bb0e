"""What the Ray engine costs over the local one: a start, a stop and restart, and a step.

    python -m benchmarks.ray_overhead [--rounds 5] [--quick] [--out FOLDER]

Both engines run on this machine, with two devices; Ray is started on the loopback interface and stopped in the end.
In turns, each runs a job with a fresh interpreter and one from the warm pool until it has taken steps, and drops a
job from two workers to one because another arrives.  Times include the decision, which is the same for both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.figures import Document, draw_costs, finish
from benchmarks.record import markdown_table, results_folder
from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.options import ControllerOptions
from weft.engines.rendezvous import ReservedPort
from weft.errors import WeftError

WORKER = Path(__file__).with_name("restart_worker.py")
STARTS_WITHIN_S = 120.0
NUM_STEPS = 50
ALLOWED = {"cold start": 2.0, "warm start": 2.0, "warm resize": 1.0}
"""Seconds more than the local engine takes."""


@contextlib.contextmanager
def ray_node() -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster of one node: its address, and the environment for whoever uses it."""
    folder = tempfile.mkdtemp(prefix="weft-ray-")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24), "RAY_raylet_start_wait_time_s": "150"}
    environment = {**os.environ, **token}
    with ReservedPort() as place:
        port = place.port
    words = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=false"]
    more = ["--object-store-memory=80000000", "--disable-usage-stats", "--block", f"--temp-dir={folder}"]
    log = Path(folder, "log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", *words, *more],
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        _wait(lambda: b"Ray runtime started" in log.read_bytes(), "Ray did not start")
        yield f"127.0.0.1:{port}", environment
    finally:
        whole = psutil.Process(process.pid)
        for one in [*whole.children(recursive=True), whole]:  # `ray stop` would end every other cluster of this machine
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def controller(options: ControllerOptions, environment: dict[str, str]) -> Iterator[Client]:
    home = Path(tempfile.mkdtemp(prefix="weft-overhead-"))
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            options.command("-P"),
            env={**environment, "WEFT_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    client = Client(home)
    try:
        _wait(lambda: _answers(client), f"no controller: {(home / 'log').read_text()[-2000:]}")
        yield client
    finally:
        with contextlib.suppress(WeftError):
            client.shutdown(stop_jobs=True)
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _answers(client: Client) -> bool:
    with contextlib.suppress(WeftError):
        return bool(client.health())
    return False


def _wait(holds: Callable[[], bool], words: str) -> float:
    """How long it took."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > STARTS_WITHIN_S:
            raise WeftError(words)
        time.sleep(0.01)
    return time.monotonic() - began_s


def job(marks: Path, min_workers: int, max_workers: int, *, cold: bool = False) -> Submission:
    # A variable that a fork cannot honor makes the engine start a fresh interpreter.
    environment = {"PYTHONHASHSEED": "1"} if cold else {}
    launch = Launch(("python", str(WORKER), str(marks)), str(marks.parent), environment)
    return Submission(launch, min_workers=min_workers, max_workers=max_workers)


def one_round(client: Client, folder: Path) -> dict[str, float]:
    found = {}
    for name, cold in (("cold start", True), ("warm start", False)):
        job_id = client.submit(job(folder / "marks", 2, 2, cold=cold))
        found[name] = _until_step(client, job_id, 1, 1)
        if not cold:
            found["step"] = _until_step(client, job_id, 1, 2 * NUM_STEPS) and client.job(job_id)["step_s"]
        _cancel(client, job_id)
    wide = client.submit(job(folder / "wide", 1, 2))
    _wait(lambda: client.job(wide)["workers"] == 2 and client.job(wide)["step"] > 0, "the job never had two workers")
    before = client.job(wide)["attempt"]
    narrow = client.submit(job(folder / "narrow", 1, 1))
    found["warm resize"] = _until_step(client, wide, before + 1, 1)
    for job_id in (wide, narrow):
        _cancel(client, job_id)
    return found


def _until_step(client: Client, job_id: str, attempt: int, step: int) -> float:
    """Steps are counted from the first attempt on: a new attempt has taken one when it has reported."""

    def holds() -> bool:
        row = client.job(job_id)
        return row["attempt"] >= attempt and row["step"] >= step and row["step_s"] > 0 and row["workers"] > 0

    return _wait(holds, f"job {job_id} did not reach step {step} of attempt {attempt}")


def _cancel(client: Client, job_id: str) -> None:
    client.cancel(job_id)
    _wait(lambda: client.job(job_id)["state"] == "CANCELLED", f"job {job_id} was not cancelled")


def main(argv: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing may be left running
    parser = argparse.ArgumentParser(description="what the Ray engine costs over the local one")
    parser.add_argument("--rounds", type=int, help="default: 5, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(argv)
    num_rounds = options.rounds or (1 if options.quick else 5)
    folder = results_folder(options.out, quick=options.quick)
    rounds: dict[str, list[dict[str, float]]] = {"local": [], "ray": []}
    with ray_node() as (address, environment), tempfile.TemporaryDirectory() as marks:
        local = ControllerOptions(devices=2, port=0, hold_s=0.5, no_share=True)
        ray = replace(local, engine="ray", address=address, devices=None)
        with controller(local, environment) as on_local, controller(ray, environment) as on_ray:
            for number in range(num_rounds + 1):
                for name, client in (("local", on_local), ("ray", on_ray)):
                    measured = one_round(client, Path(marks))
                    if number:  # the first round is for warming up
                        rounds[name].append(measured)
                    say(f"round {number} of {num_rounds}, {name}: {measured}")
    rows = [cost_row(what, rounds) for what in (*ALLOWED, "step")]
    command = f"python -m benchmarks.ray_overhead --rounds {num_rounds}"
    finish("ray_overhead", command, {"rounds": num_rounds, "rows": rows}, tables, draw, folder)


def cost_row(what: str, rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    local_s, ray_s = (median(one[what] for one in rounds[name]) for name in ("local", "ray"))
    allowed_s = ALLOWED.get(what)
    more_s = ray_s - local_s
    reached = "-" if allowed_s is None else "yes" if more_s <= allowed_s else "no"
    figures = {"local_s": round(local_s, 4), "ray_s": round(ray_s, 4), "more_s": round(more_s, 4)}
    return {"what": what, **figures, "allowed_s": allowed_s, "reached": reached}


def tables(document: Document) -> str:
    names = ("what", "local_s", "ray_s", "more_s", "allowed_s", "reached")
    heads = ["from request to first report", "local, s", "Ray, s", "Ray takes longer by, s", "allowed, s", "reached"]
    body = [["-" if row[name] is None else row[name] for name in names] for row in document["rows"]]
    return "\n".join([f"{document['rounds']} rounds in turns; medians.", "", *markdown_table(heads, body)])


def draw(document: Document, path: Path) -> None:
    rows = [row for row in document["rows"] if row["allowed_s"] is not None]
    costs = [(row["what"], max(row["more_s"], 0.0), row["allowed_s"], f"{row['more_s']:.2f} s more") for row in rows]
    draw_costs("What the Ray engine costs over the local one", costs, document, path)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
