"""What users and scripts run all day: each command against a controller in memory, over the real socket."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_controller import FakeController, served
from weft.cli import VERBS, load, main, overview
from weft.cli.completion import candidates, subcommands
from weft.cli.verb import Verb
from weft.client import Client
from weft.control.state import JobState
from weft.daemon.contract import Decision
from weft.daemon.home import Home
from weft.daemon.options import ControllerOptions

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


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
def home(controller: FakeController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    root = tmp_path / "home"
    monkeypatch.setenv("WEFT_HOME", str(root))
    with served(controller, root) as home:
        yield home


class Shown:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def weft(capfd: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str) -> Shown:
        code = 0
        try:
            main(list(args))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return Shown(code, out, err)

    return call


def test_status_has_the_fields_that_scripts_rely_on(weft: Any, home: Home, controller: FakeController) -> None:
    job = controller.add(state=JobState.RUNNING, devices=(0, 1), step=5, total_steps=10, attempt=2, num_restarts=1)
    (row,) = weft("status", "--json").json()["jobs"]
    assert list(row) == STATUS_FIELDS
    assert (row["id"], row["state"], row["workers"], row["restarts"]) == (job.id, "RUNNING", 2, 1)
    shown = weft("status").out
    assert job.id in shown
    assert "2 of 1-4" in shown
    assert "5/10" in shown


def test_status_of_some_jobs_and_of_those_not_over(weft: Any, home: Home, controller: FakeController) -> None:
    first, second = controller.add(), controller.add(state=JobState.COMPLETED, finished_s=3.0)
    assert [row["id"] for row in weft("status", "--json", "--active").json()["jobs"]] == [first.id]
    assert [row["id"] for row in weft("status", "--json", second.id).json()["jobs"]] == [second.id]
    missing = weft("status", second.id[:-1] + ("1" if second.id.endswith("0") else "0"))
    assert missing.code == 2
    assert f"did you mean '{second.id}'" in missing.err


def test_status_with_no_job_says_what_to_do(weft: Any, home: Home) -> None:
    assert "weft submit" in weft("status").out
    assert weft("status", "--json").json() == {"jobs": []}


def test_submit_prints_the_id_and_nothing_else(weft: Any, home: Home, controller: FakeController) -> None:
    shown = weft("submit", "--workers", "1:4", "--name", "it", "--env", "A=b=c", "--", "python", "t.py", "--json", "--")
    assert shown.code == 0
    (job,) = controller.by_id.values()
    assert shown.out == f"{job.id}\n"
    assert job.launch is not None
    assert job.launch.argv == ("python", "t.py", "--json", "--")
    assert (job.name, job.spec.min_workers, job.spec.max_workers) == ("it", 1, 4)
    assert job.launch.environment == {"A": "b=c"}
    assert job.launch.cwd == str(Path.cwd())


def test_the_command_line_wins_over_the_job_file(
    weft: Any, home: Home, controller: FakeController, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: of-file\ncommand: [python, t.py]\nworkers: 1:2\nsizes: [1, 2]\nweight: 3\n")
    job_id = weft("submit", str(file), "--workers", "4", "--json").json()["id"]
    job = controller.by_id[job_id]
    assert (job.name, job.spec.min_workers, job.spec.sizes, job.spec.weight) == ("of-file", 4, (), 3.0)
    assert job.launch is not None
    assert job.launch.cwd == str(tmp_path)


def test_a_dry_run_prints_the_outlook_and_submits_nothing(weft: Any, home: Home, controller: FakeController) -> None:
    shown = weft("submit", "--dry-run", "--workers", "2", "--", "python", "train.py")
    assert "would get now:     2 workers" in shown.out
    document = weft("submit", "--dry-run", "--json", "--", "python", "train.py").json()
    assert document["outlook"] == {"workers": 1, "reason": "the cluster is empty", "reason_code": "AsRequested"}
    assert document["job"]["command"] == ["python", "train.py"]
    assert controller.by_id == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "nothing to submit: expected `weft submit job.yaml`"),
        (["--"], "there is no command after `--`"),
        (["no-such-program"], "put `--` before a command"),
        (["none.yaml"], "none.yaml: cannot be read, no such file"),
        (["job.yaml", "--", "python"], "got both a job file (job.yaml) and a command"),
        (["--workers", "x", "--", "python"], "workers is 'x': expected a number such as 2"),
        (["--env", "A", "--", "python"], "--env A: expected NAME=VALUE"),
        (["--weight", "-1", "--", "python"], "--weight: -1 is out of range"),
        (["--cwd", "/no/such", "--", "python"], "the job's folder '/no/such' does not exist"),
    ],
)
def test_a_wrong_submission_says_what_was_expected(args: list[str], expected: str, weft: Any, home: Home) -> None:
    shown = weft("submit", *args)
    assert shown.code == 2
    assert shown.out == ""
    assert expected in shown.err


HOSTILE = [
    'say "hi"',
    "a'; echo foo",
    "$(reboot)",
    "`id`",
    "two\nlines",
    "\u202egnp.exe",
    "\x1b[2J",
    "[red]x[/red]",
    "名前",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_unchanged_in_json_and_harmless_in_a_terminal(
    name: str, weft: Any, home: Home, controller: FakeController
) -> None:
    job_id = weft("submit", "--name", name, "--", "python", name).out.strip()
    job = controller.by_id[job_id]
    assert job.launch is not None
    assert (job.name, job.launch.argv) == (name, ("python", name))
    assert weft("status", "--json").json()["jobs"][0]["name"] == name
    for verb in (["status"], ["top", "--once"], ["submit", "--dry-run", "--name", name, "--", "python", name]):
        shown = weft(*verb)
        assert shown.code == 0
        assert all(character.isprintable() or character == "\n" for character in shown.out)
        assert "\u202e" not in shown.out
    controller.cancel(job_id, reason=name)
    assert all(character.isprintable() or character == "\n" for character in weft("wait", job_id).err)


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
def test_wait_ends_with_the_fate_of_the_jobs(
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


def test_without_a_controller_the_way_to_one_is_shown(
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


def test_explain_nodes_and_trace_say_it_in_words_and_in_json(
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


def test_down_passes_on_whether_jobs_shall_stop(
    weft: Any, home: Home, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        monkeypatch.setattr(Home, "holder", lambda self: process.pid)
        assert weft("down", "--jobs", "--timeout-s", "0").code == 1
        process.kill()
    assert controller.went_down == [True]


def test_completion_offers_verbs_options_and_ids(
    weft: Any, home: Home, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cli.completion._TIMEOUT_S", 30.0)  # a busy machine offers ids too
    active, over = controller.add(), controller.add(state=JobState.FAILED)
    assert candidates(["st"]) == ["status"]
    assert candidates([]) == sorted(VERBS)
    assert candidates(["logs", ""]) == [over.id, active.id]
    assert candidates(["cancel", ""]) == [active.id]
    assert candidates(["wait", active.id, ""]) == []
    assert "--dry-run" in candidates(["submit", "--d"])
    assert candidates(["submit", "--", "--d"]) == []
    assert "overlap" in candidates(["bench", "o"])
    assert candidates(["bench", "overlap", "--q"]) == ["--quick"]
    assert weft("completion", "words", "--", "cancel", "").out == f"{active.id}\n"
    for shell in ("bash", "zsh", "fish"):
        assert "weft completion words" in weft("completion", shell).out
    assert weft("completion", "tcsh").code == 2


def test_completion_is_silent_without_a_controller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "nobody"))
    assert candidates(["logs", ""]) == []


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


def test_every_verb_is_in_the_overview_and_helps() -> None:
    shown = overview()
    assert [verb for verb in VERBS if f"\n  {verb} " not in shown] == []


GROUPS = ("bench", "checkpoint")
COMMANDS = [[verb] for verb in sorted(VERBS) if verb not in GROUPS]
COMMANDS += [[group, name] for group in GROUPS for name in subcommands(group)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_json_or_the_docs_say_why_not(command: list[str]) -> None:
    if "--json" not in candidates([*command, "--js"]):
        page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
        (exceptions,) = [line for line in page.splitlines() if "have no `--json`" in line]
        assert f"`weft {' '.join(command)}`" in exceptions


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_is_shown_with_its_default(command: list[str], weft: Any) -> None:
    shown = weft(*command, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"usage: weft {' '.join(command)} [options]")
    options = re.split(r"\n  (?=-)", shown.out.partition("\noptions:")[2])[2:]
    assert [option for option in options if "(default: " not in " ".join(option.split())] == []
    assert {flag for option in options for flag in re.findall(r"(?:^|, )(--?[a-z-]+)", option.splitlines()[0])} >= set(
        candidates([*command, "-"])
    ) - {"--help"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["statsu"], "did you mean `weft status`?"),
        (["bench", "overlab"], "did you mean 'weft bench overlap'?"),
        (["bench"], "expected one of overlap, crossover, elastic"),
        (["up", "--polcy", "fifo"], "there is no option '--polcy': did you mean '--policy'?"),
        (["sim", "q.csv", "--gpu=4"], "there is no option '--gpu': did you mean '--gpus'?"),
        (["run", "--wokers", "2", "t.py"], "there is no option '--wokers': did you mean '--workers'?"),
        (["logs", "k3v9x2qa", "--stream", "errr"], "--stream: there is no value 'errr': did you mean 'err'?"),
        (["up", "--engine", "steam"], "--engine: there is no value 'steam': expected one of local"),
        (["up", "--devices", "two"], "--devices: 'two' is not a whole number"),
        (["up", "--port", "70000"], "--port: 70000 is out of range: expected a whole number of at least 0, at most"),
        (["logs"], "required: ID"),
        (["explain", "a", "b"], "unexpected argument 'b'"),
        (["completion", "fsh"], "did you mean 'fish'?"),
    ],
)
def test_a_typo_gets_a_suggestion_or_what_was_expected(args: list[str], expected: str, weft: Any) -> None:
    shown = weft(*args)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("weft: ")
    assert shown.err.count("\n") == 1
    assert expected in shown.err


def test_everything_after_the_script_belongs_to_the_script() -> None:
    run = load("run")
    assert isinstance(run, Verb)
    values = run.parse(["--workers", "2", "train.py", "--workers", "3", "--", "-x"], "weft run")
    assert (values["workers"], values["command"]) == ("2", ["train.py", "--workers", "3", "--", "-x"])


def test_up_starts_the_controller_with_every_option_it_was_given() -> None:
    up = load("up")
    assert isinstance(up, Verb)
    args = ["--policy", "fifo", "--keep", "30d", "--no-share", "--hold-s", "2.5", "--devices", "3", "--port", "0"]
    options = up.parse(args, "weft up")["options"]
    assert options == ControllerOptions(policy="fifo", keep="30d", no_share=True, hold_s=2.5, devices=3, port=0)
    words = options.command()
    again = up.parse(words[words.index("up") + 1 :], "weft up")
    assert (again["options"], again["foreground"]) == (options, True)


def test_a_thousand_jobs_are_a_thousand_lines(weft: Any, home: Home, controller: FakeController) -> None:
    for _ in range(1000):
        controller.add()
    assert weft("status").out.count("\n") == 1001


def test_a_closed_output_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "weft", "--help"], stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


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


def test_more_jobs_than_fit_into_one_question_are_waited_for(tmp_path: Path) -> None:
    controller = FakeController()
    ids = [controller.add(state=JobState.COMPLETED).id for _ in range(1200)]
    with served(controller, tmp_path):
        assert [row["id"] for row in Client(tmp_path).wait(ids)] == ids
