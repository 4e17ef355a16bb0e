"""`weft up`, `down`, `wait`, `cancel`, and `doctor`: exit codes that scripts rely on, and a controller that is gone."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.fake_controller import FakeController, served

from weft.cli import load
from weft.cli.verb import Verb
from weft.client import Client
from weft.control.state import JobState
from weft.daemon.home import Home
from weft.daemon.options import ControllerOptions


# Frozen: scripts test for these numbers.
@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([JobState.COMPLETED], 0),
        ([JobState.COMPLETED, JobState.FAILED], 5),
        ([JobState.CANCELLED, JobState.FAILED], 5),
        ([JobState.CANCELLED, JobState.COMPLETED], 6),
        ([JobState.RUNNING, JobState.COMPLETED], 7),
        ([JobState.RUNNING, JobState.CANCELLED], 7),
        ([JobState.PENDING, JobState.FAILED], 5),
    ],
)
def test_the_exit_code_of_wait_reflects_the_outcome_of_the_jobs(
    states: list[JobState], code: int, weft: Any, home: Home, controller: FakeController
) -> None:
    ids = [controller.add(state=state).id for state in states]
    shown = weft("wait", "--timeout-s", "0", "--json", *ids)
    assert shown.code == code
    assert [row["state"] for row in shown.json()["jobs"]] == [state.value for state in states]


def test_exit_codes_do_not_change(weft: Any, home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert weft("status").code == 0
    assert weft("no-such-verb").code == 2
    assert weft("status", "--no-such-option").code == 2
    assert weft("logs", "k3v9x2qa").code == 2
    assert weft("wait", "k3v9x2qa").code == 2
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "nobody"))
    for args in (["status"], ["wait", "k3v9x2qa"], ["submit", "--", "true"], ["nodes"], ["down", "--jobs"]):
        assert weft(*args).code == 4, args


def test_without_a_controller_the_message_says_how_to_start_one(
    weft: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "nobody"))
    shown = weft("status")
    assert shown.err.startswith("weft: ")
    assert f"{tmp_path}/nobody/run/api.sock" in shown.err
    assert "start one with `weft up`" in shown.err
    assert shown.err.count("\n") == 1
    left = weft("down")
    assert (left.code, left.out) == (0, "")
    assert "nothing to do" in left.err


def test_a_lost_connection_is_reported_as_a_lost_controller(weft: Any, home: Home) -> None:
    home.api_socket.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as nobody:
        nobody.bind(str(home.api_socket))
        shown = weft("status")
    assert shown.code == 4
    assert "start one with `weft up`" in shown.err


def test_a_wrong_token_gives_no_traceback(weft: Any, home: Home) -> None:
    home.token_file.write_text("something else")
    shown = weft("status")
    assert shown.code == 1
    assert "no valid token" in shown.err
    assert "something else" not in shown.err


def test_cancel_stops_all_or_none(weft: Any, home: Home, controller: FakeController) -> None:
    job = controller.add()
    assert weft("cancel", job.id, "k3v9x2qa").code == 2
    assert controller.by_id[job.id].state is JobState.PENDING
    assert weft("cancel", job.id).out == f"{job.id} CANCELLED\n"
    assert weft("cancel", job.id, "--json").json()["jobs"][0]["state"] == "CANCELLED"


def test_down_tells_the_controller_whether_to_stop_jobs(
    weft: Any, home: Home, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        monkeypatch.setattr(Home, "holder", lambda self: process.pid)
        assert weft("down", "--jobs", "--timeout-s", "0").code == 1
        process.kill()
    assert controller.went_down == [True]


def test_doctor_finds_a_home_that_is_open_to_others(weft: Any, home: Home) -> None:
    healthy = weft("doctor", "--json")
    checks = {row["check"]: row for row in healthy.json()["checks"]}
    assert {"python", "torch", "devices", "home", "controller", "disk", "limits", "clock"} <= set(checks)
    assert checks["controller"]["level"] == "ok"
    assert f"process {os.getpid()}" in checks["controller"]["found"]
    home.root.chmod(0o755)
    shown = weft("doctor")
    assert shown.code == 3
    assert "chmod 700" in shown.out


def test_doctor_finds_a_home_that_cannot_be_created(weft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "file" / "home"))
    shown = weft("doctor", "--json")
    (home,) = [row for row in shown.json()["checks"] if row["check"] == "home"]
    assert (shown.code, home["level"]) == (3, "bad")
    assert f"{tmp_path}/file is not a folder" in home["found"]


def test_up_starts_the_controller_with_every_option_it_was_given() -> None:
    up = load("up")
    assert isinstance(up, Verb)
    args = ["--policy", "fifo", "--keep", "30d", "--no-share", "--hold-s", "2.5", "--devices", "3", "--port", "0"]
    options = up.parse([*args, "--quota", "ana=4,bo=2"], "weft up")["options"]
    assert options == ControllerOptions(
        policy="fifo", keep="30d", no_share=True, hold_s=2.5, devices=3, port=0, quota="ana=4,bo=2"
    )
    words = options.command()
    again = up.parse(words[words.index("up") + 1 :], "weft up")
    assert (again["options"], again["foreground"]) == (options, True)


@pytest.mark.parametrize("quota", ["", "ana", "ana=", "=3", "ana=-1", "ana=x", "ana=2,ana=3", "ana=2,"])
def test_a_quota_that_limits_nobody_is_refused_before_anything_starts(weft: Any, quota: str) -> None:
    shown = weft("up", "--quota", quota)
    assert shown.code == 2
    assert "expected each user once, with a number: --quota ana=4,bo=2" in shown.err


def test_wait_survives_a_controller_restart(tmp_path: Path) -> None:
    controller = FakeController()
    job = controller.add(state=JobState.RUNNING)
    client = Client(tmp_path)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(client.wait([job.id])))
    with served(controller, tmp_path):
        waiting.start()
        # Once it knows that the job runs, it is waiting, not making its first request.
        while len(controller.asked) < 3:
            client.health()
    controller.by_id[job.id] = dataclasses.replace(job, state=JobState.COMPLETED)
    with served(controller, tmp_path):
        waiting.join()
    assert [row["state"] for row in found] == ["COMPLETED"]


def test_wait_handles_more_jobs_than_fit_in_one_request(tmp_path: Path) -> None:
    controller = FakeController()
    ids = [controller.add(state=JobState.COMPLETED).id for _ in range(1200)]
    with served(controller, tmp_path):
        assert [row["id"] for row in Client(tmp_path).wait(ids)] == ids
