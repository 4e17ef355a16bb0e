"""A process that shares its device holds it while it computes, and never while it waits for others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from gates import NotedGate
from weft.process import gate
from weft.process.turns import Turns


@pytest.fixture
def noted() -> Iterator[NotedGate]:
    noted = NotedGate()
    gate.install(noted)
    yield noted
    gate.install(gate.OPEN)


def test_the_device_is_free_while_waiting_and_held_afterwards(noted: NotedGate) -> None:
    turns = Turns()
    turns.compute()
    with turns.yielded():
        noted.note("wait")
    assert noted.events == ["acquire", "release", "wait", "acquire"]
    assert turns.computing


def test_a_wait_inside_a_wait_does_not_queue_for_the_device(noted: NotedGate) -> None:
    turns = Turns()
    turns.compute()
    with turns.yielded():
        with turns.yielded():
            noted.note("wait")
        noted.note("wait")
    assert noted.events == ["acquire", "release", "wait", "wait", "acquire"]


def test_a_job_that_is_not_computing_neither_releases_nor_acquires(noted: NotedGate) -> None:
    turns = Turns()
    with turns.yielded():
        noted.note("wait")
    assert noted.events == ["wait"]


def test_a_wait_between_two_phases_releases_a_contended_device(noted: NotedGate) -> None:
    turns = Turns()
    turns.compute()
    noted.contended = True
    with turns.yielded(later=True):
        noted.note("wait")
    assert turns.gave_way
    with turns.yielded(later=True):
        noted.note("wait")
    turns.compute()
    assert noted.events == ["acquire", "release", "wait", "wait", "acquire"]
    assert not turns.gave_way


def test_a_primary_yields_to_equals_and_takes_the_device_back_from_fillers(noted: NotedGate) -> None:
    turns = Turns()
    turns.compute()
    noted.filled = True
    with turns.yielded(later=True, insist=True):
        noted.note("wait")
    assert turns.computing
    with turns.yielded(later=True):
        noted.note("wait")
    assert turns.gave_way
    turns.compute()
    noted.contended = True
    with turns.yielded(later=True, insist=True):
        noted.note("wait")
    assert turns.gave_way


def test_a_wait_between_two_phases_keeps_an_uncontended_device(noted: NotedGate) -> None:
    turns = Turns()
    turns.compute()
    with turns.yielded(later=True):
        noted.note("wait")
    assert turns.computing


def test_a_failed_wait_still_ends_its_window(noted: NotedGate) -> None:
    turns = Turns()
    turns.compute()
    with pytest.raises(RuntimeError, match="peer gone"), turns.yielded():
        raise RuntimeError("peer gone")
    assert noted.holds


def test_the_wait_of_another_thread_does_not_release_our_device(noted: NotedGate) -> None:
    turns = Turns()
    turns.compute()

    def elsewhere() -> None:
        with turns.yielded():
            noted.note("wait")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert noted.events == ["acquire", "wait"]


def test_time_spent_waiting_for_a_turn_does_not_count_as_step_time() -> None:
    now = [0.0]

    class SlowGate(NotedGate):
        def acquire(self) -> None:
            now[0] += 5.0

    gate.install(SlowGate())
    try:
        turns = Turns(now=lambda: now[0])
        turns.compute()
        now[0] += 1.0
        with turns.yielded():
            now[0] += 2.0
        assert turns.own_time_s() == 3.0
        assert turns.network_wait_s == 2.0
        assert turns.turn_wait_s == 10.0
    finally:
        gate.install(gate.OPEN)


def test_the_gate_is_looked_up_once_and_only_when_computing() -> None:
    turns, looked = Turns(), []
    turns.provide(lambda: looked.append(1), lambda model: None)
    with turns.yielded():
        assert not looked
    turns.compute()
    turns.compute()
    assert looked == [1]


def test_a_forked_child_does_not_hold_its_parents_turn(noted: NotedGate) -> None:
    from weft.process.turns import TURNS

    TURNS.compute()
    child = os.fork()
    if child == 0:
        os._exit(int(TURNS.computing))
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert TURNS.computing
    finally:
        TURNS.rest()
        TURNS._forget()
