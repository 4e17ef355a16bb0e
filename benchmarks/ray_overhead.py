"""What the Ray engine costs over the local one: a start, a stop and restart, and a step; and what nodes cost.

    python -m benchmarks.ray_overhead [--rounds 3] [--quick] [--out FOLDER]

Both engines run on this machine, with two devices; Ray is started on the loopback interface and stopped at the end.
They take turns: each runs a job with a fresh interpreter and one from the warm pool until all its workers have taken a
step, and then resizes a job from two workers to one.  Times include the decision, which is the same for both.
Then a node of a cluster of two is lost and comes back, see :mod:`benchmarks.ray_nodes`; that part needs root.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.figures import Document, draw_costs, finish
from benchmarks.program import counted, parse, say
from benchmarks.ray_nodes import Notes, cancel, node_times, wait
from benchmarks.record import markdown_table
from benchmarks.testbed import missing_reason
from weft.client import Client
from weft.daemon.options import ControllerOptions
from weft.engines.rendezvous import ReservedPort
from weft.errors import WeftError

ALLOWED = {"cold start": 2.0, "warm start": 2.0, "warm resize": 1.0}
"""Seconds more than the local engine takes, to the first step of all workers."""
ALLOWED_NODES = {"lost node": 30.0, "joined node": 10.0, "joined node, first step": None}
"""Seconds from the moment at which Ray lists the node as lost or alive."""
NODE_ROUNDS = 2
WORDS = {
    "cold start": "submit to first step, fresh interpreter",
    "warm start": "submit to first step, warm pool",
    "warm resize": "resize to first step, warm pool",
    "step": "a step",
    "lost node": "a node is lost: to the next step of its job",
    "joined node": "a node joins: until a job's workers run there",
    "joined node, first step": "a node joins: to the first step there",
}


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
        wait(lambda: b"Ray runtime started" in log.read_bytes(), "Ray did not start")
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
        wait(lambda: _answers(client), f"no controller: {(home / 'log').read_text()[-2000:]}")
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


def one_round(client: Client, folder: Path) -> dict[str, float]:
    found = {}
    for name, cold in (("cold start", True), ("warm start", False)):
        notes, asked_s = Notes(folder), time.monotonic()
        job_id = client.submit(notes.job(2, 2, cold=cold))
        found[name] = notes.last("stepped", 1, 2) - asked_s
        if not cold:
            found["step"] = notes.last("step_s", 1, 2)
        cancel(client, job_id)
    notes = Notes(folder)
    job_id = client.submit(notes.job(2, 2))
    notes.last("step_s", 1, 2)
    asked_s = time.monotonic()
    client.change(job_id, min_workers=1, max_workers=1)
    found["warm resize"] = notes.last("stepped", 2, 1) - asked_s
    cancel(client, job_id)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing may be left running
    parser = argparse.ArgumentParser(description="what the Ray engine costs over the local one")
    options, folder = parse(parser, argv, quick="one round", rounds=3)
    num_rounds, num_node_rounds = options.rounds, min(options.rounds, NODE_ROUNDS)
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
    rows: list[dict[str, Any]] = [cost_row(what, rounds) for what in (*ALLOWED, "step")]
    if reason := missing_reason():
        say(f"nodes that are lost and join are not measured: {reason}")
    else:
        by_round = node_times(num_node_rounds, say)
        rows += [node_row(what, [one[what] for one in by_round]) for what in ALLOWED_NODES]
    command = f"python -m benchmarks.ray_overhead --rounds {num_rounds}"
    finish(
        "ray_overhead",
        command,
        {"rounds": num_rounds, "node_rounds": num_node_rounds, "rows": rows},
        tables,
        draw,
        folder,
    )


def cost_row(what: str, rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians; a step may take longer by what rounds on the local engine differ from each other."""
    local, ray = ([one[what] for one in rounds[name]] for name in ("local", "ray"))
    more_s = median(ray) - median(local)
    allowed_s = ALLOWED.get(what, max(local) - min(local))
    figures = {"local_s": median(local), "ray_s": median(ray), "more_s": more_s, "allowed_s": allowed_s}
    return {"what": what, **_rounded(figures), "reached": "yes" if more_s <= allowed_s else "no"}


def node_row(what: str, took_s: Sequence[float]) -> dict[str, Any]:
    """The slowest round counts."""
    allowed_s = ALLOWED_NODES[what]
    reached = "-" if allowed_s is None else "yes" if max(took_s) <= allowed_s else "no"
    figures = {"local_s": None, "ray_s": max(took_s), "more_s": None, "allowed_s": allowed_s}
    return {"what": what, **_rounded(figures), "reached": reached}


def _rounded(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 5) for name, value in figures.items()}


def tables(document: Document) -> str:
    costs = [row for row in document["rows"] if row["local_s"] is not None]
    nodes = [row for row in document["rows"] if row["local_s"] is None]
    heads = ["what", "local, s", "Ray, s", "Ray takes longer by, s", "allowed, s", "reached"]
    names = ("local_s", "ray_s", "more_s", "allowed_s")
    num_rounds = counted(document["rounds"], "round")
    lines = [f"Medians of {num_rounds}, both engines in turns. A step may differ by as much as the local"]
    lines += ["engine's rounds differ from each other.", ""]
    lines += markdown_table(
        heads, [[WORDS[row["what"]], *(_shown(row[name]) for name in names), row["reached"]] for row in costs]
    )
    if nodes:
        num_rounds = counted(document["node_rounds"], "round")
        lines += ["", f"The slowest of {num_rounds}, from the moment at which Ray lists the node as"]
        lines += ["lost or alive.", ""]
        body = [[WORDS[row["what"]], _shown(row["ray_s"]), _shown(row["allowed_s"]), row["reached"]] for row in nodes]
        lines += markdown_table(["what", "Ray, s", "allowed, s", "reached"], body)
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}" if abs(value) < 0.1 else f"{value:.2f}"


def draw(document: Document, path: Path) -> None:
    rows = [row for row in document["rows"] if row["allowed_s"] is not None and row["what"] != "step"]
    costs = []
    for row in rows:
        measured_s = row["ray_s"] if row["more_s"] is None else row["more_s"]
        text = f"{measured_s:.2f} s" if row["more_s"] is None else f"{measured_s:.2f} s more"
        costs.append((WORDS[row["what"]], max(measured_s, 0.0), row["allowed_s"], text))
    draw_costs("What the Ray engine costs, and how fast nodes are replaced", costs, document, path)


if __name__ == "__main__":
    main()
