"""Which job gets the device: never two at once, each in time, and with the promised shares."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_host import Clock, Host, Job, Network, held_s, overlaps, run_host

from weft.crossover.arbiter import Arbiter
from weft.crossover.lease_events import Asked, Grant, Joined, Left, Released, RoleChanged, Ticked
from weft.crossover.phases import Role, TurnLimits

LIMITS = TurnLimits(soft_s=0.5, hard_s=2.0, filler_patience_s=3.0)


@st.composite
def any_jobs(draw: st.DrawFn) -> list[Job]:
    num = draw(st.integers(2, 4))
    return [
        Job(
            f"job{i}",
            turn_s=draw(st.floats(0.005, 1.0)),
            gap_s=draw(st.floats(0.0, 1.0)),
            num_turns=draw(st.integers(1, 8)),
            role=draw(st.sampled_from(list(Role))),
            weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
            border_s=draw(st.sampled_from([None, 0.01, 0.1])),
            starts_s=draw(st.floats(0.0, 1.0)),
            dies_in_turn=draw(st.sampled_from([None, None, 1])),
            stopped=draw(st.sampled_from([None, None, (0, 5.0)])),
        )
        for i in range(num)
    ]


@settings(max_examples=60, deadline=None)
@given(jobs=any_jobs())
def test_two_jobs_never_hold_valid_tokens_at_once_and_all_finish(jobs: list[Job]) -> None:
    host = run_host(*jobs, limits=LIMITS)
    assert overlaps(host) == []
    assert all(worker.is_done for worker in host.workers.values())
    tokens = [piece.token for piece in host.pieces]
    assert tokens == sorted(tokens)


@settings(max_examples=60, deadline=None)
@given(jobs=any_jobs())
def test_no_job_waits_longer_than_the_limits_allow(jobs: list[Job]) -> None:
    host = run_host(*jobs, limits=LIMITS)
    a_turn_s = LIMITS.hard_s + LIMITS.lockstep_courtesy_s + 2 * LIMITS.tick_s
    for worker in host.workers.values():
        # A job that has waited for the hard limit goes first, behind those that have waited even longer.
        patience_s = LIMITS.filler_patience_s if worker.job.role is Role.FILLER else 0.0
        assert worker.longest_wait_s <= patience_s + LIMITS.hard_s + len(jobs) * a_turn_s


def test_equal_jobs_alternate_without_being_interrupted() -> None:
    job = Job("a", turn_s=0.5, gap_s=0.5, num_turns=20, border_s=0.01)
    host = run_host(job, replace(job, name="b"))
    turns = [(piece.job, piece.turn) for piece in host.pieces]
    assert len(turns) == len(set(turns)) == 40
    assert [name for name, _ in turns[:10]] == ["a", "b"] * 5


def test_a_job_with_short_turns_is_not_slower_than_on_half_a_device() -> None:
    long = Job("long", turn_s=1.0, gap_s=0.1, num_turns=20, border_s=0.01)
    short = Job("short", turn_s=0.2, gap_s=0.1, num_turns=1000, border_s=0.01)
    host = run_host(long, short, until_s=20.0)
    num_short = host.workers[2].turn
    num_long = host.workers[1].turn
    assert num_short * (short.turn_s + short.gap_s) >= 0.5 * 20.0 * 0.95
    assert num_long * (long.turn_s + long.gap_s) >= 0.5 * 20.0 * 0.9


def test_weights_divide_the_time_of_jobs_that_never_stop_computing() -> None:
    heavy = Job("heavy", turn_s=1000.0, gap_s=0.0, num_turns=1, weight=3.0, border_s=0.01)
    light = Job("light", turn_s=0.1, gap_s=0.0, num_turns=1000, border_s=0.01)
    host = run_host(heavy, light, until_s=40.0)
    assert held_s(host, "heavy", 40.0) == pytest.approx(30.0, rel=0.1)


def test_a_job_that_never_communicates_is_asked_to_give_way() -> None:
    endless = Job("endless", turn_s=1000.0, gap_s=0.0, num_turns=1, border_s=0.01)
    other = Job("other", turn_s=0.1, gap_s=0.1, num_turns=10, starts_s=0.1)
    host = run_host(endless, other, limits=LIMITS, until_s=30.0)
    assert host.workers[2].is_done
    assert host.workers[2].longest_wait_s <= LIMITS.soft_s + LIMITS.tick_s + 0.02
    assert host.arbiter.num_overruled == 0


def test_two_jobs_that_never_communicate_share_the_device() -> None:
    endless = Job("a", turn_s=1000.0, gap_s=0.0, num_turns=1, border_s=0.01)
    host = run_host(endless, replace(endless, name="b"), limits=LIMITS, until_s=20.0)
    assert held_s(host, "a", 20.0) == pytest.approx(10.0, abs=1.0)


def test_a_holder_without_borders_is_overruled_and_its_token_is_worth_nothing() -> None:
    deaf = Job("deaf", turn_s=100.0, gap_s=0.0, num_turns=1)
    other = Job("other", turn_s=0.1, gap_s=0.1, num_turns=5, starts_s=1.0)
    host = run_host(deaf, other, limits=LIMITS, until_s=50.0)
    assert host.workers[2].is_done
    assert host.arbiter.num_overruled == 1
    assert host.workers[2].longest_wait_s == pytest.approx(LIMITS.hard_s, abs=2 * LIMITS.tick_s)


def test_a_stopped_holder_asks_again_when_it_wakes() -> None:
    stopped = Job("stopped", turn_s=0.2, gap_s=0.1, num_turns=4, border_s=0.01, stopped=(1, 6.0))
    other = Job("other", turn_s=0.2, gap_s=0.1, num_turns=40, border_s=0.01)
    host = run_host(stopped, other, limits=LIMITS)
    assert all(worker.is_done for worker in host.workers.values())
    assert host.arbiter.num_overruled == 1
    assert overlaps(host) == []


def test_a_primary_keeps_its_speed_and_the_filler_gets_most_of_the_gaps() -> None:
    primary = Job("primary", turn_s=0.6, gap_s=0.4, num_turns=30, role=Role.PRIMARY, border_s=0.005)
    filler = Job("filler", turn_s=0.5, gap_s=0.05, num_turns=1000, role=Role.FILLER, border_s=0.005)
    host = run_host(primary, filler, until_s=29.0)
    assert host.workers[1].turn >= 27  # alone it would have made 29 turns
    assert held_s(host, "filler", 29.0) >= 0.6 * 0.4 * 29


def test_a_filler_of_one_worker_uses_the_gaps_of_a_job_on_two_hosts() -> None:
    clock = Clock()
    network = Network(clock)
    hosts = [Host(clock), Host(clock, lag_s=0.001)]
    wide = Job("wide", turn_s=0.3, gap_s=0.3, num_turns=20, role=Role.PRIMARY, border_s=0.01)
    for host in hosts:
        host.add(wide, network)
    single = hosts[0].add(Job("single", turn_s=0.1, gap_s=0.0, num_turns=30, role=Role.FILLER, border_s=0.01), network)
    clock.run()
    assert single.is_done
    wide_end_s = max(piece.end_s for piece in hosts[1].pieces if piece.job == "wide")
    assert wide_end_s <= 20 * 0.6 * 1.05


def test_a_starving_filler_is_served_before_its_peers_time_out() -> None:
    primary = Job("primary", turn_s=1000.0, gap_s=0.0, num_turns=1, role=Role.PRIMARY, border_s=0.01)
    filler = Job("filler", turn_s=0.1, gap_s=0.0, num_turns=3, role=Role.FILLER, border_s=0.01)
    host = run_host(primary, filler, limits=LIMITS, until_s=40.0)
    assert host.workers[2].is_done


def test_lockstep_gives_one_turn_each_whatever_their_lengths() -> None:
    jobs = [
        Job(name, turn_s=turn_s, gap_s=0.05, num_turns=8, role=Role.LOCKSTEP, border_s=0.01)
        for name, turn_s in (("a", 0.3), ("b", 0.05), ("c", 0.1))
    ]
    host = run_host(*jobs)
    assert [name for name, _ in host.granted] == ["a", "b", "c"] * 8


def test_lockstep_does_not_wait_forever_for_an_absent_job() -> None:
    jobs = [Job("a", 0.1, 0.05, 20, Role.LOCKSTEP), Job("b", 0.1, 5.0, 2, Role.LOCKSTEP)]
    host = run_host(*jobs)
    a_end_s = max(piece.end_s for piece in host.pieces if piece.job == "a")
    assert a_end_s <= 20 * (0.1 + 0.05 + TurnLimits().lockstep_courtesy_s) + 0.5


def test_when_the_holder_leaves_the_next_one_is_granted_at_once() -> None:
    arbiter = Arbiter()
    for event in (Joined(0, 1, "a"), Joined(0, 2, "b"), Asked(0, 1, 0), Asked(0, 2, 0)):
        arbiter.handle(event)
    assert arbiter.handle(Left(0.1, 1)) == [Grant(2, 2)]


def test_a_stale_token_gives_nothing_back() -> None:
    arbiter = Arbiter()
    for event in (Joined(0, 1, "a"), Joined(0, 2, "b"), Asked(0, 1, 0), Asked(0, 2, 0), Released(0.1, 1, 1, 1)):
        arbiter.handle(event)
    arbiter.handle(Released(0.2, 1, 1, 1))
    arbiter.handle(Released(0.2, 2, 1, 1))
    assert (arbiter.holder, arbiter.token) == (2, 2)


def test_a_job_made_filler_while_it_runs_gives_way_from_then_on() -> None:
    arbiter = Arbiter()
    for event in (Joined(0, 1, "a"), Joined(0, 2, "b"), Asked(0, 1, 0), Asked(0.01, 2, 0)):
        arbiter.handle(event)
    arbiter.handle(Ticked(0.02))
    assert not arbiter.is_asked_back
    arbiter.handle(RoleChanged(0.03, "a", Role.FILLER))
    assert arbiter.is_asked_back


def test_a_new_role_does_not_cost_a_job_its_weight() -> None:
    arbiter = Arbiter()
    arbiter.handle(Joined(0, 1, "a", weight=3.0))
    arbiter.handle(RoleChanged(0.1, "a", Role.PRIMARY))
    assert (arbiter.members[1].role, arbiter.members[1].weight) == (Role.PRIMARY, 3.0)


def test_a_clock_that_runs_backward_costs_no_job_its_turn() -> None:
    arbiter = Arbiter()
    for event in (Joined(5, 1, "a"), Asked(5, 1, 0), Released(1, 1, 1, 1), Asked(0, 1, 1)):
        arbiter.handle(event)
    assert arbiter.members[1].virtual_s >= 0
    assert arbiter.holder == 1
