"""Pairs are formed only where they gain something."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime
from weft.elastic import Rules, pairing, policy_named
from weft.elastic.matching import match
from weft.elastic.menu import Menu
from weft.elastic.pairing import (
    MIN_REALIZED_GAIN,
    PAIR_MODES,
    PairBook,
    PairMode,
    PairSpeeds,
    StepTimes,
    pair_sizes,
    pair_speeds,
    predicted_gain,
    refusal,
    review,
)
from weft.perf.crossover import MIN_GAIN, filler_speed, turns_speed


def snapshot_of(curves: list[SpeedCurve], *, crossover: bool = True, may_share: bool = True) -> Snapshot:
    jobs = tuple(
        JobView(JobSpec(f"j{i}", float(i), max_workers=8, may_share=may_share), curve, 1000.0)
        for i, curve in enumerate(curves)
    )
    return Snapshot(0.0, Cluster.uniform(2, 4), jobs, crossover=crossover, handover_s=0.001)


# Half of a step is spent waiting for the network at 8 workers, which are twice as fast as 4.
WAITING = SpeedCurve({4: StepTime(2.0, 0.2), 8: StepTime(1.0, 0.5)})
# Never waits.
COMPUTING = SpeedCurve({4: StepTime(2.0), 8: StepTime(1.0)})


def test_two_jobs_that_wait_for_the_network_take_turns() -> None:
    allocation = policy_named("balanced").decide(snapshot_of([WAITING, WAITING]))
    assert allocation.pairs == (("j0", "j1"),)
    assert not allocation.fillers
    assert allocation.workers == {"j0": 8, "j1": 8}
    assert allocation.num_devices() == 8


def test_exact_pairs_jobs_too_although_its_utilities_are_negative() -> None:
    allocation = policy_named("exact").decide(snapshot_of([WAITING, WAITING]))
    assert allocation.pairs == (("j0", "j1"),)
    assert allocation.workers == {"j0": 8, "j1": 8}


def test_exact_lets_a_waiting_job_share_with_a_running_one() -> None:
    half = SpeedCurve({4: StepTime(2.0, 1.0)})
    allocation = policy_named("exact").decide(snapshot_of([half, half, half]))
    assert len(allocation.pairs) == 1
    assert allocation.workers.keys() == {"j0", "j1", "j2"}


def test_a_long_job_fills_the_gaps_of_a_short_one() -> None:
    """The short job keeps its speed on all devices; the long one advances instead of waiting."""
    snapshot = snapshot_of([WAITING, COMPUTING])
    short, long = snapshot.jobs
    jobs = (replace(short, remaining_steps=10.0), replace(long, remaining_steps=1e6))
    allocation = policy_named("balanced").decide(replace(snapshot, jobs=jobs))
    assert allocation.workers == {"j0": 8, "j1": 8}
    assert allocation.fillers == {"j1"}


def test_jobs_that_never_wait_are_not_paired() -> None:
    assert policy_named("balanced").decide(snapshot_of([COMPUTING, COMPUTING])).pairs == ()


@pytest.mark.parametrize("switch", ["crossover", "may_share"])
def test_a_job_that_does_not_allow_sharing_is_never_paired(switch: str) -> None:
    snapshot = snapshot_of([WAITING, WAITING], **{switch: False})
    assert policy_named("balanced").decide(snapshot).pairs == ()


def test_the_rate_limit_does_not_tear_a_fresh_pair_apart() -> None:
    snapshot = snapshot_of([WAITING, WAITING])
    first, second = snapshot.jobs
    jobs = (
        replace(first, workers=8, partner="j1", settled_s=10.0),
        replace(second, workers=8, partner="j0", settled_s=10.0),
    )
    policy = policy_named("balanced", Rules(hold_s=300.0))
    assert policy.decide(replace(snapshot, jobs=jobs)).pairs == (("j0", "j1"),)


def test_a_lone_job_keeps_its_devices_to_itself() -> None:
    allocation = policy_named("balanced").decide(snapshot_of([WAITING]))
    assert allocation.pairs == ()
    assert allocation.workers == {"j0": 8}


@settings(max_examples=100, deadline=None)
@given(num_jobs=st.integers(2, 9), seed=st.integers(0, 10_000))
def test_matching_is_close_to_the_true_maximum(num_jobs: int, seed: int) -> None:
    """Never below 2/3 of the maximum-weight matching (odd cycles of three), usually equal to it."""
    draw = np.random.default_rng(seed)
    first, second = np.triu_indices(num_jobs, 1)
    values = draw.normal(size=len(first))
    chosen = match(np.zeros(num_jobs), first, second, values)
    members = [int(row) for index in chosen for row in (first[index], second[index])]
    assert len(members) == len(set(members))
    worth = {frozenset((int(a), int(b))): float(v) for a, b, v in zip(first, second, values, strict=True)}
    assert sum(values[index] for index in chosen) >= greatest_matching(tuple(range(num_jobs)), worth) * 2 / 3 - 1e-9


def greatest_matching(jobs: tuple[int, ...], worth: dict[frozenset[int], float]) -> float:
    """By brute force."""
    if len(jobs) < 2:
        return 0.0
    one, *others = jobs
    paired = [
        worth[frozenset((one, other))] + greatest_matching(tuple(job for job in others if job != other), worth)
        for other in others
        if worth[frozenset((one, other))] > 0
    ]
    return max([greatest_matching(tuple(others), worth), *paired])


def test_pair_sizes_stay_few_on_large_clusters() -> None:
    assert pair_sizes(64, 4).tolist()[:5] == [1, 2, 4, 6, 8]
    assert len(pair_sizes(4096, 8)) <= 24


@given(
    exposed=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
    step_s=st.tuples(st.floats(0.05, 4.0), st.floats(0.05, 4.0)),
)
def test_the_explanation_matches_the_decision(exposed: tuple[float, float], step_s: tuple[float, float]) -> None:
    """A pair is offered to the matching exactly when the sentence about it does not refuse it."""
    steps = [StepTime(whole, whole * share) for whole, share in zip(step_s, exposed, strict=True)]
    cluster = Cluster.uniform(1, 1)
    menus = [Menu((1,), (step.step_s,), (step.exposed_s,)) for step in steps]
    offered = PairBook(0.001, cluster).options(menus, [0, 1])
    refused = refusal("b", steps[0], steps[1], 0.001)
    assert (offered is None) == (refused is not None)
    if offered is not None:
        gains = offered.first_steps_per_s[:, 0] * steps[0].step_s + offered.second_steps_per_s[:, 0] * steps[1].step_s
        for mode, gain in zip(offered.modes.tolist(), gains.tolist(), strict=True):
            assert gain == pytest.approx(predicted_gain(*steps, 0.001, PAIR_MODES[mode]))
        assert max(gains) == pytest.approx(predicted_gain(*steps, 0.001))


def test_the_prediction_is_the_one_simulated_jobs_follow() -> None:
    one, other = StepTime(1.9, 0.9), StepTime(1.3, 0.5)
    gains = {mode: predicted_gain(one, other, 0.0005, mode) for mode in PairMode}
    assert gains == {
        PairMode.TURNS: turns_speed(one, other, 0.0005).gain,
        PairMode.SECOND_FILLS: filler_speed(one, other, 0.0005).gain,
        PairMode.FIRST_FILLS: filler_speed(other, one, 0.0005).gain,
    }


def test_a_pair_that_gains_too_little_is_refused_with_the_figures() -> None:
    reason = refusal("b", StepTime(1.0, 0.01), StepTime(1.0, 0.01), handover_s=0.0005)
    assert reason is not None
    assert f"less than the {1 + MIN_GAIN:.2f}x required" in reason
    assert refusal("b", StepTime(2.0, 1.0), StepTime(2.0, 1.0), handover_s=0.0005) is None


def test_a_pair_that_gains_nothing_is_split_and_one_that_gains_continues() -> None:
    alone = (StepTime(2.0, 1.0), StepTime(2.0, 1.0))
    bad = review(alone, (0.25, 0.25 + MIN_REALIZED_GAIN / 4), expected=2.0)
    assert bad.should_split
    assert "did 1.01x the work of running one after the other, and 2.00x was expected" in bad.reason
    good = review(alone, (0.45, 0.45), expected=2.0)
    assert not good.should_split
    assert good.gain == pytest.approx(1.8)


@st.composite
def queues_of_few_kinds(draw: st.DrawFn) -> Snapshot:
    """Several jobs per speed curve, waiting or running, on few devices."""
    curves = []
    for _ in range(draw(st.integers(1, 3))):
        base_s, share = draw(st.floats(0.1, 4.0)), draw(st.floats(0.0, 0.8))
        steps_s = {size: base_s / size**0.8 for size in (1, 2, 4)}
        curves.append(SpeedCurve({size: StepTime(step_s, step_s * share) for size, step_s in steps_s.items()}))
    jobs = []
    free = 8
    for index in range(draw(st.integers(4, 12))):
        workers = draw(st.sampled_from([size for size in (0, 1, 2, 4) if size <= free]))
        free -= workers
        steps, restart_s = draw(st.floats(1.0, 1e5)), draw(st.sampled_from([0.0, 30.0]))
        spec = JobSpec(f"j{index}", float(index), max_workers=4)
        jobs.append(JobView(spec, draw(st.sampled_from(curves)), steps, restart_s, workers))
    return Snapshot(0.0, Cluster.uniform(2, 4), tuple(jobs), crossover=True, handover_s=0.001)


@pytest.mark.parametrize("name", ["balanced", "exact"])
@settings(max_examples=150, deadline=None)
@given(snapshot=queues_of_few_kinds())
def test_no_pair_is_lost_because_the_search_ends_early(name: str, snapshot: Snapshot) -> None:
    early, thorough = policy_named(name), policy_named(name)
    thorough._max_with_pairs = lambda *_: np.inf  # type: ignore[attr-defined]
    assert early.decide(snapshot) == thorough.decide(snapshot)


def test_menus_that_nobody_shares_are_not_compared_as_menus() -> None:
    menus = [Menu((1,), (1.0 + index,), (0.5,)) for index in range(6)]
    assert PairBook(0.001, Cluster.uniform(1, 1)).ways(menus) is None
    assert PairBook(0.001, Cluster.uniform(1, 1)).ways([menus[0], menus[0], menus[1], menus[1]]) is not None


def test_a_decision_does_not_take_longer_for_all_the_jobs_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    book, num_predicted = PairBook(0.001, Cluster.uniform(1, 1)), 0

    def counted(first: StepTimes, second: StepTimes, handover_s: float) -> dict[PairMode, PairSpeeds]:
        nonlocal num_predicted
        num_predicted += len(first[0])
        return pair_speeds(first, second, handover_s)

    def menu(number: int) -> Menu:
        return Menu((1,), (1.0 + number,), (0.5,))

    ended = [menu(number) for number in range(600)]
    for start in range(0, len(ended), 100):
        book.options(ended[start : start + 100], range(100))
    monkeypatch.setattr(pairing, "pair_speeds", counted)
    book.options([menu(0), menu(1)], range(2))
    assert 0 < num_predicted < 2 * len(ended)
