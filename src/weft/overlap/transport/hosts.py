"""Hosts with several workers, over gloo: two levels, so that each byte crosses a host's link once.

    reduce   every worker collects its gradients of a bucket in shared memory
             each row's delegate sums its host's contributions (in a thread: relay.py) and sends the sum to the owner
             the owner sums the hosts' sums
    gather   the owner writes its shard's new values to its host's memory and sends them to one delegate per other host
             every worker copies all shards from its host's memory

host_layout.py says which worker is the delegate for what; host_sum.py has the order of both sums.  Each worker keeps
its own parameters: sharing them would save a copy per step, but every write to one of them would change all workers'
models.

[Note: arrival]  The network thread of the host's delegate writes new values to the delegate's memory, and all of its
neighbors wait for them.  The delegate's compute thread may be busy, so the owner sends a second message behind the
values with the count of the gather; messages of one connection arrive in order.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import OverlapError
from weft.overlap.device import CPU, Device
from weft.overlap.transport.base import Exchange
from weft.overlap.transport.host_layout import HostLayout
from weft.overlap.transport.host_memory import Done, HostMemory
from weft.overlap.transport.host_sum import add_host, total_of
from weft.overlap.transport.messages import MessageKind, Messages
from weft.overlap.transport.receive_window import window_bytes
from weft.overlap.transport.relay import Awaited, Relay, RelayThread
from weft.perf.link import Link


class HostsTransport:
    """Shared memory inside a host, direct messages between hosts."""

    ordered = False
    needs_landing = True
    device: Device = CPU

    def __init__(self, messages: Messages, layout: HostLayout, memory: HostMemory) -> None:
        self.messages = messages
        self.rank = messages.rank
        self.num_workers = messages.num_workers
        self._layout = layout
        self._memory = memory
        self._sums = RelayThread("weft-host-sums")
        # Also at interpreter exit: a thread that returns from a tensor operation then would crash the process.
        self._stop = weakref.finalize(self, _stop, memory, self._sums)
        self._host = layout.host_of[self.rank]
        self._other_hosts = [h for h in range(len(layout.hosts)) if h != self._host]
        # Our own row last: sums for other hosts are sent first.
        self._sent_rows = [row for row in layout.rows_of(self.rank) if row != self.rank]
        # Which of a host's workers receives which shards' new values.
        self._rows_of = {neighbor: layout.rows_of(neighbor) for neighbor in memory.neighbors}
        # On each other host, the worker that sums our row and receives our new values.
        self._counterparts = [layout.delegate(h, self.rank) for h in self._other_hosts]
        # One row of the stage for each host's sum of our row, then one for each sum that we send.
        self.num_stage_rows = len(layout.hosts) + len(self._sent_rows)
        # Gathers whose values may already arrive.
        self._opened: set[int] = set()

    @property
    def quiet_group(self) -> dist.ProcessGroup | None:
        return self.messages.quiet_group

    def allocate(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self._memory.allocate(num_elements, dtype)

    def adapt(self, link: Link) -> bool:
        windows = [self._window(len(host), link) for host in self._layout.hosts]
        self.messages.set_window(windows[self._host])
        return any(window is None for window in windows)

    def _window(self, num_neighbors: int, link: Link) -> int | None:
        """All connections of a host's workers share its link."""
        # What was measured is what a worker sends in direct messages; a host's link carries only its workers' sums.
        share = (self.num_workers - num_neighbors) / (self.num_workers - 1)
        carried = Link(link.alpha_s, link.beta_s_per_byte / share, link.launch_s)
        return window_bytes(num_neighbors * len(self._other_hosts) + 1, carried)

    # ---- reduce

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.REDUCE)
        for host in self._other_hosts:
            exchange.stage[host][-1] = -1.0
        exchange.reduce_works = [
            self.messages.recv_from[sender](exchange.stage[host], tag)
            for host, sender in zip(self._other_hosts, self._counterparts, strict=True)
        ]
        exchange.reduced = None

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        tag = self.messages.tag(exchange, tag, MessageKind.REDUCE)
        exchange.send[:, -1] = 1.0
        self._memory.tell(Done.CONTRIBUTED, exchange.index)
        sums = exchange.stage[len(self._layout.hosts) :]
        rows = [
            (row, total, partial(self.messages.send_to[row], total, tag))
            for row, total in zip(self._sent_rows, sums, strict=True)
        ]
        count = self._memory.count(Done.CONTRIBUTED, exchange.index)
        own = (self.rank, exchange.stage[self._host], None)
        assert exchange.landing is not None
        run = partial(_add_up, self._memory, exchange.index, count, [*rows, own], exchange.send, exchange.landing)
        relay = Relay(run, self._memory.timeout_s)
        exchange.reduce_works.insert(0, relay)
        # Neighbors read our memory for their sums.
        added = partial(self._memory.await_all, Done.ADDED, exchange.index, count, "sum gradients")
        exchange.send_works += [Awaited(relay.wait_until_sent), Awaited(added)]
        self._sums.add(relay)

    def reduce_arrived(self, exchange: Exchange) -> bool:
        if not exchange.reduce_works:
            return exchange.reduced is not None
        relay: Relay = exchange.reduce_works[0]
        return relay.is_done.is_set() and all(exchange.stage[h][-1].item() >= 0.0 for h in self._other_hosts)

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        if exchange.reduced is None:
            self._wait(exchange.reduce_works, "gradients")
            exchange.reduced = total_of(list(exchange.stage[: len(self._layout.hosts)]))
        return exchange.reduced

    # ---- gather

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        """Skipped, and done in launch, if a neighbor has not copied the last step's values from our memory yet."""
        count = self._memory.count(Done.UPDATED, exchange.index)
        if all(self._memory.has_done(n, Done.TAKEN, exchange.index, count) for n in self._memory.neighbors):
            self._let_land(exchange, tag)

    def _let_land(self, exchange: Exchange, tag: int) -> None:
        landing = _shards(exchange.landing, exchange)
        values_tag = self.messages.tag(exchange, tag, MessageKind.GATHER)
        arrival_tag = self.messages.tag(exchange, tag, MessageKind.ARRIVAL)
        exchange.gather_works = []
        for row in self._sent_rows:  # the rows we sum for our host are those we receive for it
            receive = self.messages.recv_from[row]
            exchange.gather_works.append(receive(landing[row], values_tag))
            exchange.gather_works.append(receive(self._memory.arrival_of(exchange.index, row), arrival_tag))
        self._opened.add(exchange.index)

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        memory, index = self._memory, exchange.index
        count = memory.count(Done.UPDATED, index)
        self._await(partial(memory.await_all, Done.TAKEN, index, count, "copy parameters"))
        if index not in self._opened:
            self._let_land(exchange, tag)
        assert exchange.landing is not None
        _copy_shard(exchange.landing, exchange.region, self.rank, exchange.shard)
        memory.tell(Done.UPDATED, index)
        arrival = torch.tensor([count + 1], dtype=torch.int32)
        values_tag = self.messages.tag(exchange, tag, MessageKind.GATHER)
        arrival_tag = self.messages.tag(exchange, tag, MessageKind.ARRIVAL)
        own = _shards(exchange.region, exchange)[self.rank]
        for other in self._counterparts:
            send = self.messages.send_to[other]
            exchange.send_works += [send(own, values_tag), send(arrival, arrival_tag)]

    def finish_gather(self, exchange: Exchange) -> None:
        memory, index = self._memory, exchange.index
        if index not in self._opened:
            return
        count = memory.count(Done.UPDATED, index)
        self._wait(exchange.gather_works, "parameters")
        self._await(lambda: memory.await_all(Done.UPDATED, index, count, "send parameters"))
        assert exchange.landing is not None
        for neighbor, rows in self._rows_of.items():
            landing = memory.of_neighbor(exchange.landing, neighbor)
            for row in rows:
                if row not in memory.neighbors:
                    self._await(partial(memory.await_arrival, neighbor, index, row, count))
                if row != self.rank:
                    _copy_shard(exchange.region, landing, row, exchange.shard)
        memory.tell(Done.TAKEN, index)
        self._opened.discard(index)

    def gather_ended(self, exchange: Exchange) -> bool:
        return True  # waiting for one message waits for all of them

    def settle_sends(self, exchange: Exchange) -> None:
        self._wait(exchange.send_works, "its sends to finish")

    # ---- the rest

    def all_reduce(self, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        return self.messages.all_reduce(values, maximum)

    def broadcast(self, values: torch.Tensor) -> Any:
        return self.messages.broadcast(values)

    def close(self) -> None:
        self._stop()
        self.messages.close()

    def _wait(self, works: list[Any], what: str) -> None:
        self._await(lambda: self.messages.wait(works, what))

    def _await(self, wait: Any) -> None:
        """A worker that fails says so, because its neighbors may be waiting for its next action."""
        try:
            wait()
        except OverlapError:
            self._memory.give_up()
            raise


def _add_up(
    memory: HostMemory,
    index: int,
    count: int,
    rows: Sequence[tuple[int, torch.Tensor, Callable[[], Any] | None]],
    send: torch.Tensor,
    landing: torch.Tensor,
) -> list[Any]:
    """Sum the host's contributions to each row to where its sum goes, and send it; our own stays here."""
    memory.await_all(Done.CONTRIBUTED, index, count, "send gradients")
    sends = [memory.of_neighbor(send, neighbor) for neighbor in memory.neighbors]
    works = []
    for row, total, launch in rows:
        add_host([send[row] for send in sends], out=total)
        if launch is not None:
            works.append(launch())
    memory.open_neighbors(landing)  # a neighbor that drops its model waits only for our sums
    memory.tell(Done.ADDED, index)
    return works


def _stop(memory: HostMemory, sums: RelayThread) -> None:
    memory.close()  # ends every wait
    sums.stop()


def _shards(values: torch.Tensor | None, exchange: Exchange) -> torch.Tensor:
    assert values is not None
    return values.view(-1, exchange.shard)


def _copy_shard(target: torch.Tensor, source: torch.Tensor, row: int, shard: int) -> None:
    """Without any active torch mode: a forward in any mode waits for parameters, and must not see these copies."""
    num_bytes = shard * target.element_size()
    ctypes.memmove(target.data_ptr() + row * num_bytes, source.data_ptr() + row * num_bytes, num_bytes)
