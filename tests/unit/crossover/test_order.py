"""All hosts grant in the same order, without asking each other, and no order can make them hang."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_host import Clock, Host, Job, Network, overlaps, run_hosts

from weft.crossover.lease_events import Ordered
from weft.crossover.order import HISTORY, HORIZON, Turn, TurnOrder, from_json, rotation, to_json


def turns_of(host: Host) -> list[tuple[str, int]]:
    return list(dict.fromkeys((piece.job, piece.turn) for piece in host.pieces))


def run_with_orders(jobs: list[Job], orders: list[TurnOrder | None], lags_s: list[float]) -> list[Host]:
    """Hosts that got these orders in advance, whichever host leads."""
    clock = Clock()
    network = Network(clock)
    hosts = [Host(clock, lag_s=lag_s) for lag_s in lags_s]
    for host, order in zip(hosts, orders, strict=True):
        if order is not None:
            host.tell(Ordered(0.0, order))
        for job in jobs:
            host.add(job, network)
    clock.run()
    return hosts


@settings(max_examples=40, deadline=None)
@given(
    names=st.permutations(["a", "b", "c"]),
    lags_s=st.lists(st.floats(0.0, 0.004), min_size=2, max_size=3),
    turn_s=st.floats(0.01, 0.2),
    late_s=st.lists(st.floats(0.0, 0.004), min_size=3, max_size=3),
)
def test_hosts_with_the_same_order_grant_in_that_order_regardless_of_arrival(
    names: list[str], lags_s: list[float], turn_s: float, late_s: list[float]
) -> None:
    order = TurnOrder(tuple(Turn(name, number) for number in range(4) for name in names))
    jobs = [
        Job(name, turn_s, gap_s=0.001, num_turns=4, starts_s=start_s)
        for name, start_s in zip("abc", late_s, strict=True)
    ]
    # All are there before the first grant; otherwise the first one would be lent the device immediately.
    blocker = Job("0", turn_s=0.01, gap_s=0.0, num_turns=1)
    for host in run_with_orders([blocker, *jobs], [order] * len(lags_s), lags_s):
        assert [turn for turn in turns_of(host) if turn[0] != "0"] == [(turn.job, turn.number) for turn in order.turns]


@settings(max_examples=30, deadline=None)
@given(
    lags_s=st.lists(st.floats(0.0, 0.003), min_size=1, max_size=3),
    turn_s=st.floats(0.02, 0.3),
    gap_s=st.floats(0.01, 0.3),
    num_jobs=st.integers(2, 3),
)
def test_followers_do_what_the_lead_does_for_equal_jobs(
    lags_s: list[float], turn_s: float, gap_s: float, num_jobs: int
) -> None:
    jobs = tuple(Job(name, turn_s, gap_s, num_turns=8, border_s=0.005) for name in "abc"[:num_jobs])
    lead, *followers = run_hosts(jobs, (0.0, *lags_s))
    for follower in followers:
        assert turns_of(follower) == turns_of(lead)


@pytest.mark.parametrize("drift", [2, 50])
@pytest.mark.parametrize("gap_s", [0.05, 0.15])
def test_a_host_whose_workers_count_differently_follows_the_lead(drift: int, gap_s: float) -> None:
    jobs = tuple(Job(name, 0.1, gap_s, num_turns=12, border_s=0.005) for name in "abc")
    lead, follower = run_hosts(jobs, (0.0, 0.001), drift)
    settled = [[turn for turn in turns_of(host) if turn[1] >= 3] for host in (lead, follower)]
    assert settled[0] == settled[1]


@settings(max_examples=30, deadline=None)
@given(
    first_s=st.tuples(st.floats(0.01, 0.3), st.floats(0.0, 0.3)),
    second_s=st.tuples(st.floats(0.01, 0.3), st.floats(0.0, 0.3)),
    lag_s=st.floats(0.0, 0.05),
)
def test_unequal_jobs_on_several_hosts_all_end_and_never_compute_together(
    first_s: tuple[float, float], second_s: tuple[float, float], lag_s: float
) -> None:
    jobs = (Job("a", *first_s, num_turns=10, border_s=0.005), Job("b", *second_s, num_turns=10, border_s=0.005))
    for host in run_hosts(jobs, (0.0, lag_s)):
        assert overlaps(host) == []
        assert all(worker.is_done for worker in host.workers.values())


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_hosts_that_grant_in_opposite_order_do_not_deadlock(num_hosts: int) -> None:
    # Every turn ends in a collective with all hosts, also those in the middle of a forward pass.
    forward = tuple(Turn(name, number) for number in range(6) for name in "ab")
    backward = tuple(Turn(name, number) for number in range(6) for name in "ba")
    orders: list[TurnOrder | None] = [TurnOrder(backward if i % 2 else forward) for i in range(num_hosts)]
    jobs = [Job(name, turn_s=0.1, gap_s=0.05, num_turns=6) for name in "ab"]
    for host in run_with_orders(jobs, orders, [0.0] * num_hosts):
        assert all(worker.is_done for worker in host.workers.values())
        assert max(piece.end_s for piece in host.pieces) < 12 * 0.4


def test_a_late_job_is_skipped_after_a_courtesy() -> None:
    order = TurnOrder((Turn("b", 0), Turn("a", 0), Turn("a", 1)))
    clock = Clock()
    network = Network(clock)
    host = Host(clock)
    host.tell(Ordered(0.0, order))
    host.add(Job("b", turn_s=0.1, gap_s=0.0, num_turns=1, starts_s=3.0), network)
    host.add(Job("a", turn_s=0.1, gap_s=0.0, num_turns=2), network)
    clock.run()
    assert turns_of(host) == [("a", 0), ("a", 1), ("b", 0)]
    assert host.pieces[0].begin_s <= 2 * host.limits.courtesy_s


@pytest.mark.parametrize("skew_s", [0.002, 0.02])
def test_jobs_returning_together_to_a_free_device_run_in_the_same_order_on_every_host(skew_s: float) -> None:
    # In phase, both exchanging while the device is free; on the second host b is always heard of a little sooner.
    clock = Clock()
    network = Network(clock)
    lead, follower = Host(clock, is_lead=True), Host(clock)
    lead.followers = [follower]
    for name in "ab":
        for host in (lead, follower):
            is_sooner = (name == "b") == (host is follower)
            job = Job(name, turn_s=0.4, gap_s=1.0, num_turns=8, starts_s=0.0 if is_sooner else skew_s)
            host.add(replace(job, gap_s=job.gap_s if is_sooner else job.gap_s + skew_s), network)
    clock.run()
    settled = [[turn for turn in turns_of(host) if turn[1] >= 2] for host in (lead, follower)]
    assert settled[0] == settled[1]


def test_without_their_lead_hosts_still_agree() -> None:
    jobs = [Job(name, turn_s=0.1, gap_s=0.05, num_turns=9) for name in "abc"]
    clock = Clock()
    network = Network(clock)
    hosts = [Host(clock, lag_s=lag_s) for lag_s in (0.0, 0.001, 0.002)]
    for host in hosts:
        host.tell(Ordered(0.0, TurnOrder((Turn("a", 0),))))
        host.tell(Ordered(0.0, None))
        for job in jobs:
            host.add(job, network)
    clock.run()
    assert turns_of(hosts[0]) == turns_of(hosts[1]) == turns_of(hosts[2])
    assert len(turns_of(hosts[0])) == 27


def test_the_rotation_serves_every_job() -> None:
    turns = {"a": 3, "b": 7, "c": 1}
    served = []
    for _ in range(6):
        job = rotation(turns)
        served.append(job)
        turns[job] += 1
    assert sorted(served) == ["a", "a", "b", "b", "c", "c"]


def test_the_lead_publishes_less_often_than_it_grants() -> None:
    published = 0
    clock = Clock()
    network = Network(clock)
    lead = Host(clock, is_lead=True)

    class Counting(Host):
        def tell(self, event: object) -> None:
            nonlocal published
            published += isinstance(event, Ordered)

    lead.followers = [Counting(clock)]
    for name in "ab":
        lead.add(Job(name, turn_s=0.1, gap_s=0.09, num_turns=40), network)
    clock.run()
    assert len(lead.granted) >= 70
    assert 5 <= published <= len(lead.granted) / 3


@given(turns=st.lists(st.tuples(st.text(max_size=5), st.integers(0, 1 << 40)), max_size=HISTORY + HORIZON))
def test_an_order_survives_the_wire(turns: list[tuple[str, int]]) -> None:
    order = TurnOrder(tuple(Turn(job, number) for job, number in turns), num_past=len(turns) // 2)
    assert from_json(to_json(order)) == order


@pytest.mark.parametrize(
    "noise",
    [
        None,
        [],
        {},
        {"turns": [["a", 1]]},
        {"turns": 1, "past": 0},
        {"turns": [["a"]], "past": 0},
        {"turns": [["a", "b"]], "past": 0},
        {"turns": [["a", 1]], "past": 2},
        {"turns": [["a", 1]] * 100, "past": 0},
    ],
)
def test_garbage_is_not_accepted_as_an_order(noise: object) -> None:
    assert from_json(noise) is None
