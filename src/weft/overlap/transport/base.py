"""The interface the schedule talks to.

A bucket's *exchange* is the memory that both of its collectives work on:

    send     [workers, shard + tail]  what this worker contributes to each worker's shard
    stage    rows [shard + tail]      for contributions that come and sums on their way, as many as the carrier needs
    region   [workers * shard]        the bucket's run of the flat parameters; our shard is in its place
    landing  [workers * shard]        where the carrier has it: gathered values, for all workers of a host

The tail of each row carries one number per parameter in the bucket (how many workers used it in this step), an
objection, a vote and a stamp.  So which parameters nobody used, and whether somebody wants to stop, is known with the
gradients, to all workers in the same step, without a collective of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from weft.overlap.device import Device
from weft.perf.link import Link

# At the end of a row: objection, vote and stamp.  They are of this step only, and never carried into the next.
NUM_SIGNALS = 3


@dataclass(slots=True)
class Exchange:
    """The memory of one bucket, and what is under way in it."""

    index: int
    shard: int
    send: torch.Tensor
    stage: list[torch.Tensor]
    region: torch.Tensor
    reduce_works: list[Any]
    send_works: list[Any]
    gather_works: list[Any]
    reduced: torch.Tensor | None = None
    # Our shard of gradients that were reduced before and not zeroed since; None once they are in the sum.
    carry: torch.Tensor | None = None
    landing: torch.Tensor | None = None

    @property
    def reduce_bytes(self) -> int:
        """Bytes this worker sends for the reduce-scatter."""
        return (self.send.shape[0] - 1) * self.shard * self.send.element_size()

    @property
    def gather_bytes(self) -> int:
        """Bytes this worker sends for the all-gather."""
        return (self.send.shape[0] - 1) * self.shard * self.region.element_size()


class Transport(Protocol):
    """Reduce-scatter in two halves (open, launch) and all-gather in two halves (open, launch).

    *Open* says that the memory may be written by others; *launch* says that ours is complete.  A carrier
    that needs the same order of collectives on every worker does everything in launch.
    """

    rank: int
    num_workers: int
    # How many rows of its own an exchange needs, and whether it needs a landing.
    num_stage_rows: int
    needs_landing: bool
    # Every worker must launch the same collectives in the same order, and completion cannot be polled.
    ordered: bool
    device: Device

    def allocate(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory that exchanges can send from and land in.  Every worker asks for the same, in the same order."""
        ...

    def adapt(self, link: Link) -> bool:
        """To what collectives were measured to cost.  True, on every worker alike, if they now cost something else."""
        ...

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        """The others may send their share of our shard."""
        ...

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        """Our contributions to the others' shards are complete: send them."""
        ...

    def reduce_arrived(self, exchange: Exchange) -> bool:
        """Whether :meth:`finish_reduce` would not have to wait (a hint; never blocks)."""
        ...

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        """Wait for the others' contributions and sum: our shard and its tail.

        On a device with streams: the current stream waits, and each stream has to ask for itself.
        """
        ...

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        """The others may overwrite their shards of our parameters."""
        ...

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        """Our shard is updated: send it to everybody."""
        ...

    def finish_gather(self, exchange: Exchange) -> None:
        """Wait until the whole region holds new values; on a device with streams, as in :meth:`finish_reduce`."""
        ...

    def gather_ended(self, exchange: Exchange) -> bool:
        """Whether no stream need wait for the region any more.  Never blocks."""
        ...

    def settle_sends(self, exchange: Exchange) -> None:
        """Wait until nothing reads the memory we sent from."""
        ...

    def all_reduce(self, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        """Sum (or maximum) of a small tensor over all workers, in place, done on return."""
        ...

    def broadcast(self, values: torch.Tensor) -> Any:
        """Rank 0's values for everybody; done when ``wait()`` of the result returns."""
        ...

    def close(self) -> None:
        """Let go of connections and threads.  Nothing may be under way on any worker."""
        ...
