"""Sixteen workers: a grid, or hosts whose workers are connected only to those they exchange messages with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from tests.numerics.test_hosts import on_hosts, some_tangle, trained

from training import Run, Tower, adamw, assert_equal_states, assert_same, made, sgd, with_weft
from weft.overlap.transport.grid import GridTransport
from weft.overlap.transport.hosts import HostsTransport
from weft.overlap.transport.receive_window import tcp_connections
from workers import on_workers

NUM_WORKERS = 16
ONE_PER_HOST = range(NUM_WORKERS)
FOUR_PER_HOST = [rank // 4 for rank in range(NUM_WORKERS)]
LAYOUTS: dict[str, tuple[Sequence[int], type, int]] = {
    # 15 for small collectives and optimizer state, and one a way with each of the others in a row and in a column
    "grid": (ONE_PER_HOST, GridTransport, 15 + 2 * (3 + 3)),
    # and with one worker of each other host
    "4x4": (FOUR_PER_HOST, HostsTransport, 15 + 2 * 3),
}


def _steps(run: Run) -> None:
    run.train(3)


@pytest.mark.parametrize("layout", LAYOUTS)
@on_workers(NUM_WORKERS)
def test_sixteen_workers_give_the_bits_of_overlap_off(layout: str) -> None:
    hosts, carrier, _ = LAYOUTS[layout]
    expected = trained(hosts, some_tangle, adamw, _steps, carrier, enabled=False, bucket_bytes=1 << 20)
    assert_same(trained(hosts, some_tangle, adamw, _steps, carrier, bucket_bytes=4096), expected)
    assert_same(trained(hosts, some_tangle, adamw, _steps, carrier, bucket_bytes=8192, eager=True), expected)


@on_workers(NUM_WORKERS)
def test_half_precision_gradients_of_sixteen_workers_give_the_bits_of_overlap_off() -> None:
    options = {"carrier": GridTransport, "comm_dtype": torch.bfloat16}
    expected = trained(ONE_PER_HOST, Tower, adamw, _steps, enabled=False, bucket_bytes=1 << 20, **options)
    assert_same(trained(ONE_PER_HOST, Tower, adamw, _steps, **options), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@on_workers(NUM_WORKERS)
def test_a_worker_is_connected_to_those_it_exchanges_messages_with(layout: str) -> None:
    hosts, _, expected = LAYOUTS[layout]
    before = tcp_connections()
    with on_hosts(hosts):
        run = with_weft(made(Tower), adamw)
    assert len(tcp_connections() - before) == expected
    run.train(1)
    state = run.optimizer.state_dict() if dist.get_rank() == 5 else None  # over the group for small collectives
    dist.barrier()
    run.handle.detach()
    assert tcp_connections() <= before
    if state is not None:
        assert len(state["state"]) == len(list(run.model.parameters()))
        assert_equal_states(state, run.optimizer.state_dict())


@on_workers(NUM_WORKERS)
def test_a_model_dropped_by_some_workers_does_not_disturb_another() -> None:
    expected = trained(ONE_PER_HOST, Tower, sgd, _steps, GridTransport)
    with on_hosts(ONE_PER_HOST):
        kept, dropped = with_weft(made(Tower), sgd), with_weft(made(Tower), adamw)
        dropped.train(1)
        kept.train(1)
        if dist.get_rank() % 3:
            del dropped
        kept.train(1, first=1)
        dropped = None
        third = with_weft(made(Tower), adamw)  # closes the connections of the second
        third.train(1)
        kept.train(1, first=2)
        assert_same(kept.state(), expected)
        kept.handle.detach()
        third.handle.detach()


@on_workers(NUM_WORKERS + 1)
def test_sixteen_of_seventeen_workers_train_in_a_group_of_their_own() -> None:
    group = dist.new_group(range(1, NUM_WORKERS + 1))
    if dist.get_rank() == 0:
        return
    found = []
    for enabled in (False, True):
        with on_hosts(range(NUM_WORKERS + 1)):
            run = with_weft(made(Tower), sgd, enabled=enabled, process_group=group)
        assert type(run.handle.schedule.transport) is GridTransport
        found.append(run.train(2).state())
        run.handle.detach()
    assert_same(*found)
