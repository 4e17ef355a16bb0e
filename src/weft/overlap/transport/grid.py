"""Many workers, over gloo: a grid, so that each worker exchanges messages with its row and its column only.

    reduce   every worker sends each worker of its row what it contributes to the shards that one is the delegate for
             each delegate sums its row's contributions and sends each sum to the shard's owner, in its column
             the owner sums the rows' sums
    gather   the owner sends its shard's new values to the delegates in its column
             each delegate sends all shards it is the delegate for to its row

A worker sends (P-1)/P of a bucket, as with direct messages, with two latencies instead of one.  host_layout.py has the
shape of the grid and the delegates; host_sum.py has the order of both sums.  [Note: why a thread] is in relay.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from weft.overlap.transport.base import Exchange
from weft.overlap.transport.gloo import GlooTransport
from weft.overlap.transport.host_layout import HostLayout
from weft.overlap.transport.host_sum import add_row, total_of
from weft.overlap.transport.messages import MessageKind, Messages
from weft.overlap.transport.relay import Awaited, Relay, RelayThread

# The row's contributions to a shard, where their sum goes, and what sends it to the shard's owner.
Sum = tuple[list[torch.Tensor], torch.Tensor, Callable[[], Any] | None]


class GridTransport(GlooTransport):
    """Two stages of messages; everything that is not a stage is as with direct messages."""

    def __init__(self, messages: Messages, layout: HostLayout, timeout_s: float) -> None:
        super().__init__(messages, layout)
        self._timeout_s = timeout_s
        self._row = layout.host_of[self.rank]
        self._place = layout.neighbors(self.rank).index(self.rank)
        self._mates = [mate for mate in layout.neighbors(self.rank) if mate != self.rank]
        # The shards that each worker of our row is the delegate for, and the others' among our own.
        self._shards = {mate: _span(layout.rows_of(mate)) for mate in layout.neighbors(self.rank)}
        self._passed_on = [owner for owner in layout.rows_of(self.rank) if owner != self.rank]
        # In each other row, the delegate for our shard.
        others = [row for row in range(len(layout.hosts)) if row != self._row]
        self._delegates = [layout.delegate(row, self.rank) for row in others]
        self._num_parts = len(self._mates) * (1 + len(self._passed_on))
        self.num_stage_rows = self._num_parts + len(self._delegates)
        self._max_senders = max(map(len, layout.hosts)) + max(map(len, layout.columns)) - 2
        self._sums, self._values = RelayThread("weft-row-sums"), RelayThread("weft-row-values")
        # Also at interpreter exit: a thread that returns from a tensor operation then would crash the process.
        self._stop = weakref.finalize(self, _stop, self._sums, self._values)

    # ---- reduce

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.REDUCE)
        sums = exchange.stage[self._num_parts :]
        sums[:, -1] = -1.0
        places = [*zip(self._mates, self._parts(exchange), strict=True), *zip(self._delegates, sums, strict=True)]
        exchange.reduce_works = [self.messages.recv_from[sender](place, tag) for sender, place in places]
        exchange.reduced = None

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.REDUCE)
        exchange.send[:, -1] = 1.0
        for mate in self._mates:
            exchange.send_works.append(self.messages.send_to[mate](exchange.send[self._shards[mate]], tag))
        start, parts = self._shards[self.rank].start, self._parts(exchange)
        sums: list[Sum] = []
        for owner in (*self._passed_on, self.rank):  # our own last: sums for others are sent first
            own, others = exchange.send[owner], [part[owner - start] for part in parts]
            launch = None if owner == self.rank else partial(self.messages.send_to[owner], own, tag)
            sums.append(([*others[: self._place], own, *others[self._place :]], own, launch))
        arrivals = exchange.reduce_works[: len(self._mates)]
        relay = Relay(partial(_add_up, arrivals, sums), self._timeout_s)
        # Only the relay waits for them: gloo counts each arrival once.
        exchange.reduce_works[: len(arrivals)] = [relay]
        exchange.send_works.append(Awaited(relay.wait_until_sent))
        self._sums.add(relay)

    def reduce_arrived(self, exchange: Exchange) -> bool:
        if not exchange.reduce_works:
            return exchange.reduced is not None
        relay: Relay = exchange.reduce_works[0]
        return relay.is_done.is_set() and bool((exchange.stage[self._num_parts :, -1] >= 0.0).all())

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        if exchange.reduced is None:
            self.messages.wait(exchange.reduce_works, "gradients")
            sums = exchange.stage[self._num_parts :]
            exchange.reduced = total_of([*sums[: self._row], exchange.send[self.rank], *sums[self._row :]])
        return exchange.reduced

    def _parts(self, exchange: Exchange) -> list[torch.Tensor]:
        """Where the contributions of our row mates arrive, to the shards we are the delegate for."""
        return list(exchange.stage[: self._num_parts].chunk(len(self._mates)))

    # ---- gather

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.GATHER)
        shards = exchange.region.view(self.num_workers, exchange.shard)
        places = [(owner, shards[owner]) for owner in self._passed_on]
        places += [(mate, shards[self._shards[mate]]) for mate in self._mates]
        exchange.gather_works = [self.messages.recv_from[sender](place, tag) for sender, place in places]

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.GATHER)
        shards = exchange.region.view(self.num_workers, exchange.shard)
        exchange.send_works += [self.messages.send_to[to](shards[self.rank], tag) for to in self._delegates]
        column = shards[self._shards[self.rank]]
        sends = [partial(self.messages.send_to[mate], column, tag) for mate in self._mates]
        arrivals = exchange.gather_works[: len(self._passed_on)]
        relay = Relay(partial(_pass_on, arrivals, sends), self._timeout_s)
        exchange.gather_works[: len(arrivals)] = [relay]
        exchange.send_works.append(Awaited(relay.wait_until_sent))
        self._values.add(relay)

    # ---- the rest

    def close(self) -> None:
        self._stop()
        super().close()


def _add_up(arrivals: Sequence[Any], sums: Sequence[Sum]) -> list[Any]:
    """Sum a row's contributions to each shard in place of our own, and send the sums to their owners."""
    for arrival in arrivals:
        arrival.wait()
    works = []
    for contributions, total, launch in sums:
        add_row(contributions, out=total)
        if launch is not None:
            works.append(launch())
    return works


def _pass_on(arrivals: Sequence[Any], sends: Sequence[Callable[[], Any]]) -> list[Any]:
    for arrival in arrivals:
        arrival.wait()
    return [send() for send in sends]


def _stop(*threads: RelayThread) -> None:
    for thread in threads:
        thread.stop()


def _span(shards: Sequence[int]) -> slice:
    """A grid's delegates have consecutive shards."""
    return slice(shards[0], shards[-1] + 1)
