"""On a terminal of 80 columns, no command prints a line that the terminal would have to break."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fake_controller import FakeController, served

from weft.cli import VERBS, load, main, overview, up
from weft.cli.demo import _print as print_demo
from weft.cli.down import _print as print_down
from weft.cli.verb import Group
from weft.control.queue_order import QueuePlace
from weft.control.state import JobState
from weft.core.chrome_trace import Span, write_chrome_trace
from weft.core.status_rows import OutlookRow, PlanRow, PurgeRow, WhatifRow
from weft.daemon.contract import Decision, NodeStatus, NodeView, Sentence
from weft.daemon.home import Record
from weft.demo.contest import Completion, Played

WIDTH = 80
NAME = "resnet50-imagenet-ablation-3-of-12-with-a-cosine-schedule"
REASON = (
    "running at 2 workers first; 4 in about 10 s; number 12 in the queue, expected to start in about 240 s if running "
    "jobs keep their devices until they end"
)
NODE = "gpu-worker-17.cluster.example"
# Their text is not weft's own, or has tests of its own.
OTHERS = {"logs": "a job's output", "run": "a script's output", "bench": "tables of a benchmark", "man": "roff"}
OTHERS |= {"completion": "a script for the shell", "demo": "takes a minute; its result is checked"}


class Terminal(io.StringIO):
    """What a command prints, as on a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue()).splitlines()


class BusyController(FakeController):
    """Long names, full ids, and everything a user can be told."""

    def nodes(self) -> list[NodeView]:
        held = tuple(self.by_id)[:2]
        return [NodeView(n, NODE, NodeStatus.UP, {2 * n: held, 2 * n + 1: ()}, kind="A100-80G") for n in range(2)]

    def explain(self, job_id: str) -> list[Sentence]:
        return [Sentence(5.0, f"submitted; {REASON}"), Sentence(time.time(), REASON)]

    def outlook(self, submission: Any) -> OutlookRow:
        return {"workers": 1, "reason": REASON, "reason_code": "Exploring"}

    def warnings(self) -> list[str]:
        return [f"the disk of /home/ana/.weft is almost full: {REASON}"]

    def purge(self, older_than_s: float, *, dry_run: bool = False) -> PurgeRow:
        problem = f"the folder of job {next(iter(self.by_id))} is in use: {REASON}"
        return {"jobs": list(self.by_id), "freed_bytes": 12345, "problems": [problem]}

    def whatif(self, question: Any) -> WhatifRow:
        sizes = [[float(n), float(1 + n % 2)] for n in range(40)]
        plan: PlanRow = {
            "policy": "shortest-remaining",
            "devices": 128,
            "mean_jct_s": 123456.0,
            "makespan_s": 234567.0,
            "jobs": [
                {"id": one, "name": NAME, "start_s": 0.0, "end_s": 123456.0, "workers": sizes} for one in self.by_id
            ],
        }
        return {"plan": plan, "whatif": plan, "assumptions": [f"The length of {NAME}, {NAME} is unknown: {REASON}."]}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """As short as the home of a user: the folder of a test is almost as long as a line."""
    with tempfile.TemporaryDirectory(prefix="weft-home-of-a-test-") as folder:
        yield Path(folder)


@pytest.fixture
def ids(short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Of the jobs of a busy controller."""
    controller = BusyController()
    times: dict[str, Any] = {"submitted_s": 0.0, "ran_s": 1e7, "step": 123_456, "total_steps": 1_000_000}
    facts = {"name": NAME, "reason": REASON, "reason_code": "UnknownLength", "attempt": 12, **times}
    for state in (JobState.RUNNING, JobState.RUNNING, JobState.PENDING):
        controller.add(state=state, devices=(0, 1) if state is JobState.RUNNING else (), step_s=0.123456, **facts)
    controller.add(state=JobState.FAILED, finished_s=1e6, **facts)
    waiting = list(controller.by_id)[2]
    controller.places = {waiting: QueuePlace(1234, 1e10, True)}
    controller.made_decisions = [Decision(5.0, {one: tuple(range(16)) for one in controller.by_id}, {waiting: REASON})]
    monkeypatch.setenv("WEFT_HOME", str(short_folder))
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(os, "get_terminal_size", lambda fd=1: os.terminal_size((WIDTH, 24)))
    monkeypatch.chdir(tmp_path)
    record = Record(4_194_304, 0.0, "", 65535, "0")
    monkeypatch.setattr(up, "_started", lambda client, options: record)
    with served(controller, short_folder):
        yield list(controller.by_id)


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    """Everything printed in the block."""
    made = Terminal()
    # Not in a fixture: between the phases of a test, pytest puts its own streams back.
    with contextlib.redirect_stdout(made), contextlib.redirect_stderr(made), contextlib.suppress(SystemExit):
        yield made


def printed(*args: str) -> list[str]:
    with terminal() as made:
        main(args)
    return made.lines()


def check_width(lines: list[str]) -> None:
    """A word that is longer than a line, such as a path or a URL, must have a line of its own."""
    assert lines
    assert [line for line in lines if len(line) > WIDTH and " " in line.strip()] == []


# ID stands for a running job.
COMMANDS = {
    "up": [["up"], ["up", "--policy", "no-such-policy"]],
    "down": [["down"], ["down", "--jobs"]],
    "nodes": [["nodes"]],
    "top": [["top", "--once"]],
    "submit": [["submit", "--dry-run", "--name", NAME, "--", "python", *(f"--option-{n}" for n in range(9))]],
    "status": [["status"], ["status", "no-such-job"]],
    "explain": [["explain", "ID"]],
    "wait": [["wait", "ID", "--timeout-s", "0"]],
    "cancel": [["cancel", "ID"]],
    "change": [["change", "ID", "--weight", "1000", "--priority", "-1000", "--workers", "100:1000"]],
    "whatif": [["whatif"], ["whatif", "--weight", "2"]],
    "checkpoint": [["checkpoint", "export", "no-such-job"]],
    "trace": [["trace", "rank0.json", "--out", "a-merged-trace-with-a-rather-long-name.json"], ["trace", "ID"]],
    "predict": [["predict", "--profile", "inception-v4", "--workers", "1024", "--link", "234.5mbit"], ["predict"]],
    "sim": [["sim", "synthetic:extreme:12", "--gpus", "8", "--policy", "balanced,fifo", "--explain", "language-0"]],
    "doctor": [["doctor"]],
    "purge": [["purge"]],
    "repair": [["repair"]],
}


def test_every_command_is_checked() -> None:
    assert COMMANDS.keys() | OTHERS.keys() == VERBS.keys()
    assert not COMMANDS.keys() & OTHERS.keys()


@pytest.mark.parametrize("words", [words for found in COMMANDS.values() for words in found], ids=" ".join)
def test_no_line_is_broken_by_the_terminal(words: list[str], ids: list[str]) -> None:
    write_chrome_trace(Path("rank0.json"), [Span("worker 1023", "compute", "forward", 0.0, 0.1, {"step": 0})])
    check_width(printed(*(ids[0] if word == "ID" else word for word in words)))


def test_a_narrow_table_keeps_what_the_user_came_for(ids: list[str]) -> None:
    assert sum(f"{ids[0]} + {ids[1]}" in line for line in printed("nodes")) == 2
    assert any("running at 2" in line for line in printed("trace", ids[2]))
    for words in (COMMANDS["predict"][0], COMMANDS["sim"][0]):
        assert not [line for line in printed(*words) if "…" in line]


def test_the_dashboard_url_has_a_line_of_its_own(ids: list[str]) -> None:
    assert "http://127.0.0.1:65535/" in printed("up")


def test_no_line_of_a_shutdown_or_a_demo_is_broken(ids: list[str]) -> None:
    row: Any = {"id": ids[0], "name": NAME}
    played = Played((Completion("small-cnn", 123.4, 1234.5, 12),) * 2)
    with terminal() as made:
        print_down("/home/ana/.weft", 4_194_304, [row] * 9, as_json=False)
        print_demo(played, played, as_json=False)
    check_width(made.lines())


@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_a_help_text_is_broken(verb: str, ids: list[str]) -> None:
    command = load(verb)
    for words in [[verb], *([verb, one] for one in command.verbs)] if isinstance(command, Group) else [[verb]]:
        check_width(printed(*words, "--help"))


def test_no_line_of_the_overview_is_broken() -> None:
    check_width(overview().splitlines())
