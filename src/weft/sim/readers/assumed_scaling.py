"""How a job scales when all we know is how long it ran at one size.

The step of a ring all-reduce job on w workers, as a share of the step on one:

    T(w) / T(1) = 1 / w  +  0.05 * (w - 1) / w  +  0.0005 * (w - 1)

perfectly divided compute, the bandwidth term and the latency term of a ring.  That gives a speed-up of 5.8 on
8 workers and of 10 on 32.  The constants are an assumption of ours, not a measurement: give step times where
you have them.
"""

from __future__ import annotations

from functools import cache

from weft.core.speed import StepTime
from weft.sim.workload import TableProfile

BANDWIDTH_SHARE = 0.05
LATENCY_SHARE = 0.0005


def relative_step(num_workers: int) -> StepTime:
    """The step on ``num_workers`` as a share of the step on one worker."""
    exposed = BANDWIDTH_SHARE * (num_workers - 1) / num_workers + LATENCY_SHARE * (num_workers - 1)
    return StepTime(1.0 / num_workers + exposed, exposed)


@cache
def assumed_profile(known_workers: int, sizes: tuple[int, ...]) -> TableProfile:
    """A profile on which a step at ``known_workers`` takes one second, so that a duration is a step count.

    Cached, since profiles are compared by identity and a log has thousands of jobs of one kind.
    """
    unit = relative_step(known_workers).step_s
    times = {}
    for size in sizes:
        step = relative_step(size)
        times[size] = StepTime(step.step_s / unit, step.exposed_s / unit)
    return TableProfile(times)


def doubling_sizes(smallest: int, largest: int, *also: int) -> tuple[int, ...]:
    """Powers of two from ``smallest`` to ``largest``, and ``also``.

    >>> doubling_sizes(1, 24, 12)
    (1, 2, 4, 8, 12, 16)
    """
    powers = {1 << exponent for exponent in range(largest.bit_length())}
    return tuple(sorted({size for size in powers | set(also) if smallest <= size <= largest}))
