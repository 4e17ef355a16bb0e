"""The controller and the lease server: it runs when needed, knows which host leads, and ends when it should."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from weft.control.job_table import JobTable
from weft.control.state import Job, JobState, State
from weft.core import worker_environment as names
from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.crossover.lease_client import LeaseGate
from weft.crossover.lease_launch import SOCKET_NAME, ensure_server, status, stop_server, tell_roles
from weft.crossover.lease_messages import Join
from weft.crossover.phases import Role
from weft.daemon.sharing import LeaseServers, roles_of
from weft.errors import LeaseError


def job(name: str, partner: str | None = None, *, fills: bool = False, may_share: bool = True) -> Job:
    spec = JobSpec(name, 0.0, may_share=may_share)
    return Job(spec, state=JobState.RUNNING, attempt=1, devices=(1,), wanted=(1,), partner=partner, fills=fills)


def state(*jobs: Job) -> State:
    return State(Cluster.uniform(1, 2), JobTable([replace(one, number=number) for number, one in enumerate(jobs)]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def sharing(folder: Path) -> Iterator[LeaseServers]:
    made = LeaseServers(folder, enabled=True)
    yield made
    made.close(stop=True)
    assert not (folder / SOCKET_NAME).exists(), "a lease server was left behind"


def until_roles(path: Path, wanted: dict[str, Role]) -> None:
    """The server does not announce changes: poll it."""
    pause = threading.Event()
    for _ in range(int(HANG_S / 0.05)):
        try:
            if all_roles(path) == {(job_id, role.value) for job_id, role in wanted.items()}:
                return
        except LeaseError:
            pass  # not there yet, or not again
        pause.wait(0.05)
    raise AssertionError(f"never came: {wanted}, the server has {all_roles(path)}")


def all_roles(path: Path) -> set[tuple[str, str]]:
    """On any device."""
    return {(member["job"], member["role"]) for device in status(path)["devices"].values() for member in device["jobs"]}


def test_without_a_pair_no_server_is_started(sharing: LeaseServers, folder: Path) -> None:
    sharing.follow(state(job("a"), job("b")))
    assert sharing.environment(job("a"), (1,))[names.LEASE] == str(folder / SOCKET_NAME)
    assert not folder.exists()


def test_each_worker_gets_the_lease_server_and_its_device(sharing: LeaseServers) -> None:
    told = sharing.environment(job("a", "b", fills=True), (4, 5))
    assert told[names.LEASE_DEVICE] == "4,5"
    assert told[names.LEASE_ROLE] == "filler"


def test_workers_are_told_nothing_if_the_job_or_the_controller_does_not_share(
    sharing: LeaseServers, folder: Path
) -> None:
    assert sharing.environment(job("a", may_share=False), (1,)) == {}
    off = LeaseServers(folder, enabled=False)
    off.follow(state(job("a", "b"), job("b", "a")))
    assert off.environment(job("a"), (1,)) == {}
    off.close(stop=True)
    assert not folder.exists()


def test_roles_reach_late_workers_change_and_survive_the_server(sharing: LeaseServers, folder: Path) -> None:
    pair = state(job("a", "b"), job("b", "a", fills=True))
    assert roles_of(pair) == {"a": Role.PRIMARY, "b": Role.FILLER}
    path = folder / SOCKET_NAME
    sharing.follow(pair)
    until_roles(path, {})
    gates = [LeaseGate(str(path), Join(name, "1")) for name in "ab"]
    try:
        until_roles(path, {"a": Role.PRIMARY, "b": Role.FILLER})
        sharing.follow(state(job("a", "b"), job("b", "a")))
        until_roles(path, {"a": Role.FAIR, "b": Role.FAIR})
        sharing.follow(pair)
        until_roles(path, {"a": Role.PRIMARY, "b": Role.FILLER})
        os.kill(status(path)["pid"], signal.SIGKILL)
        until_roles(path, {"a": Role.PRIMARY, "b": Role.FILLER})
    finally:
        for gate in gates:
            gate.close()


def test_a_restarted_controller_finds_the_lease_server_and_ends_it(sharing: LeaseServers, folder: Path) -> None:
    path = folder / SOCKET_NAME
    sharing.follow(state(job("a", "b"), job("b", "a")))
    until_roles(path, {})
    pid = status(path)["pid"]
    sharing.close(stop=False)
    assert status(path)["pid"] == pid
    next_one = LeaseServers(folder, enabled=True)
    next_one.follow(state(replace(job("a", "b"), attempt=2), job("b", "a")))
    gate = LeaseGate(str(path), Join("a", "1", Role.FILLER))
    try:
        until_roles(path, {"a": Role.FAIR})
        assert status(path)["pid"] == pid
        assert not stop_server(path), "it was ended under a job that uses it"
    finally:
        gate.close()
    until_roles(path, {})
    next_one.close(stop=True)
    assert not path.exists()


def test_a_worker_that_joins_after_its_job_got_a_role_gets_it_too(folder: Path) -> None:
    """Also if the server lists its device before the one of a worker that has the role."""
    path = ensure_server(folder)
    wanted = {"a": Role.PRIMARY, "b": Role.FILLER}
    gates: list[LeaseGate] = []
    try:
        for num_members, (name, device) in enumerate((("a", "1"), ("a", "2"), ("b", "2"), ("b", "1")), start=1):
            gates.append(LeaseGate(str(path), Join(name, device)))
            until_joined(path, num_members)
            tell_roles(path, wanted)
        until_roles(path, wanted)
    finally:
        for gate in gates:
            gate.close()
        stop_server(path)


def until_joined(path: Path, num_members: int) -> None:
    pause = threading.Event()
    for _ in range(int(HANG_S / 0.05)):
        if sum(len(device["jobs"]) for device in status(path)["devices"].values()) == num_members:
            return
        pause.wait(0.05)
    raise AssertionError(f"never joined: {status(path)}")
