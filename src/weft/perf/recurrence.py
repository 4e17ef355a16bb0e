"""The recurrence behind :mod:`weft.perf.schedule`: when each bucket travels.

The link is one queue: a reduce-scatter already uses both directions, so a concurrent collective would only share the
rate.  Every parameter is read in forward, so the link is empty when backward starts: the time from the start of one
backward to the start of the next is the steady state.

[Note: what eager may do]  Only gradient hooks run our code during backward, so decisions are made there.  At a hook
with no reduce-scatter in flight, the bucket that forward reads first among the reduced ones is updated and gathered, if
its all-gather fits into time in which the link would be idle before the *last* reduce-scatter ends.  Delaying a
reduce-scatter in the middle is free; delaying the last one delays everything.  Gathering the oldest bucket first
instead would leave the urgent ones for the end and lose much of the gain.  If moving updates into backward costs more
than it gains, eager does nothing early and equals ``barrier``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from weft.errors import UsageError
from weft.perf.link import Link
from weft.perf.step_profile import Mode, StepProfile

Interval = tuple[float, float]


@dataclass(slots=True)
class Course:
    """The result of the recurrence.  Intervals are by bucket."""

    reduces: list[Interval]
    gathers: list[Interval] = field(default_factory=list)
    # "update" (with the launch of its gather) and "wait", in order
    pauses: list[tuple[str, float, float]] = field(default_factory=list)
    backward_end_s: float = 0.0
    forward_start_s: float = 0.0
    exposed_s: float = 0.0
    step_s: float = 0.0
    # buckets that eager gathers during backward
    early: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Buckets:
    """The sizes and times of a plan's buckets."""

    num_elements: list[int]
    last: list[int]  # flat index of the bucket's last parameter, whose hook launches the bucket
    read_s: list[float]  # earliest read of anything inside
    collective_s: list[float]  # one reduce-scatter or one all-gather
    update_s: list[float]  # this worker's shard


class StepModel:
    """``profile`` on ``link`` with ``num_workers``, for evaluating many plans."""

    def __init__(self, profile: StepProfile, link: Link, num_workers: int) -> None:
        if num_workers < 1:
            raise UsageError(f"{num_workers} workers cannot train: expected 1 or more")
        self.profile, self.num_workers = profile, num_workers
        self.link = link if num_workers > 1 else Link(0.0, 0.0, 0.0)
        self.wire_share = (num_workers - 1) / num_workers
        self.ends: list[int] = []
        # Measured times jitter, but buckets launch in flat order, and no hook fires after backward ends.
        self.ready_s: list[float] = []
        total, ready_s = 0, 0.0
        for parameter in profile.parameters:
            total += parameter.num_elements
            ready_s = max(ready_s, min(parameter.ready_s, profile.backward_s))
            self.ends.append(total)
            self.ready_s.append(ready_s)
        self.num_elements = total
        self.hooks = [i for i in range(len(self.ends)) if self.ready_s[i + 1 : i + 2] != [self.ready_s[i]]]
        self._reads = [min(p.read_s, profile.forward_s) for p in profile.parameters]
        # Forward mostly reads in the reverse of flat order; then a bucket's last parameter is read first.
        self._in_order = all(a >= b for a, b in pairwise(self._reads))

    def buckets(self, cuts: Sequence[int]) -> Buckets:
        edges = [0, *cuts, self.num_elements]
        if any(a >= b for a, b in pairwise(edges)):
            raise UsageError(
                f"the cuts {tuple(cuts)} do not split {self.num_elements} elements: "
                "expected increasing offsets inside the buffer"
            )
        sizes = [end - start for start, end in pairwise(edges)]
        last = [bisect_right(self.ends, end - 1) for end in edges[1:]]
        if self._in_order:
            reads = [self._reads[i] for i in last]
        else:
            first = [bisect_right(self.ends, start) for start in edges[:-1]]
            reads = [min(self._reads[i : j + 1]) for i, j in zip(first, last, strict=True)]
        alpha_s = self.link.alpha_s
        beta_s = self.link.beta_s_per_byte * self.wire_share * self.profile.element_bytes
        update_s = self.profile.update_s_per_element / self.num_workers
        collectives_s = [alpha_s + beta_s * size for size in sizes]
        return Buckets(sizes, last, reads, collectives_s, [update_s * size for size in sizes])

    def course(self, cuts: Sequence[int], mode: Mode) -> Course:
        """Run the recurrence for one plan."""
        buckets = self.buckets(cuts)
        if mode == Mode.DDP:
            return self._all_reduced(buckets)
        barrier = self._gathered(buckets, self._reduced(buckets, num_halves=1))
        if mode == Mode.BARRIER:
            return barrier
        eager = self._gathered(buckets, self._reduced_and_filled(buckets))
        return eager if eager.step_s < barrier.step_s else barrier

    def step_s(self, cuts: Sequence[int], mode: Mode) -> float:
        return self.course(cuts, mode).step_s

    def _all_reduced(self, buckets: Buckets) -> Course:
        """``ddp``: an all-reduce costs its two halves, and every worker updates everything."""
        course = self._reduced(buckets, num_halves=2)
        now_s = max(course.backward_end_s, course.reduces[-1][1])
        course.exposed_s = now_s - course.backward_end_s
        update_s = self.profile.update_s_per_element * self.num_elements
        course.pauses = [("wait", course.backward_end_s, now_s), ("update", now_s, now_s + update_s)]
        course.forward_start_s = now_s + update_s
        course.step_s = course.forward_start_s + self.profile.forward_s
        return course

    def _reduced(self, buckets: Buckets, *, num_halves: int) -> Course:
        """Launch each reduction at its hook; the link takes them in order."""
        launch_s = self.link.launch_s
        course = Course([])
        link_free_s = 0.0
        for k, collective_s in enumerate(buckets.collective_s):
            start_s = max(self.ready_s[buckets.last[k]] + (k + 1) * launch_s, link_free_s)
            link_free_s = start_s + num_halves * collective_s
            course.reduces.append((start_s, link_free_s))
        course.backward_end_s = self.profile.backward_s + len(course.reduces) * launch_s
        return course

    def _reduced_and_filled(self, buckets: Buckets) -> Course:
        """Backward of ``eager``; see [Note: what eager may do]."""
        launch_s, costs = self.link.launch_s, buckets.collective_s
        num_buckets = len(costs)
        to_reduce_s = [0.0] * (num_buckets + 1)  # link time of the reduce-scatters from bucket k on
        for k in reversed(range(num_buckets)):
            to_reduce_s[k] = to_reduce_s[k + 1] + costs[k]
        undisturbed_end_s = max(
            self.ready_s[buckets.last[k]] + (k + 1) * launch_s + to_reduce_s[k] for k in range(num_buckets)
        )
        course = Course([], [(math.nan, math.nan)] * num_buckets)
        reduced: list[int] = []  # newest last: forward reads that one first
        launched, link_free_s, last_reduce_end_s = 0, 0.0, 0.0
        early_s = 0.0  # time added to backward by updates and launches of early gathers
        for nth, hook in enumerate(self.hooks):
            base_s = self.ready_s[hook]
            now_s = base_s + launched * launch_s + early_s
            is_last = nth + 1 == len(self.hooks)
            pause_s = (self.profile.backward_s if is_last else self.ready_s[self.hooks[nth + 1]]) - base_s
            idle = last_reduce_end_s <= now_s
            while idle and reduced and link_free_s < now_s + pause_s:
                k = reduced[-1]
                gather_end_s = max(now_s, link_free_s) - early_s + costs[k]
                if gather_end_s + to_reduce_s[launched] > undisturbed_end_s + 1e-12:
                    break
                reduced.pop()
                work_s = buckets.update_s[k] + launch_s
                course.pauses.append(("update", now_s, now_s + work_s))
                course.early.append(k)
                early_s += work_s
                now_s += work_s
                start_s = max(now_s, link_free_s)
                link_free_s = start_s + costs[k]
                course.gathers[k] = (start_s, link_free_s)
            while launched < num_buckets and buckets.last[launched] <= hook:
                now_s += launch_s
                start_s = max(now_s, link_free_s)
                link_free_s = last_reduce_end_s = start_s + costs[launched]
                course.reduces.append((start_s, link_free_s))
                reduced.append(launched)
                launched += 1
        course.backward_end_s = self.profile.backward_s + num_buckets * launch_s + early_s
        return course

    def _gathered(self, buckets: Buckets, course: Course) -> Course:
        """``step()`` and the next forward: update and gather the remaining buckets, first read first."""
        course.gathers = course.gathers or [(math.nan, math.nan)] * len(course.reduces)
        gathered = set(course.early)
        link_free_s = max(end for _, end in course.reduces)
        link_free_s = max([link_free_s, *(course.gathers[k][1] for k in gathered)])
        now_s, num_updated, num_buckets = course.backward_end_s, 0, len(course.reduces)
        for k in reversed(range(num_buckets)):
            if k in gathered:
                continue
            # While the first layers' reduction is in flight, there is time to update others.
            while num_updated < k and now_s < course.reduces[k][1]:
                if num_updated not in gathered:
                    now_s = self._updated(num_updated, buckets, course, now_s)
                num_updated += 1
            if k >= num_updated:
                now_s = self._updated(k, buckets, course, now_s)
            course.pauses.append(("update", now_s, now_s + self.link.launch_s))
            now_s += self.link.launch_s
            start_s = max(now_s, link_free_s)
            link_free_s = start_s + buckets.collective_s[k]
            course.gathers[k] = (start_s, link_free_s)
        # Each wait of forward starts where the previous one ended, so only the largest lag counts.
        lags = [end - now_s - read_s for (_, end), read_s in zip(course.gathers, buckets.read_s, strict=True)]
        lag_s = max(0.0, *lags)
        course.forward_start_s = now_s
        course.exposed_s += lag_s
        course.step_s = now_s + self.profile.forward_s + lag_s
        return course

    def _updated(self, k: int, buckets: Buckets, course: Course, now_s: float) -> float:
        """In ``step()``: wait until bucket ``k`` is reduced, then update this worker's shard of it."""
        reduced_s = course.reduces[k][1]
        if reduced_s > now_s:
            course.pauses.append(("wait", now_s, reduced_s))
            course.exposed_s += reduced_s - now_s
            now_s = reduced_s
        course.pauses.append(("update", now_s, now_s + buckets.update_s[k]))
        return now_s + buckets.update_s[k]
