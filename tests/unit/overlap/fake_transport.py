"""A transport in virtual time, for tests of the schedule: what is sent when, and how long a step would take.

There is one worker; the others are assumed to do exactly the same at the same time.  So what they contribute to our
shard is what we contribute to it, and a collective starts when we launch it.  Both kinds of collective use both
directions of the link and queue for it, as in :mod:`weft.perf.recurrence`.

[Note: poison]  While a gather is in flight, the others' shards are not-a-number.  Code that reads a parameter without
waiting for its gather computes with that, and a test sees it.  Afterwards they hold their old values: another worker's
updates are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.overlap.device import CPU, Device
from weft.overlap.transport.base import Exchange
from weft.perf.link import Link


class VirtualClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    def advance_to(self, time_s: float) -> None:
        self._now_s = max(self._now_s, time_s)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the schedule: when it was made, and for a launch when the link carries it."""

    name: str
    bucket: int
    tag: int
    at_s: float
    start_s: float = 0.0
    end_s: float = 0.0


class Done:
    """A collective that has finished when it is launched."""

    def wait(self) -> None:
        pass


class FakeTransport:
    """Implements :class:`~weft.overlap.transport.base.Transport` and records the calls."""

    num_stage_rows = 0
    needs_landing = False
    ordered = False
    device: Device = CPU

    def __init__(self, clock: VirtualClock, link: Link, num_workers: int = 2, rank: int = 0) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.calls: list[Call] = []
        self._clock = clock
        self._link = link
        self._link_free_s = 0.0
        self._reduce_end_s: dict[int, float] = {}
        self._gather_end_s: dict[int, float] = {}
        self._withheld: dict[int, torch.Tensor] = {}

    def named(self, name: str) -> list[Call]:
        """The calls of one name, in order."""
        return [call for call in self.calls if call.name == name]

    def allocate(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(num_elements, dtype=dtype, device=device)

    def adapt(self, link: Link) -> bool:
        return False

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        self._note("open reduce", exchange, tag)
        exchange.reduced = None

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        self._reduce_end_s[exchange.index] = self._launch("launch reduce", exchange, tag, exchange.reduce_bytes)

    def reduce_arrived(self, exchange: Exchange) -> bool:
        return self._clock.now() >= self._reduce_end_s[exchange.index]

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        if exchange.reduced is None:
            self._note("finish reduce", exchange)
            self._clock.advance_to(self._reduce_end_s[exchange.index])
            exchange.reduced = exchange.send[self.rank] * self.num_workers
        return exchange.reduced

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        self._note("open gather", exchange, tag)
        self._withheld[exchange.index] = exchange.region.clone()
        for worker, shard in enumerate(exchange.region.view(self.num_workers, exchange.shard)):
            if worker != self.rank:
                shard.fill_(torch.nan)

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        self._gather_end_s[exchange.index] = self._launch("launch gather", exchange, tag, exchange.gather_bytes)

    def finish_gather(self, exchange: Exchange) -> None:
        self._note("finish gather", exchange)
        self._clock.advance_to(self._gather_end_s.pop(exchange.index))
        old = self._withheld.pop(exchange.index).view(self.num_workers, exchange.shard)
        for worker, shard in enumerate(exchange.region.view(self.num_workers, exchange.shard)):
            if worker != self.rank:
                shard.copy_(old[worker])

    def gather_ended(self, exchange: Exchange) -> bool:
        return True  # waiting for one message waits for all of them

    def settle_sends(self, exchange: Exchange) -> None:
        pass

    def all_reduce(self, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        return values if maximum else values.mul_(self.num_workers)

    def broadcast(self, values: torch.Tensor) -> Done:
        return Done()

    def close(self) -> None:
        pass

    def _launch(self, name: str, exchange: Exchange, tag: int, num_bytes: int) -> float:
        self._clock.advance(self._link.launch_s)
        now_s = self._clock.now()
        start_s = max(now_s, self._link_free_s)
        end_s = start_s + self._link.seconds(num_bytes)
        self._link_free_s = end_s
        self.calls.append(Call(name, exchange.index, tag, now_s, start_s, end_s))
        return end_s

    def _note(self, name: str, exchange: Exchange, tag: int = -1) -> None:
        self.calls.append(Call(name, exchange.index, tag, self._clock.now()))
