"""The holder of a device may be killed or stopped at any moment; the other jobs continue."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from lease_processes import lease_server, lease_workers, wait_until

FAR = ("--hard-s", "600", "--soft-s", "600")
"""Limits that no test lives to see: what happens here happens for another reason."""


def test_when_the_holder_is_killed_the_next_job_gets_the_device(tmp_path: Path) -> None:
    with lease_server(tmp_path / "s", *FAR) as server, lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        b.tell("acquire")
        wait_until(lambda: server.waiting() == ["b"])
        a.signal(signal.SIGKILL)
        assert b.answer() == "acquired"
        assert server.jobs() == {"b"}


def test_children_that_keep_the_socket_open_do_not_keep_the_device(tmp_path: Path) -> None:
    with lease_server(tmp_path / "s", *FAR) as server, lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        child = int(a.do("fork"))
        try:
            b.tell("acquire")
            wait_until(lambda: server.waiting() == ["b"])
            a.signal(signal.SIGKILL)
            assert b.answer() == "acquired"
            os.kill(child, 0)  # it lives, and has the socket
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_killed_waiter_gets_no_lease(tmp_path: Path) -> None:
    with lease_server(tmp_path / "s", *FAR) as server, lease_workers(server.path, "a", "b", "c") as (a, b, c):
        assert a.do("acquire") == "acquired"
        b.tell("acquire")
        wait_until(lambda: server.waiting() == ["b"])
        c.tell("acquire")
        wait_until(lambda: server.waiting() == ["b", "c"])
        b.signal(signal.SIGKILL)
        wait_until(lambda: server.jobs() == {"a", "c"})
        assert a.do("release") == "released"
        assert c.answer() == "acquired"


def test_a_stopped_holder_loses_its_lease_and_asks_again_when_resumed(tmp_path: Path) -> None:
    limits = ("--soft-s", "0.1", "--hard-s", "0.3")
    with lease_server(tmp_path / "s", *limits) as server, lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        a.signal(signal.SIGSTOP)
        assert b.do("acquire") == "acquired"
        assert server.device()["overruled"] == 1
        assert server.device()["holder"] == "b"
        a.signal(signal.SIGCONT)
        a.tell("border")  # its token is stale: it has to wait for b
        wait_until(lambda: server.waiting() == ["a"])
        assert b.do("release") == "released"
        assert a.answer() == "acquired"
        assert server.device()["holder"] == "a"


def test_a_job_that_never_communicates_gives_way_at_a_border(tmp_path: Path) -> None:
    limits = ("--soft-s", "0.1", "--hard-s", "600")
    with lease_server(tmp_path / "s", *limits) as server, lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        a.tell("compute")
        assert b.do("acquire") == "acquired"
        assert b.do("release") == "released"
        assert a.answer() == "interrupted"
        assert server.device()["overruled"] == 0
