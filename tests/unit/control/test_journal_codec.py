"""What was written is read back unchanged, and what weft did not write is refused."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenario import Scenario

from weft.control.codec import CodecError, event_from_json, event_to_json, state_from_json, state_to_json
from weft.control.state import State
from weft.core.cluster import Cluster
from weft.core.events import (
    CancelRequested,
    ClockSetBack,
    DevicesAssigned,
    Event,
    Fate,
    JobChanged,
    JobsPurged,
    JobSubmitted,
    NodeDrained,
    NodeFailed,
    NodeJoined,
    NodeRepaired,
    NodeResumed,
    ProgressReported,
    WorkersExited,
    WorkersStarted,
)
from weft.core.job import JobSpec, Launch
from weft.core.step_report import Progress

moments = st.floats(0, 1e12)
words = st.text(max_size=12)
counts = st.integers(0, 10**6)
launches = st.builds(
    Launch,
    argv=st.lists(words, max_size=3).map(tuple),
    cwd=words,
    environment=st.dictionaries(words, words, max_size=2),
    max_restarts=counts,
)
specs = st.builds(
    JobSpec,
    id=words.filter(bool),
    submitted_s=moments,
    max_workers=st.integers(1, 64),
    user=words,
    weight=st.floats(0.1, 10),
    priority=st.integers(-5, 5),
    may_share=st.booleans(),
)
progress = st.builds(Progress, counts, total_steps=st.none() | counts, loss=st.none() | st.floats(-1e9, 1e9))
placed = st.dictionaries(words, st.lists(counts, max_size=3).map(tuple), max_size=3)
EVENTS: dict[type, st.SearchStrategy[Event]] = {
    JobSubmitted: st.builds(
        JobSubmitted, moments, specs, total_steps=st.none() | counts, name=words, launch=st.none() | launches
    ),
    CancelRequested: st.builds(CancelRequested, moments, words, words),
    JobChanged: st.builds(
        JobChanged, moments, words, st.none() | st.floats(0.1, 10), st.none() | counts, max_workers=counts
    ),
    DevicesAssigned: st.builds(
        DevicesAssigned,
        moments,
        placed,
        partners=st.dictionaries(words, words, max_size=2),
        fillers=st.frozensets(words, max_size=2),
        reasons=st.dictionaries(words, words, max_size=2),
    ),
    WorkersStarted: st.builds(WorkersStarted, moments, words, counts),
    ProgressReported: st.builds(ProgressReported, moments, words, counts, progress),
    WorkersExited: st.builds(WorkersExited, moments, words, counts, st.sampled_from(Fate), counts, words),
    NodeFailed: st.builds(NodeFailed, moments, counts),
    NodeRepaired: st.builds(NodeRepaired, moments, counts),
    NodeJoined: st.builds(NodeJoined, moments, words, counts),
    NodeDrained: st.builds(NodeDrained, moments, counts, words, st.booleans()),
    NodeResumed: st.builds(NodeResumed, moments, counts, st.booleans()),
    JobsPurged: st.builds(JobsPurged, moments, st.lists(words, max_size=3).map(tuple)),
    ClockSetBack: st.builds(ClockSetBack, moments),
}


@given(event=st.one_of(*EVENTS.values()))
def test_every_event_survives_the_journal(event: Event) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


def test_the_test_above_covers_every_kind_of_event() -> None:
    assert EVENTS.keys() == set(typing.get_args(Event))


def test_a_state_with_jobs_of_every_kind_survives_a_snapshot() -> None:
    one = Scenario("a", "b", "c", "d", "e", max_restarts=1)
    one.assign(a=(0, 1), d=(2,))
    one.pair("b", "c", (4, 5), filler="c")
    one.exit("a", Fate.STOPPED)
    one.exit("d", Fate.FAILED, exit_code=9)
    one.feed(ProgressReported(one.now_s, "b", 1, Progress(3, 9, step_s=0.1, loss=1.5)))
    one.feed(CancelRequested(one.now_s, "c"))
    one.feed(NodeFailed(one.now_s, 0))
    one.feed(NodeJoined(one.now_s, "gpu-7", 2))
    one.feed(NodeDrained(one.now_s, 2))
    one.feed(NodeDrained(one.now_s, 1, is_notice=True))
    again = state_from_json(json.loads(json.dumps(state_to_json(one.state))))
    assert again == one.state
    assert list(again.jobs) == list("abcde")
    assert again.jobs.active == one.state.jobs.active


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"v": 4, "event": "NodeFailed", "at_s": 1.0, "node": 1},
            "has version 4 of the format, but this weft reads 1 to 3",
        ),
        ({"v": True, "event": "NodeFailed", "at_s": 1.0, "node": 1}, "has version True"),
        ({"event": "NodeFailed", "at_s": 1.0, "node": 1}, "has version None"),
        ({"v": 3, "event": "NodeEaten", "at_s": 1.0}, "expected one of CancelRequested, ClockSetBack, DevicesAssigned"),
        ({"v": 2, "event": ["NodeFailed"], "at_s": 1.0, "node": 1}, "expected one of"),
        ({"v": 3, "event": "NodeFailed", "at_s": 1.0}, "expected an object with at_s, node"),
        ({"v": 3, "event": "NodeFailed", "at_s": 1.0, "node": 1, "rack": 2}, "expected an object with at_s, node"),
        ({"v": 3, "event": "NodeFailed", "at_s": 1.0, "node": "1"}, "node of a NodeFailed: '1': expected a whole"),
        ({"v": 3, "event": "NodeFailed", "at_s": 1.0, "node": True}, "True: expected a whole number"),
        ({"v": 3, "event": "NodeFailed", "at_s": float("nan"), "node": 1}, "expected a finite number"),
        ({"v": 2, "event": "CancelRequested", "at_s": 1, "job_id": 3}, "3: expected text"),
        (
            {"v": 2, "event": "WorkersExited", "at_s": 1, "job_id": "a", "attempt": 1, "fate": "eaten"},
            "'eaten': expected one of completed, stopped, failed, lost",
        ),
        ({"v": 2, "event": "DevicesAssigned", "at_s": 1, "devices": [1]}, "expected an object"),
        ({"v": 2, "event": "DevicesAssigned", "at_s": 1, "devices": {"a": 1}}, "1: expected a list"),
        (
            {"v": 2, "event": "JobSubmitted", "at_s": 1, "spec": {"id": "a", "submitted_s": 0, "max_workers": 0}},
            "an invalid JobSpec: job a asks for 1 to 0 workers",
        ),
        (
            {"v": 2, "event": "JobSubmitted", "at_s": 1, "spec": {"id": "a", "submitted_s": 0, "may_share": 1}},
            "may_share of a JobSpec: 1: expected true or false",
        ),
        ({"v": 1, "event": "JobSubmitted", "at_s": 1, "spec": {"id": "a", "submitted_s": 0}}, "version 1 .* has no id"),
        (
            {"v": 1, "event": "JobSubmitted", "at_s": 1, "name": "x", "spec": {"name": "a", "submitted_s": 0}},
            "version 1 of the format has no name",
        ),
        ({"v": 2, "event": "JobSubmitted", "at_s": 1, "spec": {"name": "a", "submitted_s": 0}}, "expected an object"),
        ({"v": 1, "event": "JobSubmitted", "at_s": 1, "spec": 3}, "3: expected an object"),
        (
            {"v": 2, "event": "ProgressReported", "at_s": 1, "job_id": "a", "attempt": 1, "progress": {"step": 3}},
            "version 2 of the format has no progress",
        ),
        (
            {"v": 2, "event": "ProgressReported", "at_s": 1, "job_id": "a", "attempt": 1, "loss": 1.5},
            "progress of a ProgressReported: a Progress written as .*: expected an object with step",
        ),
        (
            {"v": 3, "event": "ProgressReported", "at_s": 1, "job_id": "a", "attempt": 1, "step": 3},
            "expected an object with at_s, attempt, job_id, progress",
        ),
        ([], "expected an object with a version"),
        ("x" * 500, r"x\.\.\.: expected"),
    ],
)
def test_a_damaged_or_foreign_record_is_refused_with_what_was_expected(record: object, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        event_from_json(record)


@pytest.mark.parametrize("change", [{"jobs": {}}, {"jobs": [3]}, {"more": 1}, {"v": 9}, {"num_events": 1.5}])
def test_a_damaged_or_foreign_snapshot_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CodecError, match=r"expected|this weft reads"):
        state_from_json(state_to_json(State(Cluster((1,)))) | change)


def test_values_without_json_form_are_not_written() -> None:
    with pytest.raises(CodecError, match="nan cannot be written"):
        event_to_json(ProgressReported(1.0, "a", 1, Progress(1, loss=float("nan"))))
