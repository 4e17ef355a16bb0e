"""Network threads do not interrupt compute, unless another job shares the core."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

import pytest

from weft.overlap.transport import network_threads
from weft.overlap.transport.network_threads import core_is_shared, let_compute_finish_first

SET_NAME = 15  # prctl's PR_SET_NAME


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A thread with the name of gloo's."""
    monkeypatch.setattr(network_threads, "_ours", set())
    monkeypatch.setattr(network_threads, "_is_core_shared", False)
    named, leave = threading.Event(), threading.Event()

    def sleep() -> None:
        ctypes.CDLL(None).prctl(SET_NAME, b"gloo_tcp_loop")
        named.set()
        leave.wait()

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    named.wait()
    assert sleeper.native_id is not None
    yield sleeper.native_id
    leave.set()
    sleeper.join()


def test_a_network_thread_is_patient_while_the_core_is_ours(thread: int) -> None:
    let_compute_finish_first([thread])
    assert os.sched_getscheduler(thread) == os.SCHED_BATCH
    core_is_shared(True)
    assert os.sched_getscheduler(thread) == os.SCHED_OTHER
    let_compute_finish_first([thread])
    assert os.sched_getscheduler(thread) == os.SCHED_OTHER, "a group made later shares the core too"
    core_is_shared(False)
    assert os.sched_getscheduler(thread) == os.SCHED_BATCH


def test_threads_that_are_not_gloos_are_left_alone(thread: int) -> None:
    let_compute_finish_first([thread, threading.get_native_id()])
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER
    assert os.sched_getscheduler(thread) == os.SCHED_BATCH
