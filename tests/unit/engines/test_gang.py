"""A gang of workers ends together: no process is left behind, and the first cause is shown first."""

import os
import select
import signal

import pytest
from tests.hang_limit import HANG_S

from weft.engines.first_failure import WorkerFate
from weft.engines.gang import GangPatience

PRINT_PID_AND_WAIT = """
    import os, signal
    print("pid", os.environ["RANK"], os.getpid())
    signal.pause()
"""


def is_gone(pid: int, within_s: float = HANG_S) -> bool:
    """Wait for a process that is not our child to end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


def test_output_of_all_workers_arrives_whole_and_in_order(bench):
    outcome = bench.run(
        """
        import os, sys
        for number in range(300):
            print("x" * 500, number)
        sys.stdout.write("no newline")
        """
    )
    assert outcome.exit_code == 0
    for rank in range(2):
        mine = [line for line in bench.console.stdout if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] {'x' * 500} {number}" for number in range(300)] + [f"[{rank}] no newline"]
    assert len(bench.console.stdout) == 602


def test_a_worker_that_raises_ends_the_others_and_is_named(bench):
    outcome = bench.run(
        """
        import os, signal
        if os.environ["RANK"] == "1":
            raise ValueError("bad sample")
        signal.pause()
        """
    )
    assert outcome.exit_code == 1
    assert outcome.report[0].startswith("worker 1 failed first")
    assert "ValueError: bad sample" in outcome.report[0]
    assert outcome.report[-1] == "worker 0 was stopped"
    shown = "\n".join(outcome.report)
    assert "train.py" in shown
    assert "runpy" not in shown


def test_a_worker_that_lost_its_peer_is_not_blamed_when_the_culprit_exits_slowly(bench):
    outcome = bench.run(
        """
        import os, threading, time
        if os.environ["RANK"] == "1":
            class Late(Exception):
                pass
            try:
                open("raising", "w").close()
                threading.Event().wait(0.3)  # as a session does that closes its connections first
            finally:
                raise Late("the cause")
        while not os.path.exists("raising"):  # a busy machine may start the other worker much later
            time.sleep(0.01)
        raise RuntimeError("[gloo/pair.cc] Connection closed by peer")
        """,
        patience=GangPatience(suspect_s=HANG_S),  # the culprit's exit ends this wait, however late it is
    )
    assert outcome.report[0].startswith("worker 1 failed first")
    assert "Late: the cause" in outcome.report[0]


@pytest.mark.parametrize(("leaving", "code"), [("sys.exit(7)", 7), ("sys.exit('no data')", 1), ("os._exit(9)", 9)])
def test_the_exit_code_is_that_of_the_worker_that_failed(bench, leaving, code):
    outcome = bench.run(f"import os, signal, sys\nif os.environ['RANK'] == '0': {leaving}\nsignal.pause()")
    assert outcome.exit_code == code
    assert outcome.report[0].startswith("worker 0 failed first")


def test_a_killed_worker_is_named_with_its_signal(bench):
    def kill_worker_1(line):
        if line.startswith("[1] pid"):
            os.kill(int(line.split()[-1]), signal.SIGKILL)

    outcome = bench.run(PRINT_PID_AND_WAIT, on_line=kill_worker_1)
    assert outcome.exit_code == 128 + signal.SIGKILL
    assert "worker 1 failed first" in outcome.report[0]
    assert "SIGKILL" in outcome.report[0]


def test_a_stopped_worker_is_detected_named_and_ended(bench):
    pids = {}

    def stop_worker_0(line):
        pids[line[1]] = int(line.split()[-1])
        if line.startswith("[0] pid"):
            os.kill(pids["0"], signal.SIGSTOP)

    outcome = bench.run(PRINT_PID_AND_WAIT, on_line=stop_worker_0)
    assert outcome.exit_code == 124
    assert outcome.failures[0].fate is WorkerFate.HUNG
    assert outcome.report[0].startswith("worker 0 failed first")
    assert is_gone(pids["0"])


def test_a_briefly_paused_worker_continues(bench):
    outcome = bench.run(
        """
        import os, subprocess
        pid = os.getpid()
        subprocess.run(["sh", "-c", f"kill -STOP {pid}; kill -CONT {pid}"])
        """,
        patience=GangPatience(hang_s=30.0),
    )
    assert outcome.exit_code == 0


def test_a_worker_deaf_to_sigterm_is_killed(bench):
    outcome = bench.run(
        """
        import os, signal, sys, time
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("deaf", flush=True)
            while True:
                signal.pause()
        sys.exit(3)
        """
    )
    assert outcome.exit_code == 3


def test_children_of_a_worker_end_with_it(bench):
    pids = []
    outcome = bench.run(
        """
        import os, subprocess, sys, time
        child = subprocess.Popen(["sleep", "1000"])
        print("child", child.pid, flush=True)
        if os.environ["RANK"] == "0":
            open("printed", "w").close()
            os._exit(0)
        while not os.path.exists("printed"):  # the others are killed when this one fails
            time.sleep(0.01)
        os._exit(5)
        """,
        on_line=lambda line: pids.append(int(line.split()[-1])),
    )
    assert outcome.exit_code == 5
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_first_stop_request_lets_workers_save_and_leave(bench):
    outcome = bench.run(
        """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(75)))
        print("ready", flush=True)
        while True:
            signal.pause()
        """,
        on_line=stop_when_ready(bench, signal.SIGTERM),
        patience=GangPatience(grace_s=30 * 86400.0),  # more than epoll can wait for at once
    )
    assert (outcome.exit_code, outcome.stopped) == (75, True)
    assert sorted(line for line in bench.console.stdout if "saved" in line) == ["[0] saved", "[1] saved"]


def test_second_stop_request_kills(bench):
    def ask_twice(line):
        if "ready" in line:
            ready.append(line)
        if len(ready) == 2 or "not yet" in line:
            bench.stops.ask(signal.SIGINT)
            ready.clear()

    ready = []
    outcome = bench.run(
        """
        import os, signal
        signal.signal(signal.SIGINT, lambda *_: os.environ["RANK"] == "0" and print("not yet", flush=True))
        print("ready", flush=True)
        while True:
            signal.pause()
        """,
        on_line=ask_twice,
    )
    assert (outcome.exit_code, outcome.stopped) == (130, True)
    assert any("killing the workers" in line for line in bench.console.stderr)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_script_without_a_stop_handler_ends_when_asked_to_stop(bench, signum):
    source = "import signal\nprint('ready', flush=True)\nsignal.pause()"
    outcome = bench.run(source, on_line=stop_when_ready(bench, signum))
    assert (outcome.exit_code, outcome.stopped, outcome.failures) == (128 + signum, True, ())


def test_a_save_that_fails_while_stopping_is_a_failure(bench):
    outcome = bench.run(
        """
        import os, signal
        def save(*_):
            if os.environ["RANK"] == "0":
                raise OSError(28, "No space left on device")
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        while True:
            signal.pause()
        """,
        on_line=stop_when_ready(bench, signal.SIGTERM),
    )
    assert outcome.exit_code == 1
    assert "No space left on device" in outcome.report[0]


def test_output_can_go_to_files(bench, tmp_path):
    outcome = bench.run("import sys; print('to a file'); sys.exit('sorry')", workers=1, log_dir=tmp_path)
    assert bench.console.stdout == []
    assert (tmp_path / "rank0.out").read_text() == "to a file\n"
    assert "  | sorry" in outcome.report


def stop_when_ready(bench, signum):
    """Request a stop once both workers have said that they are ready."""
    ready = []

    def heard(line):
        if "ready" in line:
            ready.append(line)
            if len(ready) == 2:
                bench.stops.ask(signum)

    return heard
