"""An old state never changes, whatever happens afterwards."""

from __future__ import annotations

import pytest
from scenario import Scenario

from weft.control.reducer import reduce
from weft.core.events import CancelRequested


def test_jobs_are_listed_in_order_of_submission() -> None:
    one = Scenario("a", "b", "c", "d")
    one.feed(CancelRequested(one.now_s, "c"))
    one.feed(CancelRequested(one.now_s, "a"))
    assert list(one.state.jobs) == list("abcd")
    assert list(one.state.jobs.active) == ["b", "d"]
    assert [job.id for job in one.state.jobs.finished] == ["c", "a"]
    assert len(one.state.jobs) == 4


def test_a_state_does_not_know_the_future_of_its_jobs() -> None:
    one = Scenario("a")
    before = one.state
    one.feed(CancelRequested(one.now_s, "a"))
    assert not before.jobs["a"].state.is_final
    assert list(before.jobs.finished) == []
    one.submit("b")
    one.feed(CancelRequested(one.now_s, "b"))
    assert "b" not in before.jobs
    with pytest.raises(KeyError):
        before.jobs["b"]


def test_two_futures_of_one_state_do_not_mix() -> None:
    one = Scenario("a", "b")
    root = one.state
    left, _ = reduce(root, CancelRequested(9.0, "a"))
    right, _ = reduce(root, CancelRequested(9.0, "b"))
    assert [job.id for job in left.jobs.finished] == ["a"]
    assert [job.id for job in right.jobs.finished] == ["b"]
    assert not left.jobs["b"].state.is_final
    assert not right.jobs["a"].state.is_final
    right, _ = reduce(right, CancelRequested(10.0, "a"))
    assert [job.id for job in right.jobs.finished] == ["b", "a"]
