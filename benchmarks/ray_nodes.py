"""How long until a lost node's job steps again, and until a node that joined is used; see ``ray_overhead.py``.

Two hosts with two devices each, in their own namespaces.  A process on the head polls Ray for the nodes it considers
alive: times start when Ray reports a change, not when the power was cut.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.ray_hosts import RayHosts
from benchmarks.testbed import Testbed
from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.errors import WeftError

WORKER = Path(__file__).with_name("first_step_worker.py")
LINK_BITS_PER_S = 1e9
DEVICES_PER_HOST = 2
WAITS_S = 180.0
_POLL_S = 0.02

_WATCH = """
import json, sys, time, ray
ray.init(address="auto", namespace="watch", log_to_driver=False)
before = None
with open(sys.argv[1], "a", buffering=1) as file:
    while True:
        alive = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        if alive != before:
            file.write(json.dumps({"at_s": time.monotonic(), "alive": alive}) + "\\n")
            before = alive
        time.sleep(0.05)
"""


def wait(holds: Callable[[], bool], words: str) -> None:
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > WAITS_S:
            raise WeftError(words)
        time.sleep(_POLL_S)


class Notes:
    """What the workers of one job wrote; see ``first_step_worker.py``."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="notes-", dir=folder))

    def job(self, min_workers: int, max_workers: int, *, cold: bool = False) -> Submission:
        # A variable that a fork cannot honor makes the engine start a fresh interpreter.
        environment = {"WEFT_CHECKPOINT_EVERY_S": "1", **({"PYTHONHASHSEED": "1"} if cold else {})}
        launch = Launch(("python", str(WORKER), str(self.folder)), str(self.folder), environment)
        return Submission(launch, min_workers=min_workers, max_workers=max_workers)

    def last(self, name: str, attempt: int, num_workers: int) -> float:
        """The note of the worker that was last, once all have written it."""
        files = [self.folder / f"{attempt}.{rank}.{name}" for rank in range(num_workers)]
        wait(lambda: all(file.exists() for file in files), f"not every worker of attempt {attempt} wrote {name}")
        return max(float(file.read_text()) for file in files)


class NodeTimes:
    """A cluster of two hosts; each call loses the second host and brings it back."""

    def __init__(self, bed: Testbed, hosts: RayHosts, client: Client, folder: Path) -> None:
        self._hosts, self._client, self._folder = hosts, client, folder
        self._first, self._second = (bed.plan.address(index) for index in range(2))
        self._seen = folder / "seen"
        self._seen.touch()
        hosts.spawn(0, sys.executable, "-c", _WATCH, str(self._seen))

    def one_round(self) -> dict[str, float]:
        self._until_listed([self._first, self._second])
        lost_s = self._lost()
        return {"lost node": lost_s, **self._joined()}

    def _lost(self) -> float:
        """From Ray's notice to the first step of the job elsewhere."""
        client, notes = self._client, Notes(self._folder)
        client.drain(self._first)
        job_id = client.submit(notes.job(1, 1))
        notes.last("step_s", 1, 1)
        saved = self._folder / "home" / "jobs" / job_id / "checkpoints"
        wait(lambda: any(saved.glob("step-*")), f"job {job_id} saved no checkpoint")
        client.drain(self._first, resume=True)
        self._hosts.lose(1)
        noticed_s = self._until_listed([self._first])
        found_s = notes.last("stepped", 2, 1) - noticed_s
        cancel(client, job_id)
        return found_s

    def _joined(self) -> dict[str, float]:
        """From Ray's notice to the first line of a worker's script there, and to its first step."""
        client, notes, size = self._client, Notes(self._folder), DEVICES_PER_HOST + 1
        job_id = client.submit(notes.job(size, size))
        self._hosts.bring_back(1)
        noticed_s = self._until_listed([self._first, self._second])
        found = {
            "joined node": notes.last("begun", 1, size) - noticed_s,
            "joined node, first step": notes.last("stepped", 1, size) - noticed_s,
        }
        cancel(client, job_id)
        return found

    def _until_listed(self, alive: list[str]) -> float:
        """When Ray began to report exactly these nodes as alive, if that is its latest report."""
        found: list[float] = []

        def holds() -> bool:
            lines = self._seen.read_text().splitlines()
            if lines and (last := json.loads(lines[-1]))["alive"] == sorted(alive):
                found.append(last["at_s"])
            return bool(found)

        wait(holds, f"Ray never listed exactly {alive} as its nodes")
        return found[0]


def cancel(client: Client, job_id: str) -> None:
    client.cancel(job_id)
    wait(lambda: client.job(job_id)["state"] == "CANCELLED", f"job {job_id} was not cancelled")


def node_times(num_rounds: int, say: Callable[[str], None]) -> list[dict[str, float]]:
    """Seconds by what was measured, for each round."""
    folder = Path(tempfile.mkdtemp(prefix="weft-nodes-"))
    rounds = []
    try:
        with (
            Testbed(2, LINK_BITS_PER_S) as bed,
            RayHosts(bed, folder, devices_per_host=DEVICES_PER_HOST) as hosts,
            hosts.controller("balanced", folder / "home", hold_s=0.5, shares=False) as client,
        ):
            measured = NodeTimes(bed, hosts, client, folder)
            for number in range(1, num_rounds + 1):
                rounds.append(measured.one_round())
                say(f"nodes, round {number} of {num_rounds}: {rounds[-1]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rounds
