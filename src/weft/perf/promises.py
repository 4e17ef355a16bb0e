"""Greedy plans: the fewest buckets that keep two promises.

Count buckets from the first layer (the end of the flat buffer), and make two promises: all reduce-scatters end by X,
and forward waits at most Y in total.  For the m-th bucket from the end, both limit the same quantity, ``m * alpha +
beta * bytes from its start to the end of the buffer``.  The earlier a bucket ends, the looser the limits, so making
each bucket as large as they allow needs the fewest buckets.  Cutting inside a parameter never helps: its whole gradient
becomes ready at one moment, and the whole parameter is read at one moment.

The recurrence includes more than these promises do (launches, updates, eager's gathers), so these plans are only
starting points for :mod:`weft.perf.fusion`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from weft.perf.recurrence import StepModel
from weft.perf.step_profile import Mode

Cuts = tuple[int, ...]

# Sizes tried for the last bucket, which has the least to hide under and so is most often the limit.
NUM_LAST_SIZES = 10
NUM_HALVINGS = 12
# How much looser than the tightest promises, as shares of the total communication, to get fewer buckets.
SLACKS = (0.02, 0.08, 0.25)


class Promises:
    """The limits on buckets that end at one of ``places``."""

    def __init__(self, model: StepModel, places: list[int], mode: Mode) -> None:
        profile, link = model.profile, model.link
        weight = 2 if mode == Mode.DDP else 1
        self._alpha_s = weight * link.alpha_s + link.launch_s
        self._beta_s = weight * link.beta_s_per_byte * model.wire_share * profile.element_bytes
        self._total = model.num_elements
        self._starts = [0, *places]  # piece k spans starts[k] up to the next start
        last = [bisect_right(model.ends, end - 1) for end in (*places, self._total)]
        self._ready_s = [model.ready_s[i] for i in last]
        self._read_s = [min(profile.parameters[i].read_s, profile.forward_s) for i in last]
        self._gathers = mode in (Mode.BARRIER, Mode.EAGER)

    def plans(self) -> Iterator[Cuts]:
        """Plans for several sizes of the last bucket: the tightest promises that each allows, then looser ones."""
        num_pieces = len(self._starts)
        whole_s = self._alpha_s * num_pieces + self._beta_s * self._total
        exponents = [i / (NUM_LAST_SIZES - 1) for i in range(NUM_LAST_SIZES)]
        for back in sorted({round(num_pieces**exponent) for exponent in exponents}):
            trip_s = self._alpha_s + self._beta_s * (self._total - self._starts[-back])
            soonest_s, shortest_s = self._ready_s[-1] + trip_s, max(0.0, trip_s - self._read_s[-1])
            x = _least(soonest_s, whole_s, lambda x: self.keep(x, math.inf)[1])
            if not self._gathers:
                yield self.keep(x, math.inf)[0]
                continue
            # Make one promise as tight as possible, then the other; in both orders.
            y = _least(shortest_s, whole_s, lambda y, x=x: self.keep(x, y)[1])  # type: ignore[misc]
            yield self.keep(x, y)[0]
            for slack in SLACKS:
                yield self.keep(x + slack * whole_s, y)[0]
                yield self.keep(x, y + slack * whole_s)[0]
            y = _least(shortest_s, whole_s, lambda y: self.keep(math.inf, y)[1])
            x = _least(soonest_s, whole_s, lambda x, y=y: self.keep(x, y)[1])  # type: ignore[misc]
            yield self.keep(x, y)[0]

    def keep(self, reduced_s: float, wait_s: float) -> tuple[Cuts, bool]:
        """The fewest buckets for these promises, and whether they can be kept."""
        cuts: list[int] = []
        kept = True
        piece = len(self._starts) - 1
        while piece >= 0:
            limit_s = min(reduced_s - self._ready_s[piece], wait_s + self._read_s[piece])
            spare_s = limit_s - (len(cuts) + 1) * self._alpha_s
            if self._beta_s > 0:
                furthest = self._total - spare_s / self._beta_s
            else:
                furthest = -math.inf if spare_s >= 0 else math.inf
            # A promise met with equality must not fail because of rounding.
            first = bisect_left(self._starts, furthest - 1e-9 * self._total)
            kept = kept and first <= piece
            piece = min(first, piece)
            cuts.append(self._starts[piece])
            piece -= 1
        return tuple(reversed(cuts[:-1])), kept


def _least(low: float, reach: float, holds: Callable[[float], bool]) -> float:
    """The least value from ``low`` on for which ``holds`` is true, to a fraction of ``reach``."""
    if holds(low):
        return low
    high = low + reach
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
