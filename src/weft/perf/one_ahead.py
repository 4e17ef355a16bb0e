"""DeAR's schedule: all reductions end before the update, and forward gathers one bucket ahead.

When forward reaches a bucket, it launches the gather of the next one, then waits for its own.  While layers
with much compute and few bytes run (the first ones of most image models), the link is idle: only one bucket may travel
ahead.  That is the difference from ``Mode.BARRIER`` of :mod:`weft.perf.recurrence`, which launches all gathers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.perf.recurrence import StepModel
from weft.perf.step_profile import Mode


@dataclass(frozen=True, slots=True)
class OneAhead:
    """One step of the steady state."""

    step_s: float
    exposed_s: float


def one_ahead(model: StepModel, cuts: Sequence[int]) -> OneAhead:
    """The step with buckets cut at ``cuts``.  Every worker updates whole buckets, right before they are used."""
    buckets = model.buckets(cuts)
    # The reduce-scatters are those of the barrier schedule.
    course = model.course(cuts, Mode.BARRIER)
    profile, launch_s = model.profile, model.link.launch_s
    now_s = max(course.backward_end_s, course.reduces[-1][1])
    exposed_s = now_s - course.backward_end_s
    order = list(reversed(range(len(buckets.num_elements))))
    arrives_s: dict[int, float] = {}
    link_free_s = now_s
    passed_s = 0.0

    def launch(k: int) -> None:
        nonlocal now_s, link_free_s
        now_s += launch_s
        link_free_s = arrives_s[k] = max(now_s, link_free_s) + buckets.collective_s[k]

    launch(order[0])
    for place, k in enumerate(order):
        read_s = max(passed_s, buckets.read_s[k])
        now_s += read_s - passed_s
        passed_s = read_s
        for following in order[place + 1 : place + 2]:
            launch(following)
        exposed_s += max(0.0, arrives_s[k] - now_s)
        now_s = max(now_s, arrives_s[k]) + profile.update_s_per_element * buckets.num_elements[k]
    return OneAhead(now_s + profile.forward_s - passed_s, exposed_s)
