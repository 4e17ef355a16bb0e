"""What the controller costs and how long users wait for it, on a separate controller.

    python -m benchmarks.controller_costs [--quick] [--out FOLDER]

Everything is measured from outside, on processes like those a user starts; decisions are timed by the controller itself
(`/metrics`) while one more job is submitted and cancelled next to five hundred that wait.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.figures import Document, draw_costs, finish
from benchmarks.program import parse, say
from benchmarks.record import markdown_table
from weft.client import Client
from weft.control.reducer import reduce
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import CancelRequested, Event, JobSubmitted
from weft.core.job import JobSpec, Launch
from weft.core.submission import Submission
from weft.daemon.history import History
from weft.daemon.home import Home
from weft.daemon.options import ControllerOptions
from weft.daemon.recovery import replayed
from weft.demo.contest import temporary_controller
from weft.errors import NoControllerError
from weft.store import Journal

NUM_CLIENTS = 16
NUM_DECIDED = 500
NUM_SHOWN = 1_000
NUM_RECOVERED = 10_000
NUM_STILL_WAITING = 100
EVENTS_PER_SNAPSHOT = 2_000
IDLE_S = 20.0
WEFT = (sys.executable, "-P", "-m", "weft")


@dataclass(frozen=True, slots=True)
class Cost:
    """One measured value and its limit."""

    name: str
    value: float
    unit: str
    allowed: float | None = None
    at_least: bool = False

    @property
    def row(self) -> dict[str, Any]:
        measured = float(f"{self.value:.3g}")
        if self.allowed is None:
            return {"what": self.name, "measured": measured, "unit": self.unit, "wanted": "-", "reached": "-"}
        kept = self.value >= self.allowed if self.at_least else self.value <= self.allowed
        sign = ">=" if self.at_least else "<="
        return {
            "what": self.name,
            "measured": measured,
            "unit": self.unit,
            "wanted": f"{sign} {self.allowed:g}",
            "reached": "yes" if kept else "no",
        }


def help_cost() -> Cost:
    return Cost("weft --help", _median_s(lambda: _weft("--help"), 9), "s", 0.2)


def idle_costs(client: Client) -> list[Cost]:
    """The controller without any job; the process that keeps torch warm is another one."""
    process = psutil.Process(client.health()["pid"])
    time.sleep(3.0)  # let startup finish
    before_s, began_s = cpu_s(process), time.monotonic()
    time.sleep(IDLE_S)
    used_s, took_s = cpu_s(process) - before_s, time.monotonic() - began_s
    return [
        Cost("idle controller, of a core", used_s / took_s, "", 0.01),
        Cost("idle controller, resident", process.memory_info().rss / 1e6, "MB", 150.0),
    ]


def waiting_costs(client: Client, home: Path) -> list[Cost]:
    """Submissions from several clients at once, a decision about five hundred jobs, a list of a thousand."""
    first_s = _submit(client, NUM_DECIDED)
    before = decisions(client)
    for _ in range(10):
        client.cancel(client.submit(_job()))
        time.sleep(0.3)
    seconds, number = (after - was for after, was in zip(decisions(client), before, strict=True))
    rest_s = _submit(client, NUM_SHOWN - NUM_DECIDED)
    status_s = _median_s(lambda: _weft("status", home=home), 7)
    return [
        Cost("durable submissions through REST, 16 clients", NUM_SHOWN / (first_s + rest_s), "a second", 200.0, True),
        Cost(f"decision with {NUM_DECIDED} jobs", seconds / max(number, 1), "s", 0.1),
        Cost(f"weft status with {NUM_SHOWN} jobs", status_s, "s", 0.3),
    ]


def recovery_costs() -> list[Cost]:
    """With a long history in the journal: the time to replay it, and from starting the process to its first answer."""
    home = Home(Path(tempfile.mkdtemp(prefix="weft-costs-")))
    try:
        home.prepare()
        with Journal(home.journal_file) as journal:
            _write_history(journal, _history())
        began_s = time.monotonic()
        with Journal(home.journal_file) as journal:
            assert len(replayed(journal, Cluster((2,)), History()).jobs) == NUM_RECOVERED
        replay_s, began_s = time.monotonic() - began_s, time.monotonic()
        with (home.root / "log").open("wb") as log:
            process = subprocess.Popen(
                ControllerOptions(port=0, devices=2).command("-P"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "WEFT_HOME": str(home.root)},
            )
        client = Client(home.root)
        while True:
            try:
                client.health()
                break
            except NoControllerError:
                if process.poll() is not None:
                    raise RuntimeError((home.root / "log").read_text()) from None
            time.sleep(0.01)
        took_s = time.monotonic() - began_s
        assert len(client.jobs()) == NUM_RECOVERED
        status_s = _median_s(lambda: _weft("status", home=home.root), 7)
        top_s = _median_s(lambda: _weft("top", "--once", home=home.root), 7)
        client.shutdown(stop_jobs=True)
        process.wait()
    finally:
        shutil.rmtree(home.root, ignore_errors=True)
    return [
        Cost(f"recovery of a journal with {NUM_RECOVERED} jobs", replay_s, "s", 2.0),
        Cost("the same from starting the process to its first answer", took_s, "s", 5.0),
        Cost(f"weft status with {NUM_RECOVERED} jobs", status_s, "s", 1.0),
        Cost(f"weft top --once with {NUM_RECOVERED} jobs", top_s, "s", 1.0),
    ]


def _write_history(journal: Journal, events: Sequence[Event]) -> None:
    """Write what a controller would have: regular snapshots, and almost enough events for another one."""
    state = State(Cluster((2,)))
    for start in range(0, len(events), EVENTS_PER_SNAPSHOT):
        part = events[start : start + EVENTS_PER_SNAPSHOT]
        seq = journal.append(part)
        for event in part:
            state, _ = reduce(state, event)
        if len(part) == EVENTS_PER_SNAPSHOT:
            journal.save_snapshot(seq, state)


def _history() -> list[Event]:
    """Jobs, nearly all of them finished."""
    events: list[Event] = []
    for number in range(NUM_RECOVERED):
        at_s, name = float(number), f"job{number:05}"
        events.append(JobSubmitted(at_s, JobSpec(name, at_s, 1, 1, 1), launch=_job().launch))
        if number < NUM_RECOVERED - NUM_STILL_WAITING:
            events.append(CancelRequested(at_s, name, "no longer wanted"))
    return events


def _job() -> Submission:
    return Submission(Launch(("sleep", "600"), "/"), min_workers=1, max_workers=1)


def _submit(client: Client, number: int) -> float:
    began_s = time.monotonic()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        for done in [pool.submit(client.submit, _job()) for _ in range(number)]:
            done.result()
    return time.monotonic() - began_s


def decisions(client: Client) -> tuple[float, float]:
    """Seconds spent on decisions so far, and how many there were."""
    text = client.metrics()
    return metric(text, "weft_decision_seconds_sum"), metric(text, "weft_decision_seconds_count")


def metric(text: str, name: str) -> float:
    """One value of the controller's metrics; 0 if it has none yet."""
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def cpu_s(process: psutil.Process) -> float:
    """What a process has used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _weft(*args: str, home: Path | None = None) -> None:
    environment = {} if home is None else {"WEFT_HOME": str(home)}
    subprocess.run([*WEFT, *args], env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)


def _median_s(act: Callable[[], None], times: int) -> float:
    taken = []
    for _ in range(times):
        began_s = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began_s)
    return median(taken)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what the controller costs")
    _, folder = parse(parser, argv, quick="the same; it takes two minutes anyway")
    costs = [help_cost()]
    say("an idle controller")
    with temporary_controller("balanced", num_devices=2) as client:
        costs += idle_costs(client)
        say("a thousand jobs")
        costs += waiting_costs(client, client.home.root)
        for job in client.jobs():
            if job["state"] != "CANCELLED":
                client.cancel(job["id"])
    say("recovery")
    costs += recovery_costs()
    document = {"rows": [cost.row for cost in costs]}
    finish("controller_costs", "python -m benchmarks.controller_costs", document, tables, draw, folder)


UNITS = {"s": "seconds", "": "share of a core", "MB": "megabytes", "a second": "per second"}


def tables(document: Document) -> str:
    """One table per unit."""
    lines: list[str] = []
    for unit, words in UNITS.items():
        rows = [row for row in document["rows"] if row["unit"] == unit]
        if rows:
            body = [[row["what"], row["measured"], row["wanted"], row["reached"]] for row in rows]
            lines += [*markdown_table(["what", words, "wanted", "reached"], body), ""]
    return "\n".join(lines)


def draw(document: Document, path: Path) -> None:
    """Every cost as a share of what is allowed."""
    costs = []
    for row in document["rows"]:
        sign, _, allowed = row["wanted"].partition(" ")
        measured, limit = float(row["measured"]), float(allowed)
        # For a speed, the limit is a minimum.
        used = (measured, limit) if sign == "<=" else (limit, measured)
        costs.append((row["what"], *used, f"{measured:g} {row['unit']}".strip()))
    draw_costs("What the controller costs", costs, document, path)


if __name__ == "__main__":
    main()
