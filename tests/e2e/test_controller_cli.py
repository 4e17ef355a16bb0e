"""A whole day with the controller, as a user types it: real processes, real files, nothing left behind."""

from __future__ import annotations

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

from weft.client import Client
from weft.daemon.home import Home

TIMEOUT_S = 60
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

    def run(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "weft", *args],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
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
        """Told by the job itself; read as it comes."""
        text = b""
        for data in self.client.logs(job_id, follow=True):
            text += data
            if text.endswith(b"\n"):
                break
        assert text.startswith(b"pids ")
        return [int(pid) for pid in text.split()[1:]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    if made.home.holder():
        made.run("down", "--jobs")
    left = made.home.holder()
    if left:
        os.kill(left, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    """Gone, or only a name in the table until its new parent has looked."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def test_submit_wait_logs_and_status_of_a_job(cluster: Cluster) -> None:
    up = cluster.up()
    assert up["url"].startswith("http://127.0.0.1:")
    (cluster.root / "echo.py").write_text(ECHO)
    job_id = cluster.ok("submit", "--name", "first", "--", sys.executable, "echo.py", "one").strip()
    assert cluster.run("wait", job_id).returncode == 0
    assert json.loads(cluster.ok("logs", job_id, "--stream", "out"))["argv"] == ["one"]
    (row,) = cluster.json("status")["jobs"]
    assert (row["id"], row["name"], row["state"], row["attempt"]) == (job_id, "first", "COMPLETED", 1)
    assert any("completed" in line for line in cluster.ok("explain", job_id).splitlines())
    failing = cluster.ok("submit", "--", sys.executable, "-c", "raise SystemExit(9)").strip()
    assert cluster.run("wait", failing).returncode == 5
    assert "is down" in cluster.ok("down")
    assert cluster.run("status").returncode == 4


def test_a_second_up_says_who_has_the_home_and_harms_nothing(cluster: Cluster) -> None:
    pid = cluster.up()["pid"]
    second = cluster.run("up", "--port", "0")
    assert second.returncode == 1
    assert str(pid) in second.stderr
    assert "weft down" in second.stderr
    assert cluster.client.health()["pid"] == pid


@pytest.mark.parametrize("args", [["--policy", "balancd"], ["--devices", "0"], ["--engine", "steam"]])
def test_up_with_a_wrong_option_says_so_at_once(cluster: Cluster, args: list[str]) -> None:
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
    assert f"{first} CANCELLED" in cluster.ok("cancel", "--wait", first)
    assert all(map(is_gone, workers[first]))
    assert not any(map(is_gone, workers[second]))
    cluster.ok("down", "--jobs")
    assert all(map(is_gone, workers[second]))


def test_jobs_outlive_the_controller_and_are_found_again(cluster: Cluster) -> None:
    cluster.up()
    (cluster.root / "sleeper.py").write_text(SLEEPER)
    job_id = cluster.ok("submit", "--", sys.executable, "sleeper.py").strip()
    pids = cluster.pids_of_workers(job_id)
    cluster.ok("down")
    assert not any(map(is_gone, pids))
    cluster.up()
    (row,) = cluster.json("status")["jobs"]
    assert (row["state"], row["attempt"]) == ("RUNNING", 1)
    cluster.ok("cancel", "--wait", job_id)
    assert all(map(is_gone, pids))


def test_hostile_names_paths_and_words_reach_the_job_as_they_are(cluster: Cluster) -> None:
    cluster.up()
    folder = cluster.root / HOSTILE.replace("/", "")
    folder.mkdir()
    (folder / f"{HOSTILE}.py").write_text(ECHO)
    submit = ["submit", "--name", HOSTILE, "--env", f"X={HOSTILE}", "--", sys.executable, f"{HOSTILE}.py", HOSTILE, ""]
    job_id = cluster.ok(*submit, cwd=folder).strip()
    assert cluster.run("wait", job_id).returncode == 0, cluster.ok("logs", job_id)
    said = json.loads(cluster.ok("logs", job_id, "--stream", "out"))
    assert said == {"argv": [HOSTILE, ""], "cwd": str(folder), "x": HOSTILE, "rank": "0"}
    assert cluster.json("status")["jobs"][0]["name"] == HOSTILE
    for verb in (["status"], ["explain", job_id], ["top", "--once"], ["trace", job_id]):
        assert all(c.isprintable() or c == "\n" for c in cluster.ok(*verb))
    assert not list(cluster.root.rglob("pwned"))


def test_the_token_is_in_its_file_and_nowhere_else(cluster: Cluster) -> None:
    pid = cluster.up()["pid"]
    token = cluster.home.token_file.read_bytes().strip()
    (cluster.root / "sleeper.py").write_text(SLEEPER)
    job_id = cluster.ok("submit", "--", sys.executable, "sleeper.py").strip()
    cluster.run("logs", "no-such-job")
    for process in (pid, *cluster.pids_of_workers(job_id)):
        assert token not in Path(f"/proc/{process}/cmdline").read_bytes()
        assert token not in Path(f"/proc/{process}/environ").read_bytes()
    cluster.ok("cancel", "--wait", job_id)
    cluster.ok("down")
    holders = [path for path in cluster.root.rglob("*") if path.is_file() and token in path.read_bytes()]
    assert holders == [cluster.home.token_file]
    assert stat.S_IMODE(cluster.home.token_file.stat().st_mode) == 0o600


def test_the_socket_is_for_its_owner_and_the_port_for_this_machine(cluster: Cluster) -> None:
    up = cluster.up()
    assert stat.S_IMODE(Path(up["socket"]).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(up["socket"]).parent.stat().st_mode) == 0o700
    port = int(up["url"].rpartition(":")[2])
    with Path(f"/proc/{up['pid']}/net/tcp").open() as table:
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_completion_in_bash_offers_ids(cluster: Cluster) -> None:
    script = cluster.ok("completion", "bash")
    program = f'{script}\nweft() {{ {sys.executable} -m weft "$@"; }}\nCOMP_WORDS=(weft sta); COMP_CWORD=1\n'
    program += '_weft weft sta weft; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, env=cluster.environment, check=False
    )
    assert done.stdout.strip() == "status"
