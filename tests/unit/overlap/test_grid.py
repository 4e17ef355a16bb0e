"""The grid of many workers, with messages delivered inside one process."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from tests.hang_limit import HANG_S

from weft.overlap.exchange_memory import ExchangeMemory, ExchangeShape
from weft.overlap.layout import MAX_MESSAGES
from weft.overlap.transport.base import NUM_SIGNALS, Exchange
from weft.overlap.transport.grid import GridTransport
from weft.overlap.transport.host_layout import MIN_GRID_WORKERS, HostLayout, grid_layout
from weft.overlap.transport.host_sum import total_by_host
from weft.overlap.transport.messages import Messages

SHARD = 3
ROW = SHARD + NUM_SIGNALS
SIZES = range(MIN_GRID_WORKERS, 65)


class Work:
    """A receive, or a send, which has ended as soon as it is launched."""

    def __init__(self, has_ended: Callable[[], bool] = lambda: True) -> None:
        self._has_ended = has_ended

    def wait(self) -> None:
        if not self._has_ended():
            raise RuntimeError("nothing arrived")


class Post:
    """Delivers messages whose receive is already open."""

    def __init__(self) -> None:
        self.num_sent: Counter[int] = Counter()
        self.num_received: Counter[int] = Counter()
        self._open: dict[tuple[int, int, int], tuple[torch.Tensor, threading.Event]] = {}

    def receive(self, sender: int, receiver: int, into: torch.Tensor, tag: int) -> Work:
        assert (sender, receiver, tag) not in self._open, "two messages with one tag"
        arrived = threading.Event()
        self._open[sender, receiver, tag] = into, arrived
        return Work(partial(arrived.wait, HANG_S))

    def send(self, sender: int, receiver: int, message: torch.Tensor, tag: int) -> Work:
        into, arrived = self._open.pop((sender, receiver, tag))
        into.copy_(message)
        self.num_sent[sender] += message.numel()
        self.num_received[receiver] += message.numel()
        arrived.set()
        return Work()


class DeliveredMessages(Messages):
    """To and from the workers of one row and one column, and to no others."""

    def __init__(self, rank: int, layout: HostLayout, posts: tuple[Post, Post]) -> None:
        self.rank, self.num_workers = rank, layout.num_workers
        partners = {other for circle in (*layout.hosts, *layout.columns) if rank in circle for other in circle} - {rank}
        self.send_to = {other: partial(self._send, posts, other) for other in partners}
        self.recv_from = {other: partial(self._receive, posts, other) for other in partners}

    def _send(self, posts: tuple[Post, Post], to: int, message: torch.Tensor, tag: int) -> Work:
        return posts[self._kind(tag)].send(self.rank, to, message, tag)

    def _receive(self, posts: tuple[Post, Post], sender: int, into: torch.Tensor, tag: int) -> Work:
        return posts[self._kind(tag)].receive(sender, self.rank, into, tag)

    def _kind(self, tag: int) -> int:
        return tag // MAX_MESSAGES  # in step 0

    def close(self) -> None:
        self.send_to.clear()
        self.recv_from.clear()


@dataclass(frozen=True)
class Step:
    """What all workers had after one bucket was reduced and gathered, and how many elements each sent for it."""

    layout: HostLayout
    contributions: torch.Tensor
    totals: list[torch.Tensor]
    regions: list[torch.Tensor]
    reduced: Post
    gathered: Post


@functools.cache
def step(num_workers: int, dtype: torch.dtype = torch.float32) -> Step:
    layout, posts = grid_layout(num_workers), (Post(), Post())
    shape = ExchangeShape(SHARD, ROW, dtype)
    # Each worker contributes the same to every shard: then every owner must find the same bits.
    contributions = torch.randn(num_workers, SHARD, generator=torch.Generator().manual_seed(num_workers)).to(dtype)
    workers: list[tuple[GridTransport, Exchange]] = []
    for rank in range(num_workers):
        transport = GridTransport(DeliveredMessages(rank, layout, posts), layout, HANG_S)
        memory, region = ExchangeMemory(transport), torch.zeros(num_workers * SHARD)
        memory.clear([(shape, region)])
        exchange = memory.make(0, shape, region)
        exchange.send.zero_()
        exchange.send[:, :SHARD] = contributions[rank]
        region.view(num_workers, SHARD)[rank] = rank
        workers.append((transport, exchange))
    for method in ("open_reduce", "launch_reduce", "open_gather", "launch_gather"):
        for transport, exchange in workers:
            getattr(transport, method)(exchange, 0)
    totals = [transport.finish_reduce(exchange)[:SHARD] for transport, exchange in workers]
    for transport, exchange in workers:
        transport.finish_gather(exchange)
        transport.settle_sends(exchange)
        transport.close()
    return Step(layout, contributions, totals, [exchange.region for _, exchange in workers], *posts)


def _assert_one_order(found: Step) -> None:
    expected = total_by_host(list(found.contributions.clone()), found.layout)
    assert all(torch.equal(total, expected) for total in found.totals), f"{len(found.totals)} workers"


@pytest.mark.parametrize("num_workers", SIZES)
def test_all_contributions_are_summed_in_one_order_whoever_owns_them(num_workers: int) -> None:
    _assert_one_order(step(num_workers))


def test_half_precision_contributions_are_summed_in_one_order() -> None:
    _assert_one_order(step(17, torch.bfloat16))


@pytest.mark.parametrize("num_workers", SIZES)
def test_every_worker_gets_every_shard(num_workers: int) -> None:
    expected = torch.arange(float(num_workers)).repeat_interleave(SHARD)
    assert all(torch.equal(region, expected) for region in step(num_workers).regions)


@pytest.mark.parametrize("num_workers", SIZES)
def test_a_full_grid_sends_as_many_bytes_as_direct_messages_and_an_uneven_one_few_more(num_workers: int) -> None:
    found = step(num_workers)
    is_full = len({len(row) for row in found.layout.hosts}) == 1
    reduced, gathered = found.reduced, found.gathered
    for counted, length in [
        (reduced.num_sent, ROW),
        (reduced.num_received, ROW),
        (gathered.num_sent, SHARD),
        (gathered.num_received, SHARD),
    ]:
        share = (num_workers - 1) * length
        assert set(counted.values()) == {share} if is_full else max(counted.values()) <= 1.25 * share
    assert set(reduced.num_sent.values()) == {(num_workers - 1) * ROW}
    assert set(gathered.num_received.values()) == {(num_workers - 1) * SHARD}


@pytest.mark.parametrize("num_workers", SIZES)
def test_a_worker_is_connected_to_few_others(num_workers: int) -> None:
    layout = grid_layout(num_workers)
    assert sorted(rank for column in layout.columns for rank in column) == list(range(num_workers))
    most = max(map(len, layout.hosts)) + max(map(len, layout.columns)) - 2
    assert most <= 0.6 * (num_workers - 1)


def test_sixty_four_workers_form_a_square() -> None:
    layout = grid_layout(64)
    assert {len(circle) for circle in (*layout.hosts, *layout.columns)} == {8}
