"""How many nodes, workers and jobs one controller can take: a real controller on simulated nodes.

    python -m benchmarks.scale [--quick] [--out FOLDER]

Every worker reports once a second; meanwhile eight clients ask for the list of jobs, about once a second each.  From
the middle (200 nodes, 2,000 workers, 250 jobs) one number grows at a time.  The time of one decision at up to 1,000
nodes and 10,000 jobs is the simulator's, which makes the same decisions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.controller_costs import cpu_s, decisions, metric
from benchmarks.figures import Document, finish
from benchmarks.program import parse, say
from benchmarks.record import markdown_table
from benchmarks.scale_figure import draw
from weft.client import Client
from weft.core.cluster import Cluster
from weft.core.events import JobSubmitted
from weft.core.job import JobSpec, Launch
from weft.core.speed import StepTime
from weft.daemon.home import Home
from weft.elastic.registry import policy_named
from weft.errors import WeftError
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import TableProfile, TrueJob, Workload
from weft.store import Journal

WORKERS_PER_JOB = 8
NUM_CLIENTS = 8
ASK_EVERY_S = 1.0
MEASURED_S = 16.0
"""With fewer requests, the 99th percentile would be the slowest one."""
STARTS_WITHIN_S = 240.0
MAX_CORES, MAX_P99_S, MAX_LOST = 1.0, 0.5, 0.01
"""More than this is too much: cores, seconds for a list of jobs, share of reports that did not arrive."""


@dataclass(frozen=True, slots=True)
class Load:
    """One size of cluster and queue; jobs that find no devices wait."""

    num_nodes: int
    num_workers: int
    num_jobs: int

    @property
    def devices_per_node(self) -> int:
        return self.num_workers // self.num_nodes


MIDDLE = Load(200, 2_000, 250)
SWEEPS = {
    "workers": (MIDDLE, Load(200, 4_000, 500), Load(200, 8_000, 1_000)),
    "nodes": (Load(50, 2_000, 250), MIDDLE, Load(1_000, 2_000, 250)),
    "jobs": (MIDDLE, Load(200, 2_000, 1_000), Load(200, 2_000, 10_000)),
}
QUICK = (Load(5, 40, 10),)
DECISIONS = ((100, 100), (100, 1_000), (1_000, 1_000), (1_000, 10_000))
QUICK_DECISIONS = ((10, 20),)


def measured(load: Load, seconds: float) -> dict[str, Any]:
    """CPU time of the controller, waiting times of its clients, and what became of the reports."""
    with controller_on(load) as (client, process, counts):
        num_running = min(load.num_jobs, load.num_workers // WORKERS_PER_JOB)
        _wait_until_running(client, num_running)
        time.sleep(2.0)  # the first reports of all lead to decisions
        before, arrived, decided = json.loads(counts.read_text()), _reports(client), decisions(client)
        used_before_s, began_s = cpu_s(process), time.monotonic()
        waits = _ask_all_the_time(client, seconds)
        took_s, used_s = time.monotonic() - began_s, cpu_s(process) - used_before_s
        after, arrived = json.loads(counts.read_text()), _reports(client) - arrived
        decided_s, num_decided = (now - was for now, was in zip(decisions(client), decided, strict=True))
        sent = after["sent"] - before["sent"]
        lost = (after["missed"] - before["missed"]) / max(sent, 1)
        row = {
            "reports_per_s": round(arrived / took_s),
            "cores": round(used_s / took_s, 3),
            "p50_s": round(_quantile(waits, 0.5), 4),
            "p99_s": round(_quantile(waits, 0.99), 4),
            "num_requests": len(waits),
            "lost_reports": round(lost, 4),
            "decisions": int(num_decided),
            "decision_s": round(decided_s / num_decided, 4) if num_decided else None,
            "memory_mb": round(process.memory_info().rss / 1e6),
        }
    return {**asdict(load), **row, "holds": _holds(row)}


def _holds(row: dict[str, Any]) -> bool:
    return bool(row["cores"] <= MAX_CORES and row["p99_s"] <= MAX_P99_S and row["lost_reports"] <= MAX_LOST)


@contextlib.contextmanager
def controller_on(load: Load) -> Iterator[tuple[Client, psutil.Process, Path]]:
    """A controller whose queue is in its journal already; gone after the block."""
    home = Home(Path(tempfile.mkdtemp(prefix="weft-scale-")))
    counts = home.root / "counts.json"
    try:
        home.prepare()
        with Journal(home.journal_file) as journal:
            journal.append(_queue(load.num_jobs))
        words = [str(load.num_nodes), str(load.devices_per_node), str(counts)]
        paths = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "WEFT_HOME": str(home.root), "PYTHONPATH": os.pathsep.join(paths)}
        with (home.root / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.scale_controller", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield Client(home.root, timeout_s=60.0), psutil.Process(process.pid), counts
        except WeftError as error:
            raise WeftError(f"{error}\n{(home.root / 'log').read_text()[-2000:]}") from error
        finally:
            process.terminate()
            process.wait()
    finally:
        shutil.rmtree(home.root, ignore_errors=True)


def _queue(num_jobs: int) -> list[JobSubmitted]:
    launch = Launch(("simulated",), "/")
    return [
        JobSubmitted(float(number), JobSpec(f"job{number:05}", float(number), *(WORKERS_PER_JOB,) * 3), launch=launch)
        for number in range(num_jobs)
    ]


def _wait_until_running(client: Client, num_running: int) -> None:
    latest_s = time.monotonic() + STARTS_WITHIN_S
    while True:
        found = -1
        with contextlib.suppress(WeftError):
            found = sum(row["state"] == "RUNNING" and (row["step"] or 0) > 0 for row in client.jobs())
        if found >= num_running:
            return
        if time.monotonic() > latest_s:
            raise WeftError(f"{found} of {num_running} jobs took a step within {STARTS_WITHIN_S:g} s")
        time.sleep(0.5)


def _ask_all_the_time(client: Client, seconds: float) -> list[float]:
    """How long each client waited each time."""
    waits: list[float] = []
    latest_s = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < latest_s:
            began_s = time.perf_counter()
            client._read("GET", "/v1/jobs")
            waits.append(time.perf_counter() - began_s)
            time.sleep(ASK_EVERY_S)

    threads = [threading.Thread(target=ask) for _ in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waits


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _reports(client: Client) -> float:
    return metric(client.metrics(), "weft_reports_total")


def decision(num_nodes: int, num_jobs: int) -> dict[str, Any]:
    """All jobs arrive at once and are decided on hour by hour, eight devices a node."""
    profile = TableProfile({size: StepTime(1.0 / size + 0.02) for size in (1, 2, 4, 8)})
    jobs = tuple(
        TrueJob(JobSpec(f"job{number:05}", 0.0, 1, 8, 8), profile, 3600.0 * (1 + number % 4))
        for number in range(num_jobs)
    )
    options = SimulationOptions(decision_interval_s=3600.0, record=False)
    result = simulate(Workload("at once", jobs), Cluster((8,) * num_nodes), policy_named("balanced"), options)
    return {
        "num_nodes": num_nodes,
        "num_jobs": num_jobs,
        "decisions": len(result.decision_s),
        "mean_s": round(sum(result.decision_s) / len(result.decision_s), 4),
        "max_s": round(max(result.decision_s), 4),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="how many nodes, workers and jobs one controller can take")
    options, folder = parse(parser, argv, quick="one small cluster")
    loads = QUICK if options.quick else tuple(dict.fromkeys(load for sweep in SWEEPS.values() for load in sweep))
    rows = []
    for load in loads:
        say(f"{load.num_nodes} nodes, {load.num_workers} workers, {load.num_jobs} jobs")
        rows.append(measured(load, 2.0 if options.quick else MEASURED_S))
        say(json.dumps(rows[-1]))
    say("decisions")
    simulated = [decision(*size) for size in (QUICK_DECISIONS if options.quick else DECISIONS)]
    document = {"decisions": simulated, "rows": rows}
    finish("scale", "python -m benchmarks.scale", document, tables, draw, folder)


def tables(document: Document) -> str:
    """The load test, then decisions."""
    heads = ["nodes", "workers", "jobs", "reports/s", "lost", "cores", "status p50, ms", "status p99, ms"]
    body = [
        [
            row["num_nodes"],
            row["num_workers"],
            row["num_jobs"],
            row["reports_per_s"],
            f"{100 * row['lost_reports']:.1f} %",
            row["cores"],
            round(1e3 * row["p50_s"]),
            round(1e3 * row["p99_s"]),
            "-" if row["decision_s"] is None else round(1e3 * row["decision_s"]),
            row["memory_mb"],
            "yes" if row["holds"] else "no",
        ]
        for row in document["rows"]
    ]
    limits = f"at most {MAX_CORES:g} core, p99 {1e3 * MAX_P99_S:g} ms, {100 * MAX_LOST:g} % of the reports lost"
    lines = markdown_table([*heads, "decision, ms", "MB", "within limits"], body)
    heads = ["nodes", "jobs", "decisions", "mean, ms", "longest, ms"]
    simulated = [
        [row["num_nodes"], row["num_jobs"], row["decisions"], round(1e3 * row["mean_s"]), round(1e3 * row["max_s"])]
        for row in document["decisions"]
    ]
    return "\n".join([f"Limits: {limits}.", "", *lines, "", *markdown_table(heads, simulated)])


if __name__ == "__main__":
    main()
