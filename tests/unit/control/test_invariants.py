"""The checks work: each broken state is detected and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scenario import Scenario
from tests.unit.control.step_invariants import check_step

from weft.control.invariants import InvariantBroken, check
from weft.control.job_table import JobTable
from weft.control.state import JobState, State


def sound() -> State:
    """``a`` and ``b`` share devices, ``c`` waits."""
    one = Scenario("a", "b", "c")
    one.pair("a", "b", (0, 1))
    return one.state


def broken(state: State, name: str, /, **changes: Any) -> State:
    jobs = [replace(job, **changes) if job.id == name else job for job in state.jobs.values()]
    return replace(state, jobs=JobTable(jobs))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("c", {"state": JobState.RUNNING, "attempt": 1, "started_s": 3.0}, "c with workers to have devices"),
        ("a", {"attempt": 0, "started_s": None}, "a with workers to have an attempt"),
        ("a", {"devices": (2, 3)}, "running job a to be where it should be"),
        ("a", {"devices": (0, 0), "wanted": (0, 0)}, "not to have a device twice"),
        ("a", {"devices": (0, 9), "wanted": (0, 9)}, "to be on devices 0 to 7"),
        ("a", {"partner": None, "wanted_partner": None}, "partners of each other"),
        ("a", {"partner": "z"}, "the partner of job a, z, to be active"),
        ("a", {"is_cancelled": True}, "a, which should stop, not to be running"),
        ("a", {"wanted_partner": "c"}, "jobs a and c, a future pair"),
        ("a", {"wanted_partner": "z"}, "future partner of job a, z, to be active"),
        ("c", {"wanted": (5,)}, "c, whose devices \\(5,\\) are free, to be started"),
        ("c", {"wanted": (1, 2)}, "device 1 not to be promised by both a and c"),
        ("c", {"wanted": (1,) * 9}, "to be promised range"),
        ("c", {"wanted_fills": True}, "not to be a filler"),
        ("c", {"devices": (5,)}, "pending job c to hold nothing"),
        ("c", {"state": JobState.COMPLETED}, "c to have an end time"),
        ("c", {"state": JobState.COMPLETED, "finished_s": 1.0, "wanted": (5,)}, "finished job c to hold and want"),
        ("c", {"number": 0}, "jobs numbered as submitted"),
        ("c", {"changed_s": 1e9}, "c to have changed between then and now"),
        ("c", {"started_s": 3.0}, "to have a start"),
        ("a", {"num_restarts": 3}, "a to have counted its restarts"),
        ("c", {"num_failures": 3}, "to be given up after 0 restarts"),
    ],
)
def test_a_broken_state_is_found_and_named(name: str, changes: dict[str, Any], message: str) -> None:
    state = sound()
    check(state)
    with pytest.raises(InvariantBroken, match=message):
        check(broken(state, name, **changes))


def test_two_jobs_on_one_device_are_found() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1), b=(2, 3))
    with pytest.raises(InvariantBroken, match="device 1 not to be held by both a and b"):
        check(broken(one.state, "b", devices=(1, 3), wanted=(1, 3)))


def test_a_job_on_a_failed_node_is_found() -> None:
    one = Scenario("a")
    one.assign(a=(4, 5))
    with pytest.raises(InvariantBroken, match=r"a not to be on failed devices \[4, 5\]"):
        check(replace(one.state, cluster=one.state.cluster.without({1})))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": JobState.CANCELLED}, "a not to go from RUNNING to CANCELLED"),
        ({"attempt": 4}, "a started at most once"),
        ({"num_failures": -1}, "num_failures of job a not to shrink"),
    ],
)
def test_an_impossible_step_is_found(changes: dict[str, Any], message: str) -> None:
    one = Scenario("a")
    one.assign(a=(0,))
    after = replace(broken(one.state, "a", **changes), num_events=one.state.num_events + 1)
    with pytest.raises(InvariantBroken, match=message):
        check_step(one.state, after)


def test_lost_jobs_time_running_backward_and_uncounted_events_are_found() -> None:
    state = sound()
    more = replace(state, num_events=state.num_events + 1)
    check_step(state, more)
    for after, message in (
        (state, "one event more"),
        (replace(more, now_s=0.0), "time not to run backwards"),
        (replace(more, jobs=JobTable()), "at most one job more"),
    ):
        with pytest.raises(InvariantBroken, match=message):
            check_step(state, after)
