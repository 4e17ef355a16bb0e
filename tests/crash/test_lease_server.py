"""The lease server may die, be stopped or come back at any moment; no job is lost or held up."""

from __future__ import annotations

import signal
from pathlib import Path

from lease_processes import lease_server, lease_workers, wait_until

FAR = ("--hard-s", "600", "--soft-s", "600")


def test_jobs_keep_running_without_the_server_and_rejoin_it(tmp_path: Path) -> None:
    with lease_server(tmp_path / "s", *FAR) as server, lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        b.tell("acquire")
        wait_until(lambda: server.waiting() == ["b"])
        server.kill()
        assert b.answer() == "acquired"  # both compute now, unshared
        wait_until(lambda: a.do("shared") == b.do("shared") == "False")
        for worker in (a, b):
            assert worker.do("release") == "released"
            assert worker.do("acquire") == "acquired"
            assert worker.do("release") == "released"

        server.start()
        wait_until(lambda: server.jobs() == {"a", "b"})
        wait_until(lambda: a.do("shared") == b.do("shared") == "True")
        assert a.do("acquire") == "acquired"
        b.tell("acquire")
        wait_until(lambda: server.waiting() == ["b"])
        assert a.do("release") == "released"
        assert b.answer() == "acquired"


def test_a_job_computing_while_the_server_restarts_takes_its_turn_at_the_next_border(tmp_path: Path) -> None:
    with lease_server(tmp_path / "s", *FAR) as server, lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        server.kill()
        server.start()
        wait_until(lambda: a.do("shared") == b.do("shared") == "True")
        assert b.do("acquire") == "acquired"
        a.tell("border")
        wait_until(lambda: server.waiting() == ["a"])
        assert b.do("release") == "released"
        assert a.answer() == "acquired"


def test_an_unresponsive_server_does_not_block_jobs_forever(tmp_path: Path) -> None:
    limits = ("--hard-s", "0.2", "--soft-s", "0.1")
    with lease_server(tmp_path / "s", *limits) as server, lease_workers(server.path, "a", "b") as (a, b):
        assert a.do("acquire") == "acquired"
        server.process.send_signal(signal.SIGSTOP)
        assert b.do("acquire") == "acquired"
        for _ in range(3):
            assert b.do("release") == "released"
            assert b.do("acquire") == "acquired"
        server.process.send_signal(signal.SIGCONT)
        wait_until(lambda: server.device()["holder"] == "b")  # it asked, long ago


def test_jobs_started_before_the_server_join_it(tmp_path: Path) -> None:
    with lease_workers(tmp_path / "s", "a") as (a,):
        assert a.do("acquire") == "acquired"
        assert a.do("release") == "released"
        with lease_server(tmp_path / "s", *FAR) as server:
            wait_until(lambda: server.jobs() == {"a"})
