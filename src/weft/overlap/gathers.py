"""Gathers in flight: launched by the sharded schedule, waited for wherever a parameter is used.

[Note: sharing the device]  Every wait is a window in which another job may compute (weft.process.turns).  If one wants
to, step() runs in a single window: updates are short, and queueing for the device between two of them would leave the
network idle for a turn of the other job.  So all gathers are launched together and waited for before the next forward
asks for the device; forward and backward then run without interruption.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.errors import OverlapError
from weft.overlap.bucket import Bucket, Phase
from weft.overlap.reading import Readers
from weft.overlap.round import Round, settle_sends
from weft.process.turns import TURNS


class Gathers:
    """The gathers of one schedule, and its guarded parameters."""

    def __init__(self, round: Round) -> None:
        # From the first early gather of an eager round until step(), values are neither old nor new.
        self.half_updated = False
        self._round = round
        self._transport = round.transport
        self._device = round.device
        self._has_streams = round.device.has_streams
        self._clock = round.clock
        self._readers = Readers(round.parameters, self._before_use)
        self._num_steps = 0

    # ---- launching

    def open(self, bucket: Bucket, step: int) -> None:
        self._transport.open_gather(bucket.exchange, step)

    def open_early(self, bucket: Bucket, step: int) -> None:
        """During backward, once it no longer needs the bucket's parameters."""
        self.half_updated = True
        self._readers.guard(bucket.plan.parameters)
        # So that a node of the graph that still needs the old values (through a detached alias) raises an error.
        torch.autograd.graph.increment_version([self._round.parameters[n] for n in bucket.plan.parameters])
        self.open(bucket, step)

    def launch(self, bucket: Bucket, step: int) -> None:
        self._clock.launched("all-gather", bucket)
        self._transport.launch_gather(bucket.exchange, step)
        bucket.phase = Phase.GATHERING
        self._num_steps = step + 1

    # ---- waiting

    def settle_all(self) -> None:
        self._settle(self._in_flight())

    def settle_all_sends(self) -> None:
        """Wait until nothing is being sent from any bucket's memory."""
        self._round.settle_sends()
        if not self._has_streams:  # all values have arrived and nothing is being sent: any use is safe
            self.release_all()

    def flush(self) -> None:
        self._refuse_half_updated("a parameter")
        self.settle_all()
        if self._has_streams:
            self._device.synchronize()  # for code that bypasses torch, on any stream
            for bucket in self._round.buckets:
                bucket.exchange.gather_works = []
            return
        self.settle_all_sends()

    def _in_flight(self) -> list[Bucket]:
        """First layers first."""
        return [bucket for bucket in reversed(self._round.buckets) if bucket.phase is Phase.GATHERING]

    def _settle(self, buckets: Sequence[Bucket]) -> None:
        if not buckets:
            return
        # Between two layers, when some buckets have already arrived, the wait is short.
        with TURNS.yielded(briefly=len(self._in_flight()) < len(self._round.buckets)):
            for bucket in buckets:
                with self._clock.waiting("all-gather", bucket):
                    self._transport.finish_gather(bucket.exchange)
                bucket.phase = Phase.IDLE
            if TURNS.sharing and not self._in_flight():
                # Our own sends end at about the same time; waiting for them in backward would cost another turn.
                self.settle_all_sends()

    def _before_use(self, number: int, writes: bool) -> bool:
        """Wait until a parameter's values have arrived and, if it is written to, until they have been sent.

        Returns whether it must stay guarded: other streams have to wait for the values, or a later write for our sends.
        """
        TURNS.border()
        self._refuse_half_updated(self._round.names[number])
        buckets = self._round.buckets_of[number]
        for bucket in buckets:
            if bucket.phase is Phase.GATHERING:
                self._settle(self._in_flight() if TURNS.contended else [bucket])
            elif self._has_streams and not self._device.capturing():
                self._transport.finish_gather(bucket.exchange)
        if writes:
            settle_sends(self._transport, buckets)
        self._clock.parameter_read(number)
        if self._has_streams:  # released when backward begins, if the gather has ended by then
            settled = not any(bucket.exchange.gather_works for bucket in buckets)
            self._round.captures.read(self._round.names[number], self._num_steps, settled)
            return True
        return any(bucket.exchange.send_works for bucket in buckets)

    def _refuse_half_updated(self, what: str) -> None:
        if self.half_updated:
            raise OverlapError(
                f"{what} was read between backward() and step(), while eager=True replaces its values: "
                "read it after step(), or use eager=False"
            )

    # ---- guards

    def guard_all(self) -> None:
        self._readers.guard(range(len(self._round.parameters)))

    def release_all(self) -> None:
        for number in range(len(self._round.parameters)):
            self._readers.release(number)

    def release_ended(self) -> None:
        """On a device with streams: release parameters that no stream still has to wait for."""
        in_flight = {b.plan.index for b in self._round.buckets if not self._transport.gather_ended(b.exchange)}
        for number, buckets in enumerate(self._round.buckets_of):
            if not any(bucket.plan.index in in_flight for bucket in buckets):
                self._readers.release(number)
