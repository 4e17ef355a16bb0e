"""A decision becomes devices, and jobs that need not move are left where they are."""

from __future__ import annotations

from scenario import Scenario

from weft.control.assignment import assignment
from weft.core.events import CancelRequested, Fate
from weft.core.snapshot import Allocation


def test_jobs_keep_their_devices_when_others_come() -> None:
    one = Scenario("a", "b")
    one.assign(a=(2, 3))
    event = assignment(one.state, Allocation({"a": 2, "b": 4}), 9.0)
    assert event is not None
    assert event.devices == {"a": (2, 3), "b": (4, 5, 6, 7)}


def test_an_allocation_that_is_in_force_or_on_its_way_is_no_news() -> None:
    one = Scenario("a", "b")
    assert assignment(one.state, Allocation({}), 9.0) is None
    one.assign(a=(0, 1))
    assert assignment(one.state, Allocation({"a": 2, "b": 0}), 9.0) is None
    one.assign(a=(0, 1, 2))
    assert assignment(one.state, Allocation({"a": 3}), 9.0) is None, "it stops, to start on three"


def test_a_job_on_its_way_is_not_sent_elsewhere() -> None:
    one = Scenario("a", "b")
    one.assign(a=(0, 1))
    one.assign(a=(4, 5))
    event = assignment(one.state, Allocation({"a": 2, "b": 1}), 9.0)
    assert event is not None
    assert event.devices["a"] == (4, 5)


def test_a_pair_gets_the_same_devices_and_its_roles() -> None:
    one = Scenario("a", "b")
    event = assignment(one.state, Allocation({"a": 2, "b": 2}, (("b", "a"),), frozenset({"b"})), 9.0, {"a": "why"})
    assert event is not None
    assert event.devices["a"] == event.devices["b"]
    assert (event.partners, event.fillers, event.reasons) == ({"a": "b", "b": "a"}, {"b"}, {"a": "why"})
    one.feed(event)
    assert one.job("a").reason == "why"
    assert assignment(one.state, Allocation({"a": 2, "b": 2}, (("a", "b"),), frozenset({"b"})), 9.0) is None
    turns = assignment(one.state, Allocation({"a": 2, "b": 2}, (("a", "b"),)), 9.0)
    assert turns is not None
    assert one.feed(turns) == ()


def test_a_decision_made_before_a_job_went_away_still_serves_the_others() -> None:
    one = Scenario("a", "b", "c")
    one.assign(a=(0, 1))
    allocation = Allocation({"a": 2, "b": 2, "c": 1}, (("a", "b"),))
    one.feed(CancelRequested(one.now_s, "a"))
    event = assignment(one.state, allocation, 9.0)
    assert event is not None
    assert event.devices.keys() == {"b", "c"}
    assert event.partners == {}
    one.exit("a", Fate.STOPPED)
    event = assignment(one.state, allocation, 9.0)
    assert event is not None
    assert event.devices.keys() == {"b", "c"}
