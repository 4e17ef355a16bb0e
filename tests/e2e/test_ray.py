"""A controller on a real Ray cluster: jobs across nodes, and clusters that it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.benches import RayBench, said, start, wait_for
from tests.ray_cluster import RayTestCluster, until
from tests.ray_controller import BATCH_SIZE, JOB, PATIENCE_S, RayController, controller_on

from weft.core.worker_environment import LEASE, LEASE_DEVICE, LEASE_ROLE
from weft.crossover.phases import Role

pytestmark = [pytest.mark.netns, pytest.mark.timeout(900)]

# Computes (without using a core: there may be few) and waits twice as long, as if it had much left to do.
WAITS = """
import sys, time
from pathlib import Path
import torch
import weft

with weft.session() as run:
    model = torch.nn.Linear(1, 1)
    data = run.loader(torch.utils.data.TensorDataset(torch.zeros(10000, 1)), batch_size=1)
    run.resume(model=model, data=data)
    for (x,) in run.steps(data, epochs=10):
        if (Path(__file__).parent / "enough").exists():
            break
        model(x)
        time.sleep(0.03)
        with weft.crossover.waiting():
            time.sleep(0.06)
"""


# Takes turns, and says what the lease server of its node has: who is on its device, in which role, and whose order it
# follows.  Every worker of both jobs waits for both jobs to be there.
TAKES_TURNS = """
from pathlib import Path
from weft.crossover.lease_client import gate_from_environment, join_from_environment
from weft.crossover.lease_launch import status
from weft.errors import LeaseError

gate = gate_from_environment(os.environ)
join = join_from_environment(os.environ)
told = ''
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
while True:
    gate.acquire()
    time.sleep(0.01)
    gate.release()
    time.sleep(0.02)
    if gate.is_shared:
        try:
            here = status(Path(os.environ['WEFT_LEASE']))['devices'][join.device]
        except (LeaseError, KeyError):  # a server that has no time to answer is one whose jobs continue
            continue
        roles = ' '.join(sorted(f"{one['job']}={one['role']}" for one in here['jobs']))
        words = f"{roles} leads={here['leads']} follows={here['follows']} "
        if words != told:
            told = words
            said(words)
"""


@pytest.fixture
def controller(ray_cluster: RayTestCluster) -> Iterator[RayController]:
    with controller_on(ray_cluster) as made:
        yield made


def test_jobs_across_nodes_and_off_a_drained_one_see_every_sample_once(controller: RayController) -> None:
    wide = controller.submit("3")  # a node has two devices
    controller.completes(wide)
    assert controller.job(wide)["restarts"] == 0
    job_id = controller.submit("2", num_samples=2000)
    controller.wait_for_step(job_id, 3)
    (first,) = controller.runs_on(job_id)
    assert f"{first}/1" in controller.weft("nodes")
    controller.weft("nodes", "drain", first)
    until(lambda: first not in controller.runs_on(job_id), PATIENCE_S, lambda: controller.explained(job_id))
    assert controller.nodes()[first]["status"] == "drained"
    controller.weft("nodes", "resume", first)
    controller.completes(job_id)
    assert controller.job(job_id)["restarts"] == 1
    assert controller.num_steps(job_id) == 2000 // BATCH_SIZE  # none was lost and taken again


def test_a_killed_agent_is_replaced_and_no_worker_notices(controller: RayController) -> None:
    job_id = controller.submit("3", num_samples=300)
    controller.wait_for_step(job_id, 3)
    os.kill(controller.cluster.nodes[1].pids("ray::NodeAgent")[0], signal.SIGKILL)
    controller.completes(job_id)
    assert controller.job(job_id)["attempt"] == 1


def test_a_controller_whose_bridge_was_killed_leaves_nothing_when_it_shuts_down(controller: RayController) -> None:
    job_id = controller.submit("3", num_samples=40)
    controller.completes(job_id)
    os.kill(controller.cluster.nodes[0].pids("weft.engines.ray.bridge")[0], signal.SIGKILL)
    # The fixture shuts the controller down and looks at what is left.


@pytest.mark.soak
def test_jobs_that_outnumber_the_devices_share_them_on_their_nodes(controller: RayController) -> None:
    script = controller.folder / "waits.py"
    script.write_text(WAITS)
    words = ["submit", "--workers", "1", "--", "python", str(script)]
    jobs = [controller.weft(*words).strip() for _ in range(4)]  # as many as there are devices
    for job_id in jobs:
        controller.wait_for_step(job_id, 25)
    jobs.append(controller.weft(*words).strip())
    shared: dict[str, list[str]] = {}

    def is_shared() -> bool:
        devices = [device for node in controller.nodes().values() for device in node["devices"]]
        shared.update({device["name"]: device["jobs"] for device in devices if len(device["jobs"]) > 1})
        return bool(shared)

    until(is_shared, PATIENCE_S, lambda: "\n".join(controller.explained(job_id) for job_id in jobs))
    (pair,) = shared.values()
    (controller.folder / "enough").touch()
    controller.weft("wait", "--timeout-s", str(PATIENCE_S - 10), *jobs)
    told = controller.weft("explain", pair[0])
    assert "x the work of running one after the other" in told, told


def test_a_cluster_without_a_token_is_refused_and_says_why(ray_cluster: RayTestCluster) -> None:
    controller = RayController(ray_cluster)
    said = controller.weft("up", "--engine", "ray", "--port", "0", fails=True, token=None)
    assert "anyone who can reach its ports can run code as you" in said
    assert "--insecure-ray" in said


def test_an_address_where_nothing_answers_is_named(ray_cluster: RayTestCluster) -> None:
    controller = RayController(ray_cluster)
    said = controller.weft("up", "--engine", "ray", "--address", "127.0.0.1:1", "--port", "0", fails=True)
    assert "nothing responds at 127.0.0.1:1" in said


def test_a_home_that_nodes_do_not_share_is_refused_and_the_node_is_named(ray_cluster: RayTestCluster) -> None:
    controller = RayController(ray_cluster)
    controller.home = Path("/tmp/only-on-the-head")
    said = controller.weft("up", "--engine", "ray", "--port", "0")
    assert "is running" in said
    second = ray_cluster.nodes[1].address
    words = f"node {second} does not see /tmp/only-on-the-head"
    assert words in controller.notes
    listed = json.loads(controller.weft("nodes", "--json"))["nodes"]  # only the head sees this home, not the test
    assert second not in {row["name"] for row in listed}
    controller.weft("nodes")
    assert words in controller.notes
    controller.weft("down", "--jobs")


@pytest.fixture
def bench(ray_cluster: RayTestCluster, request: pytest.FixtureRequest) -> Iterator[RayBench]:
    home = ray_cluster.shared / request.node.name
    home.mkdir()
    made = RayBench(home, ray_cluster)
    yield made
    made.close()
    servers = [node.address for node in ray_cluster.nodes if node.pids("weft.crossover.server")]
    assert servers == [], "lease servers were left behind"


def test_jobs_on_the_same_devices_of_two_nodes_take_turns_in_one_order(bench: RayBench) -> None:
    sharing = {LEASE: "on/the/controllers/machine", LEASE_DEVICE: "0,1,2", LEASE_ROLE: Role.FAIR.value}
    launch = bench.python(TAKES_TURNS, name="turns")
    bench.launch = lambda kind: launch  # type: ignore[method-assign]
    devices = (0, 1, 2)  # a node has two
    bench.engine.share({"a": "primary", "b": "filler"})
    for job_id in ("a", "b"):  # the second does not wait for the devices that the first has reserved
        start(bench, job_id, "turns", devices=devices, **sharing)
    for job_id in ("a", "b"):
        said(bench, job_id, "a=primary b=filler leads=True follows=False", rank=0)
        said(bench, job_id, "a=primary b=filler leads=False follows=True", rank=1)
        said(bench, job_id, "a=primary b=filler leads=False follows=True", rank=2)
    # The one that reserved the devices goes first; the other one keeps running, and they are still reserved.
    bench.engine.stop("a", 1)
    assert wait_for(bench, "a").exit_code == 75
    said(bench, "b", "\nb=filler", rank=2)
    reserved = "import ray.util; print([g['name'] for g in ray.util.placement_group_table().values() if g['state'] == "
    until(lambda: "b@1" in bench.ray_says(f"{reserved}'CREATED'])"), PATIENCE_S)
    bench.engine.stop("b", 1)
    assert wait_for(bench, "b").exit_code == 75


@pytest.fixture
def relaying(ray_cluster: RayTestCluster) -> Iterator[RayController]:
    """Its home is on the head alone; nodes keep checkpoints themselves, and are sent the code."""
    with controller_on(ray_cluster, "--checkpoints", "relay", "--code", "ship", hidden=True) as made:
        yield made


def test_a_job_on_nodes_that_share_nothing_resumes_where_it_was_stopped(relaying: RayController) -> None:
    # Its code is in a folder that only the head sees.
    code = relaying.home / "code"
    code.mkdir()
    shutil.copy(JOB, code)
    words = ["--cwd", str(code), "--env", "WEFT_CHECKPOINT_EVERY_S=1", "--", "python", f"{code}/{JOB.name}"]
    submit = ["submit", "--workers", "3", *words, "600", "0.05", str(relaying.folder)]
    with (code / "data").open("wb") as data:
        data.truncate(600 << 20)
    assert "the largest are data (600 MiB)" in relaying.weft(*submit, fails=True)
    (code / "data").unlink()
    job_id = relaying.weft(*submit).strip()
    relaying.wait_for_step(job_id, 3)
    second = relaying.cluster.nodes[1].address
    relaying.weft("nodes", "drain", second)
    until(lambda: relaying.job(job_id)["state"] == "PENDING", PATIENCE_S, lambda: relaying.explained(job_id))
    relaying.weft("nodes", "resume", second)
    relaying.completes(job_id)
    assert relaying.job(job_id)["restarts"] == 1
    assert relaying.resumed(job_id, attempt=2)


@pytest.fixture
def keeping(ray_cluster: RayTestCluster) -> Iterator[RayController]:
    """The same, with code that all nodes see."""
    with controller_on(ray_cluster, "--checkpoints", "relay", hidden=True) as made:
        yield made


@pytest.mark.soak
def test_a_lost_node_takes_no_checkpoint_with_it(keeping: RayController) -> None:
    first, second = keeping.cluster.nodes[:2]
    keeping.weft("nodes", "drain", first.address)
    job_id = keeping.submit("2", num_samples=3000)
    keeping.wait_for_step(job_id, 3)
    copies = keeping.home / "jobs" / job_id / "checkpoints"
    until(lambda: bool(list(copies.glob("step-*"))), PATIENCE_S, lambda: keeping.explained(job_id))
    keeping.weft("nodes", "resume", first.address)
    second.kill()
    try:
        until(lambda: keeping.job(job_id)["attempt"] == 2, PATIENCE_S, lambda: keeping.explained(job_id))
        keeping.completes(job_id)
        assert keeping.runs_on(job_id) == set()
        assert keeping.resumed(job_id, attempt=2)
    finally:
        second.start()
        second.wait_until_up()
