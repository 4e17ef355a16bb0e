"""The interface between the schedule and a transport.

A bucket's *exchange* is the memory that both of its collectives use:

    send     [workers, shard + tail]  what this worker contributes to each worker's shard
    stage    [rows, shard + tail]     incoming contributions and partial sums; as many rows as the transport needs
    region   [workers * shard]        the bucket's range of the flat parameters; our shard is in its place
    landing  [workers * shard]        only some transports: gathered values, shared by all workers of a host

The tail of each row carries one number per parameter in the bucket (how many workers used it in this step), an
objection, a vote, and a stamp.  With the gradients, all workers therefore learn in the same step which parameters no
worker used and whether any worker wants to stop, without another collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from weft.overlap.device import Device
from weft.perf.link import Link

# At the end of a row: objection, vote, and stamp.  They are valid for one step only.
NUM_SIGNALS = 3


@dataclass(slots=True)
class Exchange:
    """The memory of one bucket, and the collectives in flight in it."""

    index: int
    shard: int
    send: torch.Tensor
    stage: torch.Tensor
    region: torch.Tensor
    reduce_works: list[Any]
    send_works: list[Any]
    gather_works: list[Any]
    reduced: torch.Tensor | None = None
    # Our shard of gradients reduced earlier and not zeroed since; None once they are part of the sum.
    carry: torch.Tensor | None = None
    landing: torch.Tensor | None = None

    @property
    def is_in_flight(self) -> bool:
        """Whether another worker may still be reading or writing its memory."""
        return bool(self.reduce_works or self.send_works or self.gather_works)

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

    *Open* allows the others to write to the memory; *launch* says that our part is complete.  A transport that
    needs the same order of collectives on every worker does everything in launch.
    """

    rank: int
    num_workers: int
    # How many rows of its own an exchange needs, and whether it needs a landing.
    num_stage_rows: int
    needs_landing: bool
    # Every worker must launch the same collectives in the same order, and completion cannot be polled.
    ordered: bool
    device: Device

    @property
    def quiet_group(self) -> dist.ProcessGroup | None:
        """A group of all workers that carries neither gradients nor parameters, if the transport has one."""

    def allocate(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for exchanges to send from and receive into.  All workers request the same sizes in the same order."""

    def adapt(self, link: Link) -> bool:
        """Adapt to the measured cost of collectives.  Whether this changed their cost; the same on every worker."""

    def open_reduce(self, exchange: Exchange, tag: int) -> None:
        """Allow the others to send their contributions to our shard."""

    def launch_reduce(self, exchange: Exchange, tag: int) -> None:
        """Our contributions to the others' shards are complete: send them."""

    def reduce_arrived(self, exchange: Exchange) -> bool:
        """Whether :meth:`finish_reduce` would return without waiting (a hint; never blocks)."""

    def finish_reduce(self, exchange: Exchange) -> torch.Tensor:
        """Wait for the others' contributions and sum: our shard and its tail.

        On a device with streams, only the current stream waits; every other stream must call this itself.
        """

    def open_gather(self, exchange: Exchange, tag: int) -> None:
        """Allow the others to overwrite their shards of our parameters."""

    def launch_gather(self, exchange: Exchange, tag: int) -> None:
        """Our shard is updated: send it to all workers."""

    def finish_gather(self, exchange: Exchange) -> None:
        """Wait until the whole region holds new values; on a device with streams, as in :meth:`finish_reduce`."""

    def gather_ended(self, exchange: Exchange) -> bool:
        """Whether the region is complete for every stream.  Never blocks."""

    def settle_sends(self, exchange: Exchange) -> None:
        """Wait until nothing reads the memory we sent from."""

    def all_reduce(self, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        """Sum (or maximum) of a small tensor over all workers, in place; blocks until done."""

    def broadcast(self, values: torch.Tensor) -> Any:
        """Send rank 0's values to all workers; complete when ``wait()`` of the result returns."""

    def close(self) -> None:
        """Close connections and end threads.  No collective may be in flight on any worker."""
