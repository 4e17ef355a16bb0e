"""`weft` on the head of a test cluster, and what must be true of its jobs and of the cluster afterwards."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.hang_limit import HANG_S
from tests.ray_cluster import REPOSITORY, RayTestCluster, environment, until

from weft.client import Client
from weft.core.status_rows import FINAL_STATES
from weft.errors import WeftError

JOB = REPOSITORY / "tests" / "faults" / "session_job.py"
BATCH_SIZE = 4
"""Of that job, over all its workers."""
PATIENCE_S = HANG_S
NUM_SAMPLES = 400
_numbers = itertools.count()


class RayController:
    """`weft` on the head of a cluster; everything it keeps is in the folder that all nodes see."""

    def __init__(self, cluster: RayTestCluster) -> None:
        self.cluster = cluster
        self.folder = cluster.shared / f"c{next(_numbers)}"  # a path to a socket must be short
        self.home = self.folder / "home"
        self.folder.mkdir()
        self.client = Client(self.home, timeout_s=PATIENCE_S)
        self.notes = ""
        """What the last command said beside its result."""

    def weft(self, *words: str, fails: bool = False, token: str | None = "same", failpoint: str = "") -> str:
        own = environment() if token == "same" else environment(token)
        ended = subprocess.run(
            [*self.cluster.nodes[0].enter(), sys.executable, "-m", "weft", *words],
            env={**own, "WEFT_HOME": str(self.home), "WEFT_CHECKPOINT_EVERY_S": "1", "WEFT_FAILPOINT": failpoint},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert (ended.returncode != 0) == fails, f"weft {words}: {ended.returncode} {ended.stdout} {ended.stderr}"
        self.notes = ended.stderr
        return ended.stderr if fails else ended.stdout

    def up(self, *more: str, failpoint: str = "") -> None:
        """``failpoint``: where it is killed."""
        options = ("--engine", "ray", "--address", self.cluster.address, "--port", "0", "--hold-s", "1", *more)
        self.weft("up", *options, failpoint=failpoint)

    def submit(
        self,
        workers: str,
        num_samples: int = NUM_SAMPLES,
        step_s: float = 0.05,
        num_epochs: int = 1,
        max_restarts: int = 0,
    ) -> str:
        """``max_restarts``: after failures, which a killed worker is; the loss of anything else is none."""
        script = [str(JOB), str(num_samples), str(step_s), str(self.folder), str(num_epochs)]
        options = ["--workers", workers, "--max-restarts", str(max_restarts), "--env", "WEFT_CHECKPOINT_EVERY_S=1"]
        return self.weft("submit", *options, "--", "python", *script).strip()

    def job(self, job_id: str) -> dict[str, Any]:
        return {**self.client.job(job_id)}

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: {**row} for row in self.client.nodes()}

    def is_up(self) -> bool:
        """Also says no when it was killed a moment ago."""
        with contextlib.suppress(WeftError):
            return bool(self.client.health())
        return False

    def runs_on(self, job_id: str) -> set[str]:
        """Names of the nodes whose devices the job has."""
        return {
            name for name, row in self.nodes().items() if any(job_id in device["jobs"] for device in row["devices"])
        }

    def wait_for_step(self, job_id: str, step: int) -> None:
        until(lambda: self.job(job_id)["step"] >= step, PATIENCE_S, lambda: self.explained(job_id))

    def completes(self, job_id: str) -> None:
        """Every sample of every epoch was seen exactly once, and no worker of an attempt was started twice."""
        until(lambda: self.job(job_id)["state"] in FINAL_STATES, PATIENCE_S, lambda: self.explained(job_id))
        assert self.job(job_id)["state"] == "COMPLETED", self.explained(job_id)
        counts = json.loads((self.folder / f"ledger-{job_id}.json").read_text())
        assert counts == [1.0] * len(counts)
        lines = (self.folder / "diary").read_text().splitlines()
        starts = [line for line in lines if line.startswith(f"start {job_id} ")]
        assert len(starts) == len(set(starts))

    def num_steps(self, job_id: str) -> int:
        """Steps that its first worker has taken in all attempts that were not killed, whether they count or not."""
        lines = [line.split() for line in (self.folder / "diary").read_text().splitlines()]
        return sum(int(line[4]) for line in lines if (line[0], line[1], line[3]) == ("steps", job_id, "0"))

    def resumed(self, job_id: str, attempt: int) -> bool:
        """Whether it loaded a checkpoint, rather than starting over."""
        said = self.home / "jobs" / job_id / "attempts" / str(attempt) / "rank0.err"
        return "resuming at step" in said.read_text()

    def explained(self, job_id: str) -> str:
        log = self.home / "controller.log"
        return f"{self.weft('explain', job_id)}\n{log.read_text()[-3000:]}"

    def down(self) -> None:
        """Cancel everything and shut down."""
        for row in self.client.jobs():
            self.client.cancel(row["id"])
        self.weft("down", "--jobs")


@contextlib.contextmanager
def controller_on(cluster: RayTestCluster, *options: str, hidden: bool = False) -> Iterator[RayController]:
    """One that is up; nothing of it is left on the cluster in the end.  ``hidden``: only the head sees its home."""
    made = RayController(cluster)
    if hidden:
        made.home.mkdir(mode=0o700)
        for node in cluster.nodes[1:]:
            subprocess.run([*node.enter(), "mount", "-t", "tmpfs", "none", str(made.home)], check=True)
    made.up(*options)
    try:
        yield made
    except BaseException:
        with contextlib.suppress(Exception):  # its jobs would take the devices of the next test
            made.down()
        raise
    made.down()
    nothing_is_left_on(cluster)


def nothing_is_left_on(cluster: RayTestCluster) -> None:
    """After everything was ended: no process, no actor, no placement group."""

    def processes() -> list[str]:
        words = ("weft-keeper", "weft-warden", "weft.engines", "weft.crossover.server")
        alive = [node for node in cluster.nodes if not node.has_ended()]  # Ray may end on a node that it drained
        return [f"{node.address}: {word}" for node in alive for word in words if node.pids(word)]

    script = (
        "import ray, ray.util; ray.init(address='auto', log_to_driver=False); "
        "print([a['name'] for a in ray.util.list_named_actors(all_namespaces=True)] + "
        "[g['name'] for g in ray.util.placement_group_table().values() if g['state'] != 'REMOVED'])"
    )
    command = [*cluster.nodes[0].enter(), sys.executable, "-c", script]
    found: list[str] = []

    def is_clean() -> bool:
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
        found[:] = [ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else ended.stderr[-500:]]
        return found == ["[]"]

    until(is_clean, PATIENCE_S, lambda: str(found))
    until(lambda: not processes(), PATIENCE_S, lambda: str(processes()))
