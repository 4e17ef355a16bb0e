"""The first cause is shown first."""

import signal

import pytest

from weft.engines.first_failure import Failure, WorkerFate, explain, root_cause

LOST_PEER = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:26035",
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 30000ms for recv operation to complete",
    "DistBackendError: NCCL error: unhandled system error",
    "DistNetworkError: The client socket has failed to connect to 127.0.0.1:29500",
    "RuntimeError: Broken pipe",
)
OWN_FAULT = (
    "ValueError: bad sample",
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
    "RuntimeError: DataLoader timed out after 5 seconds",
    "",
)


@pytest.mark.parametrize("lost", LOST_PEER)
@pytest.mark.parametrize("own", OWN_FAULT)
def test_a_worker_that_lost_its_peer_is_not_blamed_even_if_it_failed_first(lost, own):
    victim = Failure(0, 1.0, WorkerFate.EXITED, 1, lost)
    culprit = Failure(1, 1.2, WorkerFate.EXITED, 1, own)
    assert root_cause([victim, culprit]) is culprit


def test_a_dead_data_loader_is_the_cause_despite_a_connection_error():
    words = "ConnectionResetError: Connection reset by peer"
    victim = Failure(0, 1.0, WorkerFate.EXITED, 1, words)
    culprit = Failure(1, 1.2, WorkerFate.EXITED, 1, words, dead_child="its child process 4711 was killed by signal 9")
    assert root_cause([victim, culprit]) is culprit
    assert str(culprit).startswith("its child process 4711")


def test_of_equal_failures_the_earliest_is_the_cause():
    failures = [Failure(rank, 5.0 - rank, WorkerFate.EXITED, 1, "ValueError: bad sample") for rank in range(3)]
    assert root_cause(failures).rank == 2


def test_a_killed_worker_is_the_cause_of_the_others_errors():
    killed = Failure(2, 3.0, WorkerFate.KILLED, signal.SIGKILL)
    assert root_cause([Failure(0, 2.9, WorkerFate.EXITED, 1, LOST_PEER[0]), killed]) is killed


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Failure(0, 0, WorkerFate.EXITED, 7), 7),
        (Failure(0, 0, WorkerFate.KILLED, signal.SIGSEGV), 139),
        (Failure(0, 0, WorkerFate.HUNG, error="it stood still"), 124),
    ],
)
def test_exit_codes_are_those_a_shell_user_knows(failure, code):
    assert failure.exit_code == code


def test_the_report_starts_with_the_cause_and_names_every_worker():
    failures = [Failure(0, 1.0, WorkerFate.EXITED, 1, LOST_PEER[0]), Failure(2, 1.1, WorkerFate.KILLED, signal.SIGSEGV)]
    first, *rest = explain(failures, stderr_tail=["boom"], num_workers=3, ran_s=12.0)
    assert first == "worker 2 failed first, after 12.0 s: it was killed by SIGSEGV (signal 11)"
    assert rest[1] == "  | boom"
    assert rest[2].startswith("worker 0 failed after it: RuntimeError")
    assert rest[3] == "worker 1 was stopped"


def test_when_all_workers_lost_a_peer_the_silent_one_is_blamed():
    failures = [Failure(rank, 1.0, WorkerFate.EXITED, 1, LOST_PEER[1]) for rank in (0, 2)]
    assert "worker 1 neither failed nor responded" in explain(failures, stderr_tail=[], num_workers=3, ran_s=1.0)[-1]
