"""When each bucket of a training step travels, how long the step takes, and lower bounds for it.

Parameters lie in one flat buffer in the order in which backward finishes their gradients (last layer first).  A *plan*
is a tuple of cuts: element offsets that split the buffer into buckets.  There are three ways to run a step:

- ``ddp``      all-reduce each bucket under backward, then update, then forward.
- ``barrier``  reduce-scatter under backward; ``step()`` updates this worker's shards in forward order and launches
               their all-gathers, which run under the next forward (DeAR).
- ``eager``    like ``barrier``, but all-gathers fill link time that backward leaves idle.

:mod:`weft.perf.recurrence` computes it.

>>> from weft.perf.step_profile import ParameterTiming
>>> layers = tuple(ParameterTiming(1_000_000, 0.1 * (i + 1), 0.05 * (9 - i)) for i in range(10))
>>> profile = StepProfile(layers, forward_s=0.5, backward_s=1.0, update_s_per_element=0.0, element_bytes=4)
>>> link = Link(alpha_s=1e-4, beta_s_per_byte=30e-9, launch_s=0.0)
>>> cuts = tuple(range(1_000_000, 10_000_000, 1_000_000))
>>> [round(simulate(profile, cuts, link, 2, mode).step_s, 2) for mode in Mode]
[1.8, 1.71, 1.64]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.chrome_trace import Span
from weft.errors import UsageError
from weft.perf.link import Link
from weft.perf.recurrence import Buckets, Course, StepModel
from weft.perf.step_profile import Mode, StepProfile


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of the steady state; ``exposed_s`` is the time the computing thread waits."""

    step_s: float
    exposed_s: float
    spans: tuple[Span, ...]


def simulate(profile: StepProfile, cuts: Sequence[int], link: Link, num_workers: int, mode: Mode) -> Timeline:
    """The steady-state step for one plan; its spans run from the start of backward to the next one."""
    model = StepModel(profile, link, num_workers)
    course = model.course(cuts, mode)
    spans = _spans(course, model.buckets(cuts), profile, mode)
    return Timeline(course.step_s, course.exposed_s, spans)


def _spans(course: Course, buckets: Buckets, profile: StepProfile, mode: Mode) -> tuple[Span, ...]:
    def span(track: str, name: str, start_s: float, end_s: float, step: int, **more: int) -> None:
        if end_s > start_s:
            spans.append(Span("worker 0", track, name, start_s, end_s - start_s, {"step": step, **more}))

    spans: list[Span] = []
    now_s = 0.0
    for name, start_s, end_s in course.pauses:
        span("compute", "backward", now_s, min(start_s, course.backward_end_s), 0)
        span("compute", name, start_s, end_s, 0)
        now_s = max(now_s, end_s)
    span("compute", "backward", now_s, course.backward_end_s, 0)
    now_s, read_so_far_s = course.forward_start_s, 0.0
    arrivals = sorted(zip(buckets.read_s, (end for _, end in course.gathers), strict=False))
    for read_s, arrival_s in arrivals:
        span("compute", "forward", now_s, now_s + read_s - read_so_far_s, 1)
        now_s += read_s - read_so_far_s
        read_so_far_s = read_s
        span("compute", "wait", now_s, arrival_s, 1)
        now_s = max(now_s, arrival_s)
    span("compute", "forward", now_s, now_s + profile.forward_s - read_so_far_s, 1)
    reduce = "reduce-scatter" if mode in (Mode.BARRIER, Mode.EAGER) else "all-reduce"
    for kind, intervals in ((reduce, course.reduces), ("all-gather", course.gathers)):
        for k, (start_s, end_s) in enumerate(intervals):
            num_bytes = buckets.num_elements[k] * profile.element_bytes
            span("communication", f"{kind} {k}", start_s, end_s, 0, bytes=num_bytes)
    return tuple(spans)


def ddp_bound_s(forward_s: float, backward_s: float, reduce_s: float, gather_s: float, update_s: float = 0.0) -> float:
    """Ideal DDP: both halves of the all-reduce hide under backward only."""
    return forward_s + max(backward_s, reduce_s + gather_s) + update_s


def barrier_bound_s(
    forward_s: float, backward_s: float, reduce_s: float, gather_s: float, update_s: float = 0.0
) -> float:
    """Ideal DeAR: one half under backward, the other under the next forward; updates fill the waits."""
    ideal_s = max(backward_s, reduce_s) + max(forward_s, gather_s)
    return max(ideal_s, forward_s + backward_s + update_s)


def eager_bound_s(
    forward_s: float,
    backward_s: float,
    reduce_s: float,
    gather_s: float,
    update_s: float = 0.0,
    *,
    first_layer_s: float = 0.0,
    last_ready_s: float = 0.0,
    last_forward_s: float = 0.0,
) -> float:
    """Barrier-free: no idle link, and nothing on the first layer's path but its own round trip.

    ``first_layer_s`` is the round trip of the first layer's bucket (reduce-scatter, update, all-gather);
    ``last_ready_s`` is the backward time of the last layer, before which the link has nothing to carry, and
    ``last_forward_s`` its forward time, under which no communication can hide.

    >>> times = {"forward_s": 1.0, "backward_s": 2.0, "reduce_s": 1.5, "gather_s": 1.5}
    >>> ddp_bound_s(**times), barrier_bound_s(**times), eager_bound_s(**times)
    (4.0, 3.5, 3.0)
    """
    compute_s = forward_s + backward_s + max(update_s, first_layer_s)
    return max(compute_s, last_ready_s + reduce_s + gather_s + last_forward_s)


def bound_s(profile: StepProfile, link: Link, num_workers: int, mode: Mode) -> float:
    """A lower bound on the step time with ``mode``, for any plan.

    Leaves out startup and launch costs, and the update on the first layer's path: cut into pieces, it hides under its
    own communication.
    """
    if num_workers < 1:
        raise UsageError(f"{num_workers} workers cannot train: expected 1 or more")
    s_per_element = profile.element_bytes * link.beta_s_per_byte * (num_workers - 1) / num_workers
    half_s = s_per_element * profile.num_elements
    times = (profile.forward_s, profile.backward_s, half_s, half_s)
    update_s = profile.update_s_per_element * profile.num_elements
    if mode == Mode.DDP:
        return ddp_bound_s(*times, update_s)
    if mode == Mode.BARRIER:
        return barrier_bound_s(*times, update_s / num_workers)
    ready_s = [min(p.ready_s, profile.backward_s) for p in profile.parameters]
    read_s = [min(p.read_s, profile.forward_s) for p in profile.parameters]
    # A parameter's round trip starts when its gradient is ready and must end when it is read.
    first_layer_s = max(
        2 * s_per_element * p.num_elements - (profile.backward_s - ready) - read
        for p, ready, read in zip(profile.parameters, ready_s, read_s, strict=True)
    )
    return eager_bound_s(
        *times,
        update_s / num_workers,
        first_layer_s=first_layer_s,
        last_ready_s=min(ready_s),
        last_forward_s=profile.forward_s - max(read_s),
    )
