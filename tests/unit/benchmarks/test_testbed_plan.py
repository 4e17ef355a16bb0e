from __future__ import annotations

import pytest
from benchmarks.testbed_plan import (
    BURST_BYTES,
    NetworkPlan,
    Owner,
    owner_of,
    worker_command,
    worker_environment,
)

from weft.errors import UsageError

PLAN = NetworkPlan(Owner(pid=41, born_ticks=977), num_hosts=3, rate_bits_per_s=1e9)


def test_the_machines_own_network_is_never_touched() -> None:
    for command in (*PLAN.build(), *PLAN.reshape(5e8)):
        makes_a_namespace = command[:2] == ("ip", "netns")
        acts_inside_one = command[1] == "-n" and command[2] in PLAN.namespaces
        assert makes_a_namespace or acts_inside_one, command
        assert command[0] in ("ip", "tc")


def test_every_cable_is_shaped_both_ways_from_the_start() -> None:
    shaped = {(command[2], command[6]) for command in PLAN.build() if command[0] == "tc"}
    sending = {(PLAN.host(index), "eth0") for index in range(3)}
    receiving = {(PLAN.switch, f"port{index}") for index in range(3)}
    assert shaped == sending | receiving


def test_between_two_hosts_the_sender_alone_is_shaped() -> None:
    pair = NetworkPlan(Owner(pid=41, born_ticks=977), num_hosts=2, rate_bits_per_s=1e9)
    shaped = [(command[2], command[6]) for command in pair.build() if command[0] == "tc"]
    assert shaped == [(pair.host(0), "eth0"), (pair.host(1), "eth0")]


def test_a_new_rate_reaches_the_same_links_without_rebuilding() -> None:
    before = {(command[2], command[6]) for command in PLAN.build() if command[0] == "tc"}
    commands = PLAN.reshape(2.5e8)
    assert {(command[2], command[6]) for command in commands} == before
    assert all("250000000bit" in command and "change" in command for command in commands)


def test_an_offloaded_packet_passes_in_one_piece() -> None:
    assert BURST_BYTES >= 2 * 64 * 1024


def test_two_testbeds_share_no_name() -> None:
    other = NetworkPlan(Owner(pid=41, born_ticks=978), num_hosts=3, rate_bits_per_s=1e9)
    assert not set(PLAN.namespaces) & set(other.namespaces)


def test_own_namespaces_are_recognized_and_others_left_alone() -> None:
    assert {owner_of(name) for name in PLAN.namespaces} == {PLAN.owner}
    for foreign in (
        "px0",
        "weft",
        "weft-41-977",
        "weft-41-977-host",
        "my-weft-41-977-host0",
        "weft-x-1-host0",
    ):
        assert owner_of(foreign) is None


def test_workers_find_each_other_as_under_torchrun() -> None:
    environments = [worker_environment(PLAN, rank) for rank in range(3)]
    assert [env["RANK"] for env in environments] == ["0", "1", "2"]
    assert {env["WORLD_SIZE"] for env in environments} == {"3"}
    assert {env["MASTER_ADDR"] for env in environments} == {PLAN.address(0)}
    assert len({env["MASTER_PORT"] for env in environments}) == 1


def test_a_worker_runs_on_its_host_and_core() -> None:
    command = worker_command(PLAN, 2, 1, ("python", "train.py"))
    assert command[:4] == ("ip", "netns", "exec", PLAN.host(2))
    assert command[4:] == ("taskset", "-c", "1", "python", "train.py")


@pytest.mark.parametrize("rate_bits_per_s", [0, -1, 1e4, 1e12, float("nan")])
def test_an_impossible_link_rate_is_refused(rate_bits_per_s: float) -> None:
    with pytest.raises(UsageError, match="bit/s"):
        PLAN.reshape(rate_bits_per_s)


@pytest.mark.parametrize("num_hosts", [0, -2, 300])
def test_a_number_of_hosts_that_does_not_fit_is_refused(num_hosts: int) -> None:
    with pytest.raises(UsageError, match="hosts"):
        NetworkPlan(Owner(1, 1), num_hosts, 1e9)
