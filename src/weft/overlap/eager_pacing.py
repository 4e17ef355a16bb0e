"""Which bucket is updated and gathered during backward, and when.

[Note: eager]  With ``eager``, a bucket may be updated and gathered during backward, but only in the link's idle time: a
gather ahead of a reduction delays the first layers, for which every worker waits.  So a bucket goes early only if our
side of the link is idle, estimated from the bytes we have sent and the measured bandwidth, and if the gather and all
remaining reductions fit into the rest of backward, estimated from the last step.  (Other workers' reductions that have
arrived say nothing about our own direction.  With that rule, one worker filled its direction with gathers, the other
waited for the reductions behind them, and a step took 1.30 s instead of 1.05 s with the barrier schedule.)  The rest
goes at step(), in forward order; if the network is the bottleneck, that is every bucket, and eager behaves like the
barrier schedule.  Other workers may overwrite their shards of our parameters once our backward is done with all
parameters of the bucket, because no remaining node of the graph reads them.  A parameter used by several modules is
left to step().  The first round is never eager: it shows whether anything clips or rescales gradients, while refusing
still costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from weft.errors import OverlapError
from weft.overlap.bucket import Bucket, Phase
from weft.overlap.timing import StepClock
from weft.overlap.transport.base import Transport
from weft.overlap.update import Options, frozen, options_of


class EagerPacing:
    """Decides for one schedule; the schedule does the update and the gather.  See [Note: eager]."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        transport: Transport,
        clock: StepClock,
        shared: frozenset[int],
        *,
        enabled: bool,
    ) -> None:
        # Whether eager rounds gather during backward; the tuner tries both.  The same on every worker.
        self.early = True
        self._optimizer = optimizer
        self._transport = transport
        self._clock = clock
        self._shared = shared
        # Each worker decides on its own when to gather, which a transport that needs one order cannot support.
        self._enabled = enabled and not transport.ordered
        self._paused = False
        self._link_busy_until_s = 0.0
        self._num_arrived = 0
        self._options: Options | None = None

    @property
    def active(self) -> bool:
        """Whether this round updates during backward."""
        return self.early and self._applies

    @property
    def _applies(self) -> bool:
        """Whether a round could update during backward: refusals must not depend on the tuner's choice."""
        return self._enabled and self._clock.link is not None and not self._paused

    def may_go_early(self, bucket: Bucket) -> bool:
        return self.active and self._shared.isdisjoint(bucket.plan.parameters)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A round whose gradients are dropped must not update anything."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def round_began(self) -> None:
        self._num_arrived = 0
        # Saved before any update: workers update different buckets early, but if one refuses a change, all must.
        self._options = frozen(options_of(self._optimizer)) if self._applies else None

    def check_options(self, options: Options) -> None:
        if self._options is not None and self._options != frozen(options):
            raise OverlapError(
                "an option of the optimizer (the learning rate?) changed between backward() and step(), but eager=True "
                "may have already used the old one: change it before backward(), or use eager=False"
            )

    def options_at_begin(self) -> Options:
        """The options used by early updates of this round."""
        return [
            {key: value if isinstance(value, torch.Tensor) else begun[key] for key, value in group.items()}
            for group, begun in zip(options_of(self._optimizer), self._options or [], strict=True)
        ]

    def sent(self, num_bytes: int) -> None:
        """The link is busy with these bytes, after earlier ones."""
        link = self._clock.link
        if link is not None:
            self._link_busy_until_s = max(self._link_busy_until_s, self._clock.now()) + link.seconds(num_bytes)

    def next_bucket(self, buckets: Sequence[Bucket], num_launched: int) -> Bucket | None:
        """The bucket to update and gather now: our side of the link is idle, and no reduction will need it."""
        if not self.active:
            return None
        while self._num_arrived < num_launched:
            if not self._transport.reduce_arrived(buckets[self._num_arrived].exchange):
                break
            self._num_arrived += 1
        now_s = self._clock.now()
        if now_s < self._link_busy_until_s:
            return None
        # Newest first: of those that can go now, the next forward reads it first.
        for bucket in reversed(buckets[: self._num_arrived]):
            if bucket.phase is Phase.REDUCING and self.may_go_early(bucket):
                return bucket if self._fits(bucket, buckets[num_launched:], now_s) else None
        return None

    def _fits(self, bucket: Bucket, to_reduce: Sequence[Bucket], now_s: float) -> bool:
        link = self._clock.link
        assert link is not None
        num_bytes = bucket.exchange.gather_bytes + sum(other.exchange.reduce_bytes for other in to_reduce)
        return link.beta_s_per_byte * num_bytes < self._clock.expected_backward_end_s() - now_s
