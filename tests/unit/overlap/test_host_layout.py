"""Which workers share a host, and what each does for the others."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.overlap.transport.host_identity import HostIdentity, agreed_layout, own_identity
from weft.overlap.transport.host_layout import HostLayout, host_layout
from weft.overlap.transport.host_sum import add_host, total_by_host, total_of

layouts = st.lists(st.integers(0, 4), min_size=1, max_size=12).map(host_layout)


@given(layouts)
def test_every_host_has_one_delegate_for_every_row(layout: HostLayout) -> None:
    ranks = range(layout.num_workers)
    for host, workers in enumerate(layout.hosts):
        rows = [row for worker in workers for row in layout.rows_of(worker)]
        assert sorted(rows) == list(ranks)
        assert all(layout.delegate(host, row) in workers for row in ranks)
    assert all(layout.delegate(layout.host_of[rank], rank) == rank for rank in ranks)


@given(layouts)
def test_a_hosts_link_never_carries_more_than_with_direct_messages(layout: HostLayout) -> None:
    total = layout.num_workers
    for workers in layout.hosts:
        reduced = sum(row not in workers for worker in workers for row in layout.rows_of(worker))
        gathered = len(workers) * (len(layout.hosts) - 1)
        direct = len(workers) * (total - len(workers))
        assert reduced == total - len(workers) <= direct or len(layout.hosts) == 1
        assert gathered <= direct


def test_with_equal_hosts_the_delegate_has_the_owners_local_rank() -> None:
    layout = host_layout([0, 0, 0, 1, 1, 1])
    assert [layout.delegate(1, row) for row in range(6)] == [3, 4, 5, 3, 4, 5]


@given(layouts, st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]), st.integers(0, 99))
def test_both_levels_apart_give_the_bits_of_both_at_once(layout: HostLayout, dtype: torch.dtype, seed: int) -> None:
    rows = torch.randn(layout.num_workers, 50, generator=torch.Generator().manual_seed(seed)).to(dtype)
    sums = [torch.empty(50, dtype=dtype) for _ in layout.hosts]
    before = rows.clone()
    for ranks, total in zip(layout.hosts, sums, strict=True):
        add_host([rows[rank] for rank in ranks], out=total)
    assert torch.equal(rows, before)
    if layout.has_two_levels:
        assert torch.equal(total_of(sums), total_by_host(list(rows), layout))
    else:
        assert torch.equal(total_by_host(list(rows.clone()), layout), total_of(list(rows)))


def _under_torchrun(group: str, local: str, size: str, machine: str = "m") -> HostIdentity:
    return HostIdentity(machine, torchrun=(group, local, size))


def test_torchruns_numbers_are_taken_where_they_are_consistent() -> None:
    two = [_under_torchrun(str(r // 2), str(r % 2), "2") for r in range(4)]
    assert agreed_layout(two).hosts == ((0, 1), (2, 3))


def test_torchruns_numbers_that_contradict_the_machines_are_not_taken() -> None:
    stale = [_under_torchrun("0", str(r), "4", machine="ab"[r // 2]) for r in range(4)]
    assert agreed_layout(stale).hosts == ((0, 1), (2, 3))


def test_a_subgroup_of_a_torchrun_job_is_grouped_by_machine() -> None:
    some = [_under_torchrun("0", "0", "2"), _under_torchrun("1", "0", "2")]
    assert agreed_layout(some).hosts == ((0, 1),)


def test_a_given_name_overrides_everything() -> None:
    identities = [own_identity({"WEFT_HOST": name}) for name in ("x", "y", "x")]
    assert agreed_layout(identities).hosts == ((0, 2), (1,))


def test_workers_of_one_machine_share_a_host() -> None:
    assert agreed_layout([own_identity({}), own_identity({})]).hosts == ((0, 1),)
