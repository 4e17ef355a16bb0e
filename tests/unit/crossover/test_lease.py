"""Server and client together: no cost when no job waits, and no other user gets in."""

from __future__ import annotations

import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from syscall_ban import WRITE, forbid_system_calls

from lease_processes import ENVIRONMENT, LeaseServer, lease_server, lease_workers, wait_until
from weft.crossover import lease_launch
from weft.crossover.lease_client import LeaseGate, gate_from_environment
from weft.crossover.lease_launch import ensure_server, set_role, status
from weft.crossover.lease_messages import Join, LeaseVerb, join_from, unpacked
from weft.crossover.phases import Role
from weft.crossover.server import Server, main
from weft.errors import LeaseError, UsageError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LeaseServer]:
    with lease_server(tmp_path / "s", "--hard-s", "600", "--soft-s", "600") as running:
        yield running


def fork(body: Callable[[], None]) -> int:
    """A child that runs ``body`` and nothing else of this process."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(1)
    return child


@pytest.mark.skipif(platform.machine() not in WRITE, reason="the number of write() is not known here")
def test_no_system_call_is_made_when_no_job_waits(server: LeaseServer) -> None:
    told, tells = os.pipe()

    def train() -> None:
        gate = LeaseGate(str(server.path), Join("a", "0"))
        gate.acquire()  # requested once, and lent from then on
        gate.release()
        forbid_system_calls()
        for _ in range(1000):
            gate.acquire()
            gate.acquire()
            gate.contended  # noqa: B018
            gate.release()
        os.write(tells, b"done")

    ended = os.waitpid(fork(train), 0)[1]
    os.close(tells)
    assert os.read(told, 100) == b"done"
    os.close(told)
    assert os.WTERMSIG(ended) == signal.SIGSYS  # leaving needs a system call: the ban was in force


def test_two_jobs_take_turns(server: LeaseServer) -> None:
    with lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        for _ in range(20):
            b.tell("acquire")
            wait_until(lambda: server.waiting() == ["b"])
            assert a.do("release") == "released"
            assert b.answer() == "acquired"
            a.tell("acquire")
            wait_until(lambda: server.waiting() == ["a"])
            assert b.do("release") == "released"
            assert a.answer() == "acquired"


def test_an_idle_holder_gives_way_without_being_woken(server: LeaseServer) -> None:
    with lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        assert a.do("release") == "released"
        a.signal(signal.SIGSTOP)  # it cannot send anything
        assert b.do("acquire") == "acquired"
        assert server.device()["overruled"] == 0


def test_a_primary_interrupts_a_filler_at_its_next_border(server: LeaseServer) -> None:
    with lease_workers(server.path, "filler", "primary") as (filler, primary):
        set_role(server.path, "filler", Role.FILLER)
        set_role(server.path, "primary", Role.PRIMARY)
        assert filler.do("acquire") == "acquired"
        filler.tell("compute")
        assert primary.do("acquire") == "acquired"
        assert primary.do("release") == "released"
        assert filler.answer() == "interrupted"


def test_a_primary_that_waits_briefly_keeps_the_device_from_a_filler_until_the_wait_is_long(
    server: LeaseServer,
) -> None:
    gate = LeaseGate(str(server.path), Join("primary", "0", Role.PRIMARY))
    with lease_workers(server.path, "filler") as (filler,):
        set_role(server.path, "filler", Role.FILLER)
        gate.acquire()
        filler.tell("acquire")
        wait_until(lambda: server.waiting() == ["filler"])
        assert gate.would_wait
        assert not gate.contended, "it has to give way to us"
        gate.release(briefly=True)
        gate.acquire()
        assert server.waiting() == ["filler"]
        gate.release(briefly=True)
        assert filler.answer() == "acquired"
    gate.close()


def test_an_equal_is_not_kept_waiting_by_a_brief_wait(server: LeaseServer) -> None:
    gate = LeaseGate(str(server.path), Join("a", "0"))
    with lease_workers(server.path, "b") as (b,):
        gate.acquire()
        b.tell("acquire")
        wait_until(lambda: gate.contended)
        gate.release(briefly=True)
        assert b.answer() == "acquired"
        assert gate.contended, "it has the device now"
    gate.close()


def test_the_first_job_that_waits_is_noticed_once(server: LeaseServer) -> None:
    met: list[str] = []
    gate = LeaseGate(str(server.path), Join("a", "0"), lambda: met.append("b"))
    for _ in range(3):  # alone behind the server
        gate.acquire()
        gate.release()
    assert met == []
    gate.acquire()
    with lease_workers(server.path, "b") as (b,):
        b.tell("acquire")
        wait_until(lambda: server.waiting() == ["b"])
        gate.release()
        assert met == ["b"]
        assert b.answer() == "acquired"
        assert b.do("release") == "released"
        gate.acquire()
        gate.release()
    gate.close()
    assert met == ["b"], "once is enough"


@pytest.mark.parametrize("role", [Role.FAIR, Role.FILLER])
def test_the_second_job_to_join_knows_it_shares(server: LeaseServer, role: Role) -> None:
    met: list[str] = []
    with lease_workers(server.path, "a") as (a,):
        assert a.do("acquire") == "acquired"
        gate = LeaseGate(str(server.path), Join("b", "0", role), lambda: met.append("a"))
        waits = threading.Thread(target=gate.acquire)
        waits.start()
        wait_until(lambda: server.waiting() == ["b"])
        assert a.do("release") == "released"
        waits.join()
        assert met == ["a"]
        gate.release()
        gate.close()


def test_devices_are_shared_one_by_one(server: LeaseServer) -> None:
    gates = [LeaseGate(str(server.path), Join(job, device)) for job, device in (("a", "0"), ("b", "1"))]
    for gate in gates:
        gate.acquire()
    assert {server.device("0")["holder"], server.device("1")["holder"]} == {"a", "b"}
    for gate in gates:
        gate.close()


def test_many_threads_at_once_never_compute_together(server: LeaseServer) -> None:
    inside, most, done = [0], [0], []
    guard = threading.Lock()

    def train(name: str) -> None:
        gate = LeaseGate(str(server.path), Join(name, "0"))
        gate._gaps.is_too_short = False
        for _ in range(200):
            gate.acquire()
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with guard:
                inside[0] -= 1
            gate.release()
        gate.close()
        done.append(name)

    threads = [threading.Thread(target=train, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["a", "b", "c"]
    assert most[0] == 1


def test_the_socket_is_for_its_owner_only(server: LeaseServer) -> None:
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_is_refused(server: LeaseServer) -> None:
    # The file's mode would keep it out already: this is about what is behind that.
    for folder in (server.path.parent, *server.path.parent.parents):
        if folder.stat().st_uid == os.geteuid() and "pytest" in str(folder):
            folder.chmod(0o755)
    server.path.chmod(0o666)
    answers, answer = os.pipe()

    def intrude() -> None:
        os.setuid(65534)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(str(server.path))
        os.write(answer, b"connected,")
        try:
            connection.send(Join("intruder", "0").packed())
            said = connection.recv(100)
        except OSError:
            said = b""
        os.write(answer, b"told " + said[:20] if said else b"refused")

    os.waitpid(fork(intrude), 0)
    os.close(answer)
    assert os.read(answers, 100) == b"connected,refused"
    os.close(answers)
    assert server.jobs() == set()


@pytest.mark.parametrize("noise", [b"{", b"\x01", b'{"kind":"join"}', b'{"kind":"role","job":1}', b"\xff" * 17, b"[]"])
def test_garbage_on_the_socket_harms_no_job(server: LeaseServer, noise: bytes) -> None:
    gate = LeaseGate(str(server.path), Join("a", "0"))
    gate.acquire()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(server.path))
        connection.send(noise)
        assert connection.recv(100) == b""
    assert server.device()["holder"] == "a"
    gate.close()


def test_a_worker_that_never_joined_cannot_take_turns(server: LeaseServer) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(server.path))
        connection.send(bytes([LeaseVerb.ASK]) + bytes(16))
        assert connection.recv(100) == b""


def test_a_forked_child_leaves_its_parents_lease_alone(server: LeaseServer) -> None:
    gate = LeaseGate(str(server.path), Join("a", "0"))
    gate.acquire()

    def load_data() -> None:
        gate.acquire()
        gate.release()
        os._exit(0 if not gate.is_shared and not gate.contended else 2)

    assert os.waitpid(fork(load_data), 0)[1] == 0
    assert server.device()["holder"] == "a"
    assert gate.is_shared
    gate.close()


def test_a_job_that_closes_its_gate_has_left(server: LeaseServer) -> None:
    gate = LeaseGate(str(server.path), Join("a", "0"))
    gate.acquire()
    gate.close()
    wait_until(lambda: server.jobs() == set())
    gate.close()


def test_the_lease_server_is_found_or_started_and_ends_when_unused(tmp_path: Path) -> None:
    path = ensure_server(tmp_path, linger_s=3.0)  # long enough for a busy machine to find it again
    assert ensure_server(tmp_path) == path
    gate = gate_from_environment({"WEFT_LEASE": str(path), "WEFT_LEASE_DEVICE": "3", "WEFT_JOB_ID": "resnet"})
    assert isinstance(gate, LeaseGate)
    gate.acquire()
    assert status(path)["devices"]["3"]["holder"] == "resnet"
    gate.close()
    wait_until(lambda: not path.exists())


def test_of_two_servers_at_one_place_the_second_refuses(server: LeaseServer) -> None:
    with pytest.raises(LeaseError, match="use it"):
        Server(server.path)
    assert main(["--socket", str(server.path)]) == LeaseError.exit_code


def test_a_path_too_long_for_a_socket_is_explained(tmp_path: Path) -> None:
    with pytest.raises(LeaseError, match="shorter WEFT_HOME"):
        ensure_server(tmp_path / ("x" * 120))


def test_a_server_that_does_not_start_in_time_is_an_error_that_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(lease_launch, "_START_WITHIN_S", 0.2)
    with pytest.raises(LeaseError, match=r"did not listen within 0.2 s\): see .*lease.log"):
        ensure_server(tmp_path)


def test_the_server_loads_nothing_heavy() -> None:
    code = "import weft.crossover.server, sys; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("setting", [{"WEFT_LEASE_ROLE": "king"}, {"WEFT_LEASE_WEIGHT": "-1"}])
def test_invalid_lease_settings_are_refused(tmp_path: Path, setting: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="expected"):
        gate_from_environment({"WEFT_LEASE": str(tmp_path / "s"), **setting})


def test_a_join_survives_the_wire() -> None:
    join = Join("a", "cuda:0", Role.FILLER, 2.5, is_first=True, lead="10.0.0.1:4100", key="secret")
    message = unpacked(join.packed())
    assert isinstance(message, dict)
    assert join_from(message) == join
