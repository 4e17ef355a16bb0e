"""Workers that cannot find each other say who is missing, and why, in time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.hang_limit import HANG_S

from weft.engines.rendezvous import ReservedPort
from weft.errors import SessionError, UsageError
from weft.worker.environment import read_environment
from weft.worker.meeting import meet


@pytest.fixture
def port() -> Iterator[int]:
    with ReservedPort() as reserved:
        yield reserved.port


def say_where(patch: pytest.MonkeyPatch, rank: int, world_size: int, port: int) -> None:
    values = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**values, "WEFT_START_TIMEOUT_S": 1}.items():
        patch.setenv(name, str(value))
    patch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


def test_missing_workers_are_named_when_time_is_up(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    say_where(monkeypatch, 0, 3, port)
    with pytest.raises(SessionError, match=r"waited 1 s for worker\(s\) 1, 2: they were not started, or failed"):
        meet(read_environment(os.environ))


def test_a_missing_worker_0_is_named_by_the_others(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    say_where(monkeypatch, 1, 2, port)
    with pytest.raises(
        SessionError, match=r"nothing listens there \(Connection refused\); worker 0 should open the port"
    ):
        meet(read_environment(os.environ))


OPEN = """
import os
from weft.worker.environment import read_environment
from weft.worker.meeting import meet
os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
store = meet(read_environment(os.environ))
port = int(os.environ["MASTER_PORT"])
lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
print(*[line[1] for line in lines if line[3] == "0A" and int(line[1].rsplit(":")[-1], 16) == port])
"""


def test_the_place_where_workers_of_one_machine_meet_cannot_be_reached_over_its_networks(port: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    said = subprocess.run(
        [sys.executable, "-c", OPEN], env=environment, capture_output=True, text=True, timeout=HANG_S, check=True
    )
    (address,) = said.stdout.split()
    assert address.startswith("0100007F:")  # 127.0.0.1 and nothing else


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as other:
        taken = other.getsockname()[1]
        say_where(monkeypatch, 0, 2, taken)
        with pytest.raises(SessionError, match=rf"port {taken} is in use by another program.*set MASTER_PORT"):
            meet(read_environment(os.environ))


ENTER = """
import os
from weft.errors import SessionError
from weft.worker.environment import read_environment
from weft.worker.meeting import meet
try:
    meet(read_environment(os.environ))
except SessionError as error:
    print(error, flush=True)
os._exit(0)
"""


def test_another_program_at_the_port_does_not_make_a_worker_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a separate process: torch keeps waiting in a thread, which ends only with the process."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        say_where(monkeypatch, 1, 2, other.getsockname()[1])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", ENTER]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert "does not answer like worker 0" in said.stdout


@pytest.mark.parametrize("port", ["x", "70000", "-1"])
def test_an_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match="MASTER_PORT"):
        read_environment({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
