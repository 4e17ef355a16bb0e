"""Every reason that a decision can give is true: each number in it is one that somebody declared, measured or chose."""

from __future__ import annotations

import dataclasses
import random
import re
import typing
from collections.abc import Callable

import pytest
from tests.unit.daemon.test_knowledge import report
from tests.unit.daemon.test_pairing_admission import SharingWorld
from tests.unit.daemon.test_scheduling import World

from weft.control.queue_order import PATIENCE_S
from weft.control.state import Job, State
from weft.core.events import CancelRequested, DevicesAssigned, Fate, NodeFailed, WorkersExited
from weft.core.reason import AtMaximum, ClusterTooSmall, Reason, code_of, in_words
from weft.core.speed import StepTime
from weft.daemon import job_reasons
from weft.elastic.pairing import PairMode, predicted_gain
from weft.elastic.registry import POLICIES

CODES = {kind.__name__ for kind in typing.get_args(Reason)}
HOLD_S = 37.0
"""No other number in these tests is 37."""


def numbers(sentence: str) -> list[float]:
    """All numbers in a sentence; those inside a word, such as the 2 of ``job2``, do not count."""
    return [float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?=x?\b)", sentence)]


def known_numbers(world: World, job: Job, reason: Reason) -> set[float]:
    """What a sentence about the job may mention, from where it comes from rather than from the reason."""
    spec, cluster = job.spec, world.state.cluster
    known: set[float] = {*spec.allowed_sizes(cluster.num_devices), len(job.wanted), cluster.num_devices, HOLD_S}
    if code_of(reason) in ("Resources", "Reserved", "Priority", "ClusterTooSmall"):
        known.add(spec.min_workers)
    if code_of(reason) in ("Preempted", "Reserved"):
        known |= set(range(1, 1 + cluster.num_devices)) | {len(world.state.jobs.active)}
    measured = world.knowledge.of(job.id)
    for shape in measured.samples:
        step_s = measured.median(shape).step_s
        known |= {float(f"{step_s:.3g}"), float(f"{step_s * 1e3:.3g}")}
    return known


def check_sentences(world: World, decided: typing.Any) -> set[str]:
    """Check the reason of every job in a decision; returns their codes."""
    found = set()
    for job in world.state.jobs.active.values():
        if job.is_cancelled:
            continue
        reason = job_reasons.why(decided, job, world.scheduler.guarded, world.knowledge)
        sentence = in_words(reason, world.state.name_of)
        workers = len(decided.event.devices.get(job.id, ()))
        assert len(job.id) == 1 or job.id not in re.findall(r"\w+", sentence), sentence
        assert sentence.startswith(("waits", "gave up", "the quota of")) == (workers == 0), (workers, sentence)
        for field in dataclasses.fields(reason):
            if field.name == "workers":
                assert getattr(reason, "workers") == workers, (sentence, workers)  # noqa: B009
        if code_of(reason) != "SharedWith":
            after = dataclasses.replace(job, wanted=decided.event.devices.get(job.id, ()))
            invented = set(numbers(sentence)) - known_numbers(world, after, reason)
            assert not invented, (code_of(reason), sentence)
        found.add(code_of(reason))
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_every_number_in_a_reason_of_a_random_queue_has_a_source(policy: str, seed: int) -> None:
    draw = random.Random(f"{policy} {seed}")
    world = World(4, policy=policy, hold_s=HOLD_S, quotas={"ana": 2})
    for turn in range(12):
        least = draw.choice([1, 1, 1, 2, 3])
        world.submit(
            f"job{turn}",
            max_workers=draw.randint(least, 6),
            min_workers=least,
            total_steps=draw.choice([None, 100, 5000]),
            priority=draw.choice([0, 0, 5]),
            user=draw.choice(["ana", "bo"]),
        )
        decided = world.scheduler.decide(world.state, world.knowledge, world.now_s)
        check_sentences(world, decided)
        world.decide()
        for job in list(world.state.jobs.active.values()):
            if job.devices and draw.random() < 0.7:
                world.run(job.id, step_s_alone=draw.choice([0.2, 1.0, 3.0]))
            elif job.devices and draw.random() < 0.2:
                world.happen(WorkersExited(world.now_s, job.id, job.attempt, Fate.COMPLETED))
        world.now_s += draw.choice([1.0, 20.0, 100.0])


# Every code, produced on purpose ----------------------------------------------------------------------------------


def told(world: World, name: str) -> tuple[str, str]:
    job = world.state.jobs[name]
    return job.reason_code, job.reason


def lone(max_workers: int = 8, num_devices: int = 8, policy: str = "balanced", **values: object) -> World:
    world = World(num_devices, policy=policy, hold_s=HOLD_S)
    world.submit("a", max_workers=max_workers, **values)  # type: ignore[arg-type]
    world.decide()
    return world


def test_a_new_job_explores_and_says_what_comes_next() -> None:
    world = lone()
    assert told(world, "a") == ("Exploring", "1 worker for at least 37 s to measure its speed, then up to 2")
    world.run("a")
    world.now_s += 1.0
    world.decide()
    assert told(world, "a") == ("Exploring", "1 worker for at least 37 s to measure its speed, then up to 2")


def test_a_program_that_never_reports_is_not_said_to_be_measured_forever() -> None:
    world = lone()
    world.now_s += HOLD_S + 1.0
    world.decide()
    assert told(world, "a") == ("NoReport", "1 worker; no step reported yet")


def test_a_plain_script_that_waits_claims_no_steps_and_no_time() -> None:
    world = World(1)
    world.submit("a", max_workers=1, total_steps=None)
    world.submit("b", max_workers=4, total_steps=None)
    world.decide()
    assert told(world, "a") == ("AsRequested", "1 worker, as requested")
    assert told(world, "b") == ("Resources", "waits for 1 device")
    assert not world.scheduler.queue["b"].is_certain, "an expected start would be invented"


def test_a_declared_length_without_a_measured_speed_gives_no_expected_start() -> None:
    world = World(1)
    world.submit("a", max_workers=1, total_steps=100)
    world.submit("b", max_workers=1)
    world.decide()
    assert not world.scheduler.queue["b"].is_certain
    world.run("a", step_s_alone=2.0)
    world.decide()
    place = world.scheduler.queue["b"]
    assert place.is_certain
    assert place.expected_start_s == pytest.approx(world.now_s + 2.0 * 90, abs=11.0)


def too_small() -> tuple[World, str]:
    world = World(4)
    world.submit("a", max_workers=4, min_workers=4)
    world.happen(NodeFailed(0.0, 0))
    world.decide()
    return world, "a"


def reserved() -> tuple[World, str]:
    world = World(2)
    world.has_run("train-1", step_s=1.0)
    world.submit("a", max_workers=1, total_steps=None)
    world.decide()
    world.submit("two", max_workers=2, min_workers=2)
    world.decide()
    return world, "two"


def held_back(total_steps: int | None) -> Callable[[], tuple[World, str]]:
    def make() -> tuple[World, str]:
        world, _ = reserved()
        world.now_s += PATIENCE_S + 1
        world.submit("later", max_workers=1, total_steps=total_steps, title="train-2")
        world.decide()
        return world, "later"

    return make


def outranked() -> tuple[World, str]:
    world = World(1)
    world.submit("first", max_workers=1, priority=5)
    world.submit("a", max_workers=1)
    world.decide()
    return world, "a"


def over_quota() -> tuple[World, str]:
    world = World(4, quotas={"ana": 1})
    for name in "ab":
        world.submit(name, max_workers=1, user="ana")
    world.decide()
    return world, "b"


def not_reported() -> tuple[World, str]:
    """Restarted with more workers, which have not reported."""
    world = grown(1.0)
    world.now_s += 1.0
    world.decide()
    return world, "a"


def not_resizable() -> tuple[World, str]:
    world = World(4)
    world.knowledge.of("a").can_resume = False
    world.submit("a", max_workers=4)
    world.decide()
    world.now_s += 1.0
    world.decide()
    return world, "a"


def grown(*times_s: float, num_devices: int = 8, max_workers: int = 8) -> World:
    """A job that was measured at 1, 2, 4, ... workers."""
    world = World(num_devices, hold_s=HOLD_S)
    world.submit("a", max_workers=max_workers, total_steps=1_000_000)
    for step_s in times_s:
        world.decide()
        job = world.state.jobs["a"]
        for step in range(1, 11):
            world.knowledge.reported(job, report(job, step, step_s), world.now_s)
        world.now_s += 100.0
    world.decide()
    return world


def at_maximum() -> tuple[World, str]:
    return grown(1.0, 0.5, max_workers=2), "a"


def no_room() -> tuple[World, str]:
    world = World(2, hold_s=HOLD_S)
    for name in "ab":
        world.submit(name, total_steps=100_000)
    world.decide()
    for name in "ab":
        world.run(name)
    world.now_s += 100.0
    world.decide()
    return world, "a"


def no_faster() -> tuple[World, str]:
    world = grown(1.0, 1.4)
    world.run("a")
    world.now_s += 100.0
    world.decide()
    return world, "a"


def hold() -> tuple[World, str]:
    world = grown(1.0)
    world.run("a")
    world.now_s += 1.0
    world.decide()
    return world, "a"


def shared() -> tuple[World, str]:
    world = SharingWorld()
    world.three_jobs()
    world.decide()
    return world, "a"


def policy_choice() -> tuple[World, str]:
    world = World(4, policy="fifo")
    world.submit("a", max_workers=3, min_workers=3)
    world.submit("b", max_workers=3, min_workers=3)
    world.submit("c", max_workers=1)
    world.decide()
    return world, "c"


PRODUCED: dict[str, Callable[[], tuple[World, str]]] = {
    "ClusterTooSmall": too_small,
    "Reserved": reserved,
    "HeldBack": held_back(1_000_000),
    "UnknownLength": held_back(None),
    "Priority": outranked,
    "Quota": over_quota,
    "NoReport": not_reported,
    "NotResizable": not_resizable,
    "AtMaximum": at_maximum,
    "NoRoom": no_room,
    "NoFaster": no_faster,
    "Hold": hold,
    "SharedWith": shared,
    "PolicyChoice": policy_choice,
}
SENTENCES = {
    "ClusterTooSmall": "waits for 4 devices, but only 0 are in service",
    "Reserved": "waits for 2 devices; a must end first",
    "HeldBack": "waits so that it does not delay two, which came first",
    "UnknownLength": "waits so that it does not delay two; how long it would take is unknown",
    "Priority": "waits for 1 device; jobs with a higher priority come first",
    "Quota": "the quota of ana leaves too few devices",
    "NoReport": "2 workers; no step reported yet",
    "NotResizable": "4 workers; cannot be resized, since it cannot resume after a stop",
    "AtMaximum": "2 workers, the most it can use",
    "NoRoom": "1 worker; too few devices are free for 2",
    "NoFaster": "1 worker: a step took 1 s, and 1.4 s with 2 workers",
    "Hold": "2 workers; restarted less than 37 s ago",
    "PolicyChoice": "waits: policy fifo prefers other jobs",
}


@pytest.mark.parametrize("code", PRODUCED)
def test_each_situation_has_its_own_reason(code: str) -> None:
    world, name = PRODUCED[code]()
    assert told(world, name)[0] == code, told(world, name)
    if code in SENTENCES:
        assert told(world, name)[1] == SENTENCES[code]
    else:
        step = StepTime(1.0, 0.6)
        mode = PairMode.of(first_fills=world.state.jobs["a"].fills, second_fills=world.state.jobs["b"].fills)
        gain = predicted_gain(step, step, world.scheduler.options.handover_s, mode)
        assert " b on 1 device, " in told(world, name)[1]
        assert numbers(told(world, name)[1])[-1] == pytest.approx(gain, abs=0.006)
    check_sentences(world, world.scheduler.decide(world.state, world.knowledge, world.now_s))


def test_one_device_is_not_called_devices() -> None:
    assert in_words(AtMaximum(1, 4, 1)) == "1 worker, the most that fit on 1 device"
    assert in_words(ClusterTooSmall(2, 1)) == "waits for 2 devices, but only 1 is in service"


def test_every_code_is_produced_by_some_test() -> None:
    by_events = {"Queued", "Cancelled", "Completed", "Failed", "Restarting", "NodeLost", "ControllerDown", "HeldUp"}
    here = {"Exploring", "AsRequested", "Resources"}
    elsewhere = {"PolicyFailed", "Assigned", "Preempted"}  # test_failing_policy.py, test_reasons_of_moving_jobs.py
    assert {*PRODUCED, *by_events, *here, *elsewhere} == CODES


def test_events_set_reason_codes() -> None:
    world = World(2)
    world.submit("a", max_workers=1)
    assert told(world, "a") == ("Queued", "waits for its first decision")
    world.happen(CancelRequested(0.0, "a"))
    assert told(world, "a") == ("Cancelled", "cancelled by its owner")
    for name, fate, code in (
        ("b", Fate.COMPLETED, "Completed"),
        ("c", Fate.FAILED, "Failed"),
        ("d", Fate.LOST, "Restarting"),
    ):
        world.submit(name, max_workers=1)
        world.decide()
        world.happen(WorkersExited(world.now_s, name, 1, fate, 0 if fate is Fate.COMPLETED else 1))
        assert told(world, name)[0] == code


def test_a_sentence_of_an_older_journal_has_no_code_and_is_kept() -> None:
    world = World(2)
    world.submit("a", max_workers=1)
    world.happen(DevicesAssigned(0.0, {"a": (0,)}, reasons={"a": "a has 1 of 2 devices: 60 s to go"}))
    assert told(world, "a") == ("", "a has 1 of 2 devices: 60 s to go")


def test_explain_counts_the_steps_left_now_not_at_the_last_decision() -> None:
    world = grown(1.0, 0.6, max_workers=2, num_devices=2)
    decided = world.scheduler.decide(world.state, world.knowledge, world.now_s)
    job = world.state.jobs["a"]
    world.knowledge.reported(job, report(job, 900_000, 0.6), world.now_s)
    said = world.scheduler.explain(decided, job, world.state, world.knowledge)
    assert said is not None
    assert "100000 steps to go, about 60000 s" in said


def test_a_reason_is_reported_again_only_when_it_changes() -> None:
    world, _ = no_room()
    for _ in range(3):
        world.now_s += 1.0
        again = world.scheduler.decide(world.state, world.knowledge, world.now_s)
        assert not again.event.reasons


def test_a_name_of_any_length_leaves_the_sentence_readable() -> None:
    state = State(World(2).state.cluster)
    sentence = in_words(typing.cast(Reason, reserved_for("x" * 300)), state.name_of)
    assert len(sentence) < 120


def reserved_for(name: str) -> Reason:
    from weft.core.reason import Reserved

    return Reserved(2, (name,))
