"""Engines on a bench: the same few jobs for each of them, and a way to wait for their outcomes."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pytest
from tests.contract.fake_engine import FakeEngine, FakeMachine
from tests.hang_limit import HANG_S
from tests.ray_cluster import RayTestCluster
from tests.ray_cluster import environment as ray_environment

from weft.control.node_changes import cluster_of
from weft.core.cluster import Cluster
from weft.core.engine import Engine, EngineEvent, StartOrder
from weft.core.events import WorkersExited, WorkersStarted
from weft.core.job import JobSpec, Launch
from weft.core.speed import StepTime
from weft.engines import process_tree
from weft.engines.local import LocalEngine
from weft.engines.local.folders import Folders
from weft.engines.local.process import MARK
from weft.engines.ray import RayEngine
from weft.sim.replay_options import SimulationOptions
from weft.sim.simulated_engine import SimulatedEngine
from weft.sim.workload import TableProfile, TrueJob

NUM_DEVICES = 4

SCRIPTS = {
    "finish": "said('done')",
    "fail": "said('about to fail')\nsys.exit(7) if rank == '0' else signal.pause()",
    "wait": "said('waiting')\nsignal.pause()",
    "save": """
def save(*_):
    time.sleep(0.2)  # a checkpoint takes time, and a second request must not interrupt it
    said('saved')
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
said('training')
while True:
    signal.pause()
""",
    "family": """
child = subprocess.Popen(['sleep', '1000'])
far = subprocess.Popen(['setsid', 'sleep', '1000'])
said(f'children {child.pid} {far.pid}')
signal.pause()
""",
}
PREAMBLE = """
import os, signal, subprocess, sys, time
rank = os.environ['RANK']
def said(words):
    print(words, flush=True)
"""


class Bench(Protocol):
    """One engine under test, with what outlives it."""

    engine: Engine
    is_simulated: bool
    """Nothing is kept, printed or failed there: tests of that are left out."""

    def prepare(self, job_id: str, kind: str) -> None:
        """Before the first attempt of a job is started."""

    def let_time_pass(self) -> None:
        """Until something may have happened."""

    def reopen(self) -> None:
        """The controller goes and comes back."""

    def launch(self, kind: str) -> Launch:
        """A job that does what ``kind`` says."""

    def num_starts(self, job_id: str, attempt: int) -> int:
        """How often its first worker was really started."""

    def output(self, job_id: str, attempt: int, rank: int) -> str:
        """What one worker said."""


def ray_variables() -> list[str]:
    """For the process that talks to Ray."""
    return [f"{name}={value}" for name, value in ray_environment().items() if name.startswith("RAY_")]


def start(
    bench: Bench, job_id: str, kind: str, *, attempt: int = 1, devices: tuple[int, ...] = (0, 1), **environment: str
) -> None:
    bench.prepare(job_id, kind)
    cluster = cluster_of(bench.engine.nodes())
    names = tuple(cluster.device_name(device) for device in devices)
    bench.engine.start(StartOrder(job_id, attempt, devices, bench.launch(kind), environment, names))


def wait_for(bench: Bench, job_id: str, attempt: int = 1) -> WorkersExited:
    """Until the attempt is over."""
    return next(
        event for event in events_until(bench, job_id, attempt, WorkersExited) if is_end(event, job_id, attempt)
    )


def is_end(event: EngineEvent, job_id: str, attempt: int) -> bool:
    return isinstance(event, WorkersExited) and (event.job_id, event.attempt) == (job_id, attempt)


def events_until(
    bench: Bench, job_id: str, attempt: int, kind: type[WorkersStarted] | type[WorkersExited]
) -> list[EngineEvent]:
    """All events up to the one that says this of the attempt."""
    told: list[EngineEvent] = []

    def seen() -> bool:
        told.extend(bench.engine.poll())
        return any(isinstance(event, kind) and (event.job_id, event.attempt) == (job_id, attempt) for event in told)

    until(seen, bench)
    return told


def until(holds: Callable[[], bool], bench: Bench, within_s: float = HANG_S) -> None:
    """Wait for something that an event of the engine, or a worker's file, will bring about."""
    latest_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < latest_s, "it never happened"
        bench.let_time_pass()


def said(bench: Bench, job_id: str, words: str, *, attempt: int = 1, rank: int = 0) -> None:
    """Wait until a worker has printed this; a simulated worker prints nothing and needs no wait."""
    if not bench.is_simulated:
        try:
            until(lambda: words in bench.output(job_id, attempt, rank), bench)
        except AssertionError:
            pytest.fail(f"rank {rank} of {job_id} never said {words!r}, only: {bench.output(job_id, attempt, rank)!r}")


def marked(home: Path) -> dict[int, int]:
    """Living processes that bear the mark of the engine at this home: pid and session."""
    mark = f"{MARK}={home / 'engine'}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        standing = process_tree.live_process(int(entry.name)) if entry.name.isdigit() else None
        with contextlib.suppress(OSError):
            if standing is not None and mark in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = standing.session
    return found


class LocalBench:
    """Real processes."""

    is_simulated = False

    def __init__(
        self, home: Path, *, warm: bool, grace_s: float = 20.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self._grace_s = grace_s
        self._warm = warm
        self._environment = environment
        self.engine = self._open()

    def _open(self) -> LocalEngine:
        return LocalEngine(
            self.home,
            num_devices=NUM_DEVICES,
            warm=self._warm,
            grace_s=self._grace_s,
            hang_s=1.0,
            environment=self._environment,
        )

    def prepare(self, job_id: str, kind: str) -> None:
        """Nothing to do."""

    def let_time_pass(self) -> None:
        select.select([self.engine.fileno()], [], [], 0.05)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = self._open()

    def launch(self, kind: str) -> Launch:
        return self.python(SCRIPTS[kind], name=kind)

    def python(self, source: str, *, name: str = "script", **environment: str) -> Launch:
        """A job of this script; each start of a rank is counted in a file, before anything else happens."""
        counted = f"{PREAMBLE}\nopen('starts-' + os.environ['WEFT_JOB_ID'].replace('/', '_') + "
        counted += "'-' + os.environ['WEFT_ATTEMPT'], 'a').write(rank + '\\n')\n"
        file = self.home / f"{name}.py"
        if not file.exists() or file.read_text() != counted + source:
            file.write_text(counted + source)
        return Launch(("python" if self._warm else sys.executable, file.name), str(self.home), environment)

    def num_starts(self, job_id: str, attempt: int) -> int:
        file = self.home / f"starts-{job_id.replace('/', '_')}-{attempt}"
        return file.read_text().split().count("0") if file.exists() else 0

    def attempt_folder(self, job_id: str, attempt: int) -> Path:
        return Folders(self.home).attempt(job_id, attempt).path

    def output(self, job_id: str, attempt: int, rank: int) -> str:
        file = self.attempt_folder(job_id, attempt) / f"rank{rank}.out"
        return file.read_text() if file.exists() else ""

    def close(self) -> None:
        for job_id, attempt in self.engine.known():
            self.engine.kill(job_id, attempt)
        for job_id, attempt in self.engine.known():
            until(lambda job_id=job_id, attempt=attempt: self._is_over(job_id, attempt), self)  # type: ignore[misc]
        self.engine.close()

    def _is_over(self, job_id: str, attempt: int) -> bool:
        self.engine.poll()
        self.engine.forget(job_id, attempt)
        return (job_id, attempt) not in self.engine.known()


class RayBench(LocalBench):
    """Real processes on the nodes of a real Ray cluster."""

    engine: RayEngine  # type: ignore[assignment]

    def __init__(self, home: Path, cluster: RayTestCluster) -> None:
        self._cluster = cluster
        super().__init__(home, warm=False)

    def _open(self) -> RayEngine:  # type: ignore[override]
        return RayEngine(
            self.home,
            address=self._cluster.address,
            warm=False,
            grace_s=self._grace_s,
            hang_s=1.0,
            launcher=["env", *ray_variables(), *self._cluster.nodes[0].enter()],
        )

    def ray_says(self, script: str) -> str:
        """What a driver of the cluster prints."""
        connect = "import ray; ray.init(address='auto', log_to_driver=False, configure_logging=False); "
        command = ["env", *ray_variables(), *self._cluster.nodes[0].enter(), sys.executable, "-c", connect + script]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout


class FakeBench:
    """No processes: what other tests run the controller on."""

    is_simulated = False

    def __init__(self) -> None:
        self.machine = FakeMachine(NUM_DEVICES)
        self.engine: Engine = FakeEngine(self.machine)

    def prepare(self, job_id: str, kind: str) -> None:
        """Nothing to do."""

    def let_time_pass(self) -> None:
        """Everything happens at once."""

    def reopen(self) -> None:
        self.engine.close()
        self.engine = FakeEngine(self.machine)

    def launch(self, kind: str) -> Launch:
        return Launch((kind,), "/")

    def num_starts(self, job_id: str, attempt: int) -> int:
        return self.machine.starts.count((job_id, attempt))

    def output(self, job_id: str, attempt: int, rank: int) -> str:
        return self.machine.output.get((job_id, attempt, rank), "")

    def close(self) -> None:
        self.engine.close()


class SimulatedBench:
    """Workers on paper, on virtual time; jobs that wait are jobs with much to do."""

    is_simulated = True

    def __init__(self) -> None:
        self.engine = SimulatedEngine(Cluster((NUM_DEVICES,)), SimulationOptions())
        self._profile = TableProfile({size: StepTime(1.0) for size in range(1, NUM_DEVICES + 1)})

    def prepare(self, job_id: str, kind: str) -> None:
        if job_id not in self.engine.runs:
            spec = JobSpec(job_id, submitted_s=self.engine.now_s, max_workers=NUM_DEVICES)
            self.engine.add(TrueJob(spec, self._profile, total_steps=10.0 if kind == "finish" else 1e9))

    def let_time_pass(self) -> None:
        self.engine.now_s = min(self.engine.next_s(), self.engine.now_s + 1e6)

    def launch(self, kind: str) -> Launch:
        return Launch((kind,), "/")

    def reopen(self) -> None:
        pytest.skip("a simulation is over when its engine is")

    def num_starts(self, job_id: str, attempt: int) -> int:
        pytest.skip("nothing is really started in a simulation")

    def output(self, job_id: str, attempt: int, rank: int) -> str:
        raise AssertionError("nobody says anything in a simulation")

    def close(self) -> None:
        self.engine.close()
