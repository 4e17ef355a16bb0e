"""The controller from the command line, as users type it: real processes, real files, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hang_limit import HANG_S

from weft.client import Client
from weft.daemon.home import Home

HOSTILE = 'a\'; echo "foo" $(touch pwned) `id`\n\u202eé [red]'
ECHO = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "x": os.environ.get("X"), "rank": os.environ["RANK"]}))
print("to stderr", file=sys.stderr)
"""
SLEEPER = """
import os, signal, subprocess
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("pids", os.getpid(), child.pid, flush=True)
while True:
    signal.pause()
"""


class Cluster:
    """A home with a controller, and the command line to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = Home(root / "home")
        self.environment = {
            **os.environ,
            "WEFT_HOME": str(self.home.root),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
        }
        self.client = Client(self.home.root)
        self.address: Any = None
        """Output of `weft up --json`."""

    def run(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "weft", *args],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            env=self.environment,
            cwd=cwd or self.root,
            check=False,
        )

    def ok(self, *args: str, cwd: Path | None = None) -> str:
        done = self.run(*args, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))

    def up(self, *args: str) -> Any:
        return self.json("up", "--port", "0", "--devices", "2", "--cold", "--grace-s", "5", *args)

    def pids_of_workers(self, job_id: str) -> list[int]:
        """Printed by the job, read from its log."""
        text = b""
        for data in self.client.logs(job_id, follow=True):
            text += data
            if text.endswith(b"\n"):
                break
        assert text.startswith(b"pids ")
        return [int(pid) for pid in text.split()[1:]]


@contextlib.contextmanager
def cleaned_up(root: Path) -> Iterator[Cluster]:
    made = Cluster(root)
    yield made
    if made.home.holder():
        made.run("down", "--jobs")
    left = made.home.holder()
    if left:
        os.kill(left, signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A home used only by this test, nothing started."""
    with cleaned_up(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One controller for all tests that leave it unchanged."""
    with cleaned_up(tmp_path_factory.mktemp("cluster")) as made:
        made.address = made.up()
        yield made


def is_gone(pid: int) -> bool:
    """Gone, or a zombie that its new parent has not reaped yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def test_submit_wait_logs_and_status_of_a_job(running: Cluster) -> None:
    (running.root / "echo.py").write_text(ECHO)
    job_id = running.ok("submit", "--name", "first", "--", sys.executable, "echo.py", "one").strip()
    assert running.run("wait", job_id).returncode == 0
    assert json.loads(running.ok("logs", job_id, "--stream", "out"))["argv"] == ["one"]
    (row,) = running.json("status", job_id)["jobs"]
    assert (row["id"], row["name"], row["state"], row["attempt"]) == (job_id, "first", "COMPLETED", 1)
    assert any("completed" in line for line in running.ok("explain", job_id).splitlines())


def test_a_job_that_fails_says_so_in_the_exit_code_of_wait(running: Cluster) -> None:
    job_id = running.ok("submit", "--", sys.executable, "-c", "raise SystemExit(9)").strip()
    waited = running.run("wait", job_id)
    assert waited.returncode == 5
    assert f"{job_id} FAILED" in waited.stderr


def test_a_job_file_is_submitted_from_its_own_folder(running: Cluster) -> None:
    folder = running.root / "experiment"
    folder.mkdir()
    (folder / "echo.py").write_text(ECHO)
    file = {"name": "of-file", "command": [sys.executable, "echo.py", "0.10"], "environment": {"X": "y"}}
    (folder / "job.yaml").write_text(json.dumps(file))
    job_id = running.ok("submit", "experiment/job.yaml").strip()
    assert running.run("wait", job_id).returncode == 0
    said = json.loads(running.ok("logs", job_id, "--stream", "out"))
    assert said == {"argv": ["0.10"], "cwd": str(folder), "x": "y", "rank": "0"}


def test_a_job_too_large_for_the_cluster_is_refused_at_once(running: Cluster) -> None:
    done = running.run("submit", "--workers", "64", "--", "true")
    assert done.returncode == 2
    assert "this cluster has 2 devices" in done.stderr


def test_a_second_up_names_the_running_controller_and_does_no_harm(running: Cluster) -> None:
    pid = running.address["pid"]
    second = running.run("up", "--port", "0")
    assert second.returncode == 1
    assert str(pid) in second.stderr
    assert "weft down" in second.stderr
    assert running.client.health()["pid"] == pid


@pytest.mark.parametrize("args", [["--policy", "balancd"], ["--devices", "0"], ["--engine", "steam"]])
def test_up_rejects_a_wrong_option_immediately(cluster: Cluster, args: list[str]) -> None:
    done = cluster.run("up", "--port", "0", *args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert cluster.home.holder() is None


def test_after_cancel_and_after_down_with_jobs_no_process_is_left(cluster: Cluster) -> None:
    cluster.up()
    (cluster.root / "sleeper.py").write_text(SLEEPER)
    first, second = (cluster.ok("submit", "--", sys.executable, "sleeper.py").strip() for _ in range(2))
    workers = {job_id: cluster.pids_of_workers(job_id) for job_id in (first, second)}
    assert not any(is_gone(pid) for pids in workers.values() for pid in pids)
    third = cluster.ok("submit", "--", sys.executable, "sleeper.py").strip()
    cluster.ok("cancel", "--wait", third)
    assert "never ran" in cluster.run("logs", third).stderr
    assert f"{first} CANCELLED" in cluster.ok("cancel", "--wait", first)
    assert all(map(is_gone, workers[first]))
    assert not any(map(is_gone, workers[second]))
    assert "has shut down" in cluster.ok("down", "--jobs")
    assert all(map(is_gone, workers[second]))
    assert cluster.run("status").returncode == 4


def test_jobs_outlive_the_controller_and_are_found_by_the_next_one(cluster: Cluster) -> None:
    cluster.up()
    (cluster.root / "sleeper.py").write_text(SLEEPER)
    job_id = cluster.ok("submit", "--", sys.executable, "sleeper.py").strip()
    pids = cluster.pids_of_workers(job_id)
    said = cluster.ok("down")
    assert f"({job_id})\n" in said
    assert "1 job keeps running without it: " in said
    assert "`weft down --jobs`" in said
    assert not any(map(is_gone, pids))
    cluster.up()
    (row,) = cluster.json("status")["jobs"]
    assert (row["state"], row["attempt"]) == ("RUNNING", 1)
    cluster.ok("cancel", "--wait", job_id)
    assert all(map(is_gone, pids))


def test_hostile_names_paths_and_arguments_reach_the_job_unchanged(running: Cluster) -> None:
    folder = running.root / HOSTILE
    folder.mkdir()
    (folder / f"{HOSTILE}.py").write_text(ECHO)
    submit = ["submit", "--name", HOSTILE, "--env", f"X={HOSTILE}", "--", sys.executable, f"{HOSTILE}.py", HOSTILE, ""]
    job_id = running.ok(*submit, cwd=folder).strip()
    assert running.run("wait", job_id).returncode == 0, running.run("logs", job_id).stderr
    said = json.loads(running.ok("logs", job_id, "--stream", "out"))
    assert said == {"argv": [HOSTILE, ""], "cwd": str(folder), "x": HOSTILE, "rank": "0"}
    assert running.json("status", job_id)["jobs"][0]["name"] == HOSTILE
    for verb in (["status"], ["explain", job_id], ["top", "--once"], ["trace", job_id]):
        assert all(c.isprintable() or c == "\n" for c in running.ok(*verb))
    assert not list(running.root.rglob("pwned"))


def test_the_token_is_stored_only_in_its_file(running: Cluster) -> None:
    token = running.home.token_file.read_bytes().strip()
    (running.root / "sleeper.py").write_text(SLEEPER)
    job_id = running.ok("submit", "--", sys.executable, "sleeper.py").strip()
    assert running.run("logs", "no-such-job").returncode == 2
    for process in (running.address["pid"], *running.pids_of_workers(job_id)):
        assert token not in Path(f"/proc/{process}/cmdline").read_bytes()
        assert token not in Path(f"/proc/{process}/environ").read_bytes()
    running.ok("cancel", "--wait", job_id)
    holders = [path for path in running.root.rglob("*") if path.is_file() and token in path.read_bytes()]
    assert holders == [running.home.token_file]
    assert stat.S_IMODE(running.home.token_file.stat().st_mode) == 0o600


def test_the_socket_is_private_to_its_owner_and_the_port_to_this_machine(running: Cluster) -> None:
    socket = Path(running.address["socket"])
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    port = int(running.address["url"].rpartition(":")[2])
    with Path(f"/proc/{running.address['pid']}/net/tcp").open() as table:
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_completion_in_bash_offers_ids(cluster: Cluster) -> None:
    script = cluster.ok("completion", "bash")
    program = f'{script}\nweft() {{ {sys.executable} -m weft "$@"; }}\nCOMP_WORDS=(weft sta); COMP_CWORD=1\n'
    program += '_weft weft sta weft; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=HANG_S, env=cluster.environment, check=False
    )
    assert done.stdout.strip() == "status"
