"""Jobs on several hosts: one order, no hang, whatever happens to the lead."""

from __future__ import annotations

import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from lease_processes import LeaseServer, lease_server, wait_until
from weft.crossover.lease_client import LeaseGate
from weft.crossover.lease_launch import lead_address
from weft.crossover.lease_messages import Join
from weft.crossover.phases import Role
from weft.engines.rendezvous import ReservedPort
from weft.errors import LeaseError

NUM_STEPS = 16
COMPUTE_S = 0.003


@pytest.fixture
def address() -> Iterator[str]:
    """Where the lead will listen; no other process is given this port meanwhile."""
    with ReservedPort() as reserved:
        yield f"127.0.0.1:{reserved.port}"


class Training:
    """Two jobs on two hosts; a collective inside every forward and one after every backward."""

    def __init__(self, paths: list[Path], join: Callable[[str, int], Join]) -> None:
        self.order: list[list[str]] = [[] for _ in paths]
        self.errors: list[BaseException] = []
        self.middle = threading.Barrier(2 * len(paths) + 1)
        self.go_on = threading.Event()
        collectives = {job: threading.Barrier(len(paths)) for job in "ab"}
        self.threads = [
            threading.Thread(target=self._train, args=(path, host, join(job, host), collectives[job]))
            for job in "ab"
            for host, path in enumerate(paths)
        ]

    def _train(self, path: Path, host: int, join: Join, collective: threading.Barrier) -> None:
        gate = LeaseGate(str(path), join)
        try:
            for step in range(NUM_STEPS):
                for _ in ("batch norm in forward", "gradients after backward"):
                    gate.acquire()
                    self.order[host].append(join.job)
                    time.sleep(COMPUTE_S)
                    gate.release()
                    collective.wait(timeout=HANG_S)
                if step == NUM_STEPS // 2:
                    self.middle.wait(timeout=HANG_S)
                    self.go_on.wait(timeout=HANG_S)
        except BaseException as error:
            self.errors.append(error)
            collective.abort()
            self.middle.abort()
        finally:
            gate.close()

    def to_the_middle(self) -> None:
        for thread in self.threads:
            thread.start()
        self.middle.wait(timeout=HANG_S)

    def to_the_end(self) -> None:
        self.go_on.set()
        for thread in self.threads:
            thread.join()
        assert self.errors == []
        for turns in self.order:
            assert sorted(turns) == ["a"] * 2 * NUM_STEPS + ["b"] * 2 * NUM_STEPS


def hand_over(gates: list[LeaseGate], lead: LeaseServer) -> None:
    """Job b waits for job a: the lead grants a turn, and publishes an order."""
    gates[0].acquire()
    thread = threading.Thread(target=gates[1].acquire)
    thread.start()
    wait_until(lambda: lead.waiting() == ["b"])
    gates[0].release()
    thread.join()


def test_jobs_on_two_hosts_follow_one_lead(tmp_path: Path, address: str) -> None:
    key = secrets.token_hex(8)
    with lease_server(tmp_path / "0") as lead, lease_server(tmp_path / "1") as follower:
        training = Training(
            [lead.path, follower.path], lambda job, host: Join(job, "0", is_first=host == 0, lead=address, key=key)
        )
        training.to_the_middle()
        wait_until(lambda: follower.device()["follows"])
        assert lead.device()["leads"]
        assert not follower.device()["leads"]
        training.to_the_end()


@pytest.mark.parametrize("host", ["lead", "follower"])
def test_a_worker_that_joins_late_follows_the_order_that_the_others_have(
    tmp_path: Path, address: str, host: str
) -> None:
    """The lead may publish nothing more for a long time: its jobs no longer want the device at the same time."""
    with lease_server(tmp_path / "lead") as lead, lease_server(tmp_path / "follower") as follower:
        server = lead if host == "lead" else follower
        gates = [LeaseGate(str(lead.path), Join(job, "0", is_first=True, lead=address)) for job in "ab"]
        gates.append(LeaseGate(str(server.path), Join("a", "1", is_first=False, lead=address)))
        hand_over(gates, lead)
        wait_until(lambda: server.device("1")["follows"])
        gates.append(LeaseGate(str(server.path), Join("a", "2", is_first=False, lead=address)))
        assert server.device("2")["follows"]
        for gate in gates:
            gate.close()


def test_hosts_that_grant_in_opposite_order_do_not_deadlock(tmp_path: Path) -> None:
    def inverted(job: str, host: int) -> Join:
        return Join(job, "0", Role.PRIMARY if (job == "a") == (host == 0) else Role.FILLER)

    with lease_server(tmp_path / "0") as one, lease_server(tmp_path / "1") as other:
        training = Training([one.path, other.path], inverted)
        training.to_the_middle()
        training.to_the_end()


def test_jobs_keep_running_when_the_lead_is_lost(tmp_path: Path, address: str) -> None:
    with lease_server(tmp_path / "0") as lead, lease_server(tmp_path / "1") as follower:
        training = Training(
            [lead.path, follower.path], lambda job, host: Join(job, "0", is_first=host == 0, lead=address)
        )
        training.to_the_middle()
        wait_until(lambda: follower.device()["follows"])
        lead.kill()
        wait_until(lambda: not follower.device()["follows"])
        training.to_the_end()


def test_the_turn_order_is_not_disclosed_without_the_key(tmp_path: Path, address: str) -> None:
    key = secrets.token_hex(8)
    with lease_server(tmp_path / "0") as lead:
        gates = [LeaseGate(str(lead.path), Join(job, "0", is_first=True, lead=address, key=key)) for job in "ab"]
        hand_over(gates, lead)
        host, port = address.split(":")
        for said, is_let_in in ((b"wrong", False), (b"", False), (key.encode(), True)):
            with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
                connection.send(said + b"\n")
                assert connection.recv(10).startswith(b'{"turns"') is is_let_in
        for gate in gates:
            gate.close()


def test_a_host_that_leaves_together_with_the_last_job_does_not_crash_the_server(tmp_path: Path, address: str) -> None:
    """Both are seen in one turn: the end of the group closes the connection that is still to be heard."""
    key = secrets.token_hex(8)
    with lease_server(tmp_path / "0") as lead:
        gate = LeaseGate(str(lead.path), Join("a", "0", is_first=True, lead=address, key=key))
        gate.acquire()
        host, port = address.split(":")
        follower = socket.create_connection((host, int(port)), timeout=HANG_S)
        follower.send(key.encode() + b"\n")
        assert lead.jobs() == {"a"}  # asked after it: by now the server knows the follower
        lead.process.send_signal(signal.SIGSTOP)
        gate.close()
        follower.close()
        lead.process.send_signal(signal.SIGCONT)
        wait_until(lambda: lead.status() is not None and not lead.jobs())
        assert lead.process.poll() is None


def test_a_group_is_led_where_its_server_said_and_its_second_job_is_told_the_same(tmp_path: Path) -> None:
    with lease_server(tmp_path / "0") as lead:
        promised = lead_address(lead.path, "0", "127.0.0.1")
        assert lead_address(lead.path, "0", "127.0.0.1") == promised
        assert lead_address(lead.path, "1", "127.0.0.1") != promised, "another group, with another order"
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", int(promised.rpartition(":")[2])))
        gate = LeaseGate(str(lead.path), Join("a", "0", is_first=True, lead=promised))
        wait_until(lambda: lead.device()["leads"])
        assert lead_address(lead.path, "0", "127.0.0.1") == promised
        gate.close()


def test_an_address_that_this_host_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    with lease_server(tmp_path / "0") as lead:
        with pytest.raises(LeaseError, match=r"cannot listen on 192\.0\.2\.1"):
            lead_address(lead.path, "0", "192.0.2.1")
        assert lead.jobs() == set()
