"""The description of a recorded timeline must match it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.core.chrome_trace import Span
from weft.perf.link import Link
from weft.perf.schedule import simulate
from weft.perf.step_profile import Mode, ParameterTiming, StepProfile
from weft.perf.timeline import bars, median_step, summarize, workers


def span(name: str, start_s: float, end_s: float, track: str = "compute", worker: int = 0, **args: int) -> Span:
    return Span(f"worker {worker}", track, name, start_s, end_s - start_s, args)


def simulated_steps(mode: Mode, num_steps: int = 4) -> tuple[list[Span], float, float]:
    layers = tuple(ParameterTiming(1000, 0.02 * (i + 1), 0.01 * (9 - i)) for i in range(10))
    profile = StepProfile(layers, forward_s=0.1, backward_s=0.2, update_s_per_element=1e-6, element_bytes=4)
    one = simulate(profile, (2000, 5000, 8000), Link(1e-3, 7e-6), 2, mode)
    spans = [replace(s, start_s=s.start_s + k * one.step_s) for k in range(num_steps) for s in one.spans]
    return spans, one.step_s, one.exposed_s


@pytest.mark.parametrize("mode", list(Mode))
def test_summary_gives_back_what_was_simulated(mode):
    spans, step_s, exposed_s = simulated_steps(mode)
    [summary] = summarize(spans)
    assert summary.step_s == pytest.approx(step_s)
    assert summary.exposed_s == pytest.approx(exposed_s)
    assert summary.forward_s == pytest.approx(0.1)
    assert summary.backward_s == pytest.approx(0.2)
    assert summary.communication_s == pytest.approx(2 * (4 * 1e-3 + 10_000 * 4 * 7e-6 / 2))


def test_waits_inside_a_forward_do_not_count_as_forward():
    """As recorded while training: the forward span covers its waits, which have a track of their own."""
    spans = [
        span("forward", 0.0, 1.0),
        span("wait all-gather 2", 0.2, 0.5, track="wait"),
        span("backward", 1.0, 3.0),
        span("update", 3.0, 3.5),
        span("wait reduce-scatter 0", 3.0, 3.2, track="wait"),
        span("all-gather 2", 0.0, 0.5, track="communication", bytes=100),
        span("reduce-scatter 0", 2.7, 3.2, track="communication", bytes=300),
    ]
    [summary] = summarize(spans)
    assert summary.forward_s == pytest.approx(0.7)
    assert summary.update_s == pytest.approx(0.3)
    assert summary.exposed_s == pytest.approx(0.5)
    assert summary.hidden_share == pytest.approx(0.5)
    assert summary.bytes_per_step == 400
    assert bars(spans, "worker 0", 35) == (
        "FF...FFFFFBBBBBBBBBBBBBBBBBBBB..UUU",
        "GGGGG                      RRRRR   ",
    )


def test_accumulated_micro_batches_are_one_step():
    spans = []
    for step in range(3):
        t = 5.0 * step
        spans += [span("forward", t, t + 1), span("backward", t + 1, t + 2)]
        spans += [span("forward", t + 2, t + 3), span("backward", t + 3, t + 4), span("update", t + 4, t + 5)]
    [summary] = summarize(spans)
    assert (summary.num_steps, summary.step_s, summary.forward_s) == (3, 5.0, 2.0)


def test_collectives_at_the_same_time_are_counted_once():
    spans = [span("forward", 0, 1), span("backward", 1, 2)]
    spans += [
        span("reduce-scatter 0", 1.0, 1.6, "communication"),
        span("all-gather 0", 1.4, 2.0, "communication"),
    ]
    assert summarize(spans)[0].communication_s == pytest.approx(1.0)


def test_a_run_without_communication_hides_all_of_it():
    assert summarize([span("forward", 0, 1), span("backward", 1, 2)])[0].hidden_share == 1.0


def test_workers_are_listed_in_numeric_order():
    spans = [span("forward", 0, 1, worker=number) for number in (10, 2, 0)]
    assert workers(spans) == ["worker 0", "worker 2", "worker 10"]


def test_the_step_shown_is_a_typical_one():
    spans = []
    t = 0.0
    for length in (9.0, 2.0, 2.1, 2.2, 9.0):
        spans += [span("forward", t, t + 1), span("backward", t + 1, t + length)]
        t += length
    start_s, end_s = median_step(spans, "worker 0")
    assert end_s - start_s == pytest.approx(2.2)
