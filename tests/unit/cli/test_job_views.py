"""`weft status`, `logs`, `explain`, `nodes`, `trace`, and `top`: for people and, with `--json`, for scripts."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.fake_controller import FakeController

from weft.cli.top import screen
from weft.client import Client
from weft.control.state import JobState
from weft.daemon.contract import Decision
from weft.daemon.home import Home

STATUS_FIELDS = [
    "id",
    "name",
    "state",
    "workers",
    "min_workers",
    "max_workers",
    "step",
    "total_steps",
    "attempt",
    "restarts",
    "submitted_s",
    "started_s",
    "finished_s",
    "waited_s",
    "ran_s",
    "queue_position",
    "expected_start_s",
    "reason",
    "reason_code",
]


def test_status_has_the_fields_that_scripts_rely_on(weft: Any, home: Home, controller: FakeController) -> None:
    job = controller.add(state=JobState.RUNNING, devices=(0, 1), step=5, total_steps=10, attempt=2, num_restarts=1)
    (row,) = weft("status", "--json").json()["jobs"]
    assert list(row) == STATUS_FIELDS
    assert (row["id"], row["state"], row["workers"], row["restarts"]) == (job.id, "RUNNING", 2, 1)
    shown = weft("status").out
    assert job.id in shown
    assert "2 of 1-4" in shown
    assert "5/10" in shown


def test_status_selects_jobs_by_id_or_only_unfinished_ones(weft: Any, home: Home, controller: FakeController) -> None:
    first, second = controller.add(), controller.add(state=JobState.COMPLETED, finished_s=3.0)
    assert [row["id"] for row in weft("status", "--json", "--active").json()["jobs"]] == [first.id]
    assert [row["id"] for row in weft("status", "--json", second.id).json()["jobs"]] == [second.id]
    missing = weft("status", second.id[:-1] + ("1" if second.id.endswith("0") else "0"))
    assert missing.code == 2
    assert f"did you mean '{second.id}'" in missing.err


def test_status_with_no_job_says_what_to_do(weft: Any, home: Home) -> None:
    assert "weft submit" in weft("status").out
    assert weft("status", "--json").json() == {"jobs": []}


def test_a_thousand_jobs_are_a_thousand_lines(weft: Any, home: Home, controller: FakeController) -> None:
    for _ in range(1000):
        controller.add()
    assert weft("status").out.count("\n") == 1001


def test_logs_are_shown_exactly_as_written(weft: Any, home: Home, controller: FakeController) -> None:
    job = controller.add(state=JobState.COMPLETED, attempt=2, started_s=1.0)
    controller.output = {
        (job.id, 1, "out"): b"first\n",
        (job.id, 1, "err"): b"",
        (job.id, 2, "out"): b"second \xff line\nno end",
        (job.id, 2, "err"): b"oops\n",
    }
    shown = weft("logs", job.id, "--stream", "err")
    assert (shown.out, shown.err) == ("", "oops\n")
    assert weft("logs", job.id, "-a", "1").out == "first\n"
    rows = [json.loads(line) for line in weft("logs", job.id, "--json").out.splitlines()]
    assert [(row["stream"], row["text"]) for row in rows] == [
        ("out", "second \ufffd line"),
        ("out", "no end"),
        ("err", "oops"),
    ]
    followed = weft("logs", job.id, "-f")
    assert followed.out.endswith("no end")
    assert followed.err == "oops\n"
    assert weft("logs", job.id, "-a", "9").code == 2
    assert weft("logs", job.id, "--stream", "x").code == 2


@pytest.mark.parametrize("verb", ["status", "nodes"])
def test_a_node_that_is_left_out_is_named_where_users_look_for_it(
    weft: Any, home: Home, controller: FakeController, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(controller, "warnings", lambda: ["node b has no weft: install it"])
    assert weft(verb).err == "node b has no weft: install it\n"


def test_explain_nodes_and_trace_print_text_and_json(
    weft: Any, home: Home, controller: FakeController, tmp_path: Path
) -> None:
    job = controller.add(state=JobState.RUNNING, devices=(0, 1), submitted_s=0.0)
    controller.made_decisions = [Decision(2.0, {job.id: (0, 1)}, {job.id: "two are free"}), Decision(6.0, {}, {})]
    assert weft("explain", job.id).out.splitlines()[-1].endswith("has 2 of 4 devices")
    assert weft("explain", job.id, "--json").json()["sentences"][0]["sentence"] == "submitted"
    assert f"here/0   {job.id}" in weft("nodes").out
    assert weft("nodes", "--json").json()["nodes"][1]["up"] is False
    stays = weft("trace", job.id, "--json", "--out", str(tmp_path / "t.json")).json()["stays"]
    assert [(stay["start_s"], stay["workers"]) for stay in stays] == [(0.0, 0), (2.0, 2), (6.0, 0)]
    assert stays[1]["reason"] == "two are free"
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "two are free" in weft("trace", job.id).out


def test_trace_does_not_say_that_a_job_waited_while_it_ran_under_an_earlier_controller(
    weft: Any, home: Home, controller: FakeController
) -> None:
    job = controller.add(state=JobState.RUNNING, devices=(0, 1), submitted_s=0.0, started_s=0.0)
    assert weft("trace", job.id, "--json").json()["stays"] == []
    controller.made_decisions = [Decision(50.0, {job.id: (0, 1)}, {job.id: "two are free"})]
    assert [stay["start_s"] for stay in weft("trace", job.id, "--json").json()["stays"]] == [50.0]
    assert "no longer knows" in weft("trace", job.id).err


def test_top_shows_devices_and_jobs(weft: Any, home: Home, controller: FakeController) -> None:
    job = controller.add(
        state=JobState.RUNNING, devices=(0,), step=5, total_steps=10, step_s=0.2, exposed_s=0.1, loss=float("nan")
    )
    shown = weft("top", "--once").out
    assert "devices 1/2 busy" in shown
    assert "there is down" in shown
    assert "████████░░░░░░░░" in shown
    assert "50 %" in shown
    assert weft("top", "--json").json()["jobs"][0]["id"] == job.id
    assert weft("top").code == 2


def test_top_shows_whole_ids_and_the_reason_in_80_columns(home: Home, controller: FakeController) -> None:
    job = controller.add(
        name="a long name of a job",
        state=JobState.RUNNING,
        devices=(0,),
        step=123456,
        total_steps=10**7,
        step_s=0.0123,
        reason="1 worker, chosen by policy balanced",
        reason_code="PolicyChoice",
    )
    client = Client(home.root)
    for width, reason in ((80, "PolicyChoice"), (200, "chosen by policy balanced")):
        console = Console(width=width, file=StringIO())
        console.print(screen(client.health(), client.nodes(), client.overview(5), 0.0, width))
        assert isinstance(console.file, StringIO)
        [line] = [line for line in console.file.getvalue().splitlines() if line.startswith(job.id)]
        assert reason in line
        assert "0.0123" in line


def test_top_shows_the_jobs_that_fit_and_counts_the_rest(
    weft: Any, home: Home, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "30")
    waiting = [controller.add() for _ in range(100)]
    running = controller.add(state=JobState.RUNNING, devices=(0,))
    over = [controller.add(state=JobState.COMPLETED, finished_s=float(number)) for number in range(3)]
    shown = weft("top", "--once").out
    assert running.id in shown
    assert waiting[0].id in shown
    assert waiting[-1].id not in shown
    assert over[-1].id not in shown
    assert "3 completed, 100 pending, 1 running" in shown
    assert "77 more unfinished: `weft status`" in shown
    monkeypatch.setenv("LINES", "200")
    shown = weft("top", "--once").out
    assert all(job.id in shown for job in [*waiting, running, *over])
