"""Plans are chosen by the recurrence, and the report's bound comes from it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import UsageError
from weft.perf.link import Link
from weft.perf.recurrence import StepModel
from weft.perf.schedule import barrier_bound_s, bound_s, ddp_bound_s, eager_bound_s, simulate
from weft.perf.step_profile import Mode, ParameterTiming, StepProfile


def even_profile(
    num_layers: int, forward_s: float, backward_s: float, update_s_per_element: float = 0.0
) -> StepProfile:
    """Equal layers: gradients appear, and values are read, at an even rate."""
    layers = tuple(
        ParameterTiming(1000, backward_s * (i + 1) / num_layers, forward_s * (num_layers - 1 - i) / num_layers)
        for i in range(num_layers)
    )
    return StepProfile(layers, forward_s, backward_s, update_s_per_element, 4)


def borders(profile: StepProfile) -> tuple[int, ...]:
    ends, total = [], 0
    for parameter in profile.parameters:
        total += parameter.num_elements
        ends.append(total)
    return tuple(ends[:-1])


def link_for(profile: StepProfile, half_s: float, num_workers: int = 2, alpha_s: float = 0.0) -> Link:
    """A link on which all reduce-scatters of ``profile`` together take ``half_s``, start-up aside."""
    wire_bytes = profile.num_elements * profile.element_bytes * (num_workers - 1) / num_workers
    return Link(alpha_s, half_s / wire_bytes)


seconds = st.floats(0.0, 2.0)


@st.composite
def profiles(draw: st.DrawFn, *, max_update_s: float = 1e-6) -> StepProfile:
    forward_s, backward_s = draw(st.floats(0.01, 2.0)), draw(st.floats(0.01, 2.0))
    parameters = draw(
        st.lists(
            st.builds(
                ParameterTiming,
                st.integers(1, 100_000),
                st.floats(0.0, backward_s),
                st.floats(0.0, forward_s),
            ),
            min_size=1,
            max_size=12,
        )
    )
    return StepProfile(
        tuple(parameters),
        forward_s,
        backward_s,
        draw(st.floats(0.0, max_update_s)),
        draw(st.sampled_from([2, 4])),
    )


@st.composite
def plans(draw: st.DrawFn, *, max_update_s: float = 1e-6) -> tuple[StepProfile, tuple[int, ...]]:
    profile = draw(profiles(max_update_s=max_update_s))
    inner = range(1, profile.num_elements)
    cuts = draw(st.lists(st.sampled_from(inner), unique=True, max_size=10)) if inner else []
    return profile, tuple(sorted(cuts))


links = st.builds(Link, st.floats(0.0, 0.1), st.floats(0.0, 1e-5), st.floats(0.0, 0.01))
modes = st.sampled_from(list(Mode))


@given(plans(), links, st.integers(1, 8), modes)
@settings(deadline=None)
def test_no_plan_is_promised_to_beat_its_bound(plan, link, num_workers, mode):
    profile, cuts = plan
    step_s = simulate(profile, cuts, link, num_workers, mode).step_s
    assert step_s >= bound_s(profile, link, num_workers, mode) * (1 - 1e-9)


@given(plans(), links, st.integers(1, 8), modes)
@settings(deadline=None)
def test_every_second_of_a_step_is_work_launch_or_exposed(plan, link, num_workers, mode):
    profile, cuts = plan
    timeline = simulate(profile, cuts, link, num_workers, mode)
    sharded = mode in (Mode.BARRIER, Mode.EAGER)
    update_s = profile.update_s_per_element * profile.num_elements / (num_workers if sharded else 1)
    launches = (len(cuts) + 1) * (2 if sharded else 1) if num_workers > 1 else 0
    work_s = profile.forward_s + profile.backward_s + update_s + launches * link.launch_s
    assert timeline.step_s == pytest.approx(work_s + timeline.exposed_s)


@given(plans(max_update_s=0.0), st.floats(0.0, 1e-5), st.integers(2, 8))
@settings(deadline=None)
def test_gathering_early_never_costs_when_updates_and_launches_are_free(plan, beta, num_workers):
    profile, cuts = plan
    model = StepModel(profile, Link(0.0, beta), num_workers)
    buckets = model.buckets(cuts)
    # The rule itself, without the fallback to barrier that `course` adds.
    eager = model._gathered(buckets, model._reduced_and_filled(buckets))
    assert eager.step_s <= model.step_s(cuts, Mode.BARRIER) * (1 + 1e-9)


@given(plans(), links, st.integers(1, 8))
@settings(deadline=None)
def test_eager_is_never_planned_slower_than_barrier(plan, link, num_workers):
    profile, cuts = plan
    model = StepModel(profile, link, num_workers)
    assert model.step_s(cuts, Mode.EAGER) <= model.step_s(cuts, Mode.BARRIER)


@given(plans(), links, st.integers(2, 8), modes)
@settings(max_examples=60, deadline=None)
def test_picture_shows_one_thing_at_a_time_and_all_bytes(plan, link, num_workers, mode):
    profile, cuts = plan
    timeline = simulate(profile, cuts, link, num_workers, mode)
    for track in ("compute", "communication"):
        row = sorted((s for s in timeline.spans if s.track == track), key=lambda s: s.start_s)
        assert all(b.start_s >= a.end_s - 1e-9 for a, b in pairwise(row))
        assert all(s.end_s <= timeline.step_s + 1e-9 for s in row)
    waits = sum(s.duration_s for s in timeline.spans if s.name == "wait")
    assert waits == pytest.approx(timeline.exposed_s, abs=1e-9)
    if link.alpha_s > 1e-6:
        carried = [s for s in timeline.spans if s.name.startswith(("all-reduce", "reduce-scatter"))]
        assert sum(s.args["bytes"] for s in carried) == profile.num_elements * profile.element_bytes


@pytest.mark.parametrize("half_s", [0.3, 1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("mode", list(Mode))
def test_fine_buckets_on_a_quick_link_reach_the_bound(mode, half_s):
    profile = even_profile(400, forward_s=1.0, backward_s=2.0)
    link = link_for(profile, half_s, alpha_s=1e-7)
    step_s = simulate(profile, borders(profile), link, 2, mode).step_s
    # Eager decides at hooks only, so the link may run dry between two: at most 3 %, where both bounds meet.
    assert step_s == pytest.approx(bound_s(profile, link, 2, mode), rel=0.03 if mode == Mode.EAGER else 0.01)


def test_eager_gains_a_third_on_ddp_where_barrier_gains_a_seventh():
    profile = even_profile(400, forward_s=1.0, backward_s=2.0)
    link = link_for(profile, half_s=1.5)
    ddp, barrier, eager = (
        simulate(profile, borders(profile), link, 2, mode).step_s for mode in (Mode.DDP, Mode.BARRIER, Mode.EAGER)
    )
    assert ddp / barrier == pytest.approx(8 / 7, rel=0.01)
    assert ddp / eager == pytest.approx(4 / 3, rel=0.02)


def test_closed_forms_are_those_of_the_design():
    assert ddp_bound_s(1, 2, 1.5, 1.5) == 4
    assert barrier_bound_s(1, 2, 1.5, 1.5) == 3.5
    assert eager_bound_s(1, 2, 1.5, 1.5, first_layer_s=0.2) == pytest.approx(3.2)
    assert eager_bound_s(1, 2, 2.0, 2.0, last_ready_s=0.1, last_forward_s=0.05) == pytest.approx(4.15)


def test_one_bucket_by_hand():
    profile = StepProfile((ParameterTiming(1000, 1.0, 0.25),), 0.5, 1.0, 1e-4, 4)
    link = Link(alpha_s=0.1, beta_s_per_byte=1e-4, launch_s=0.01)  # 2000 bytes each way: 0.3 s a collective
    barrier = simulate(profile, (), link, 2, Mode.BARRIER)
    # backward 1.0, launch .01, wait .3, update half of .1, launch .01, then .25 of forward hide .25 of .3
    assert barrier.exposed_s == pytest.approx(0.3 + 0.05)
    assert barrier.step_s == pytest.approx(1.0 + 0.01 + 0.3 + 0.05 + 0.01 + 0.5 + 0.05)
    ddp = simulate(profile, (), link, 2, Mode.DDP)
    assert ddp.step_s == pytest.approx(1.0 + 0.01 + 0.6 + 0.1 + 0.5)


def test_a_bucket_waits_for_the_last_gradient_inside_it():
    profile = even_profile(2, forward_s=1.0, backward_s=2.0)
    link = link_for(profile, half_s=0.2)
    aligned = simulate(profile, (1000,), link, 2, Mode.BARRIER)
    straddling = simulate(profile, (1001,), link, 2, Mode.BARRIER)
    starts = [
        next(s.start_s for s in timeline.spans if s.name == "reduce-scatter 0") for timeline in (aligned, straddling)
    ]
    assert starts == [1.0, 2.0]


def test_no_bucket_is_gathered_early_twice():
    profile = even_profile(8, forward_s=1.0, backward_s=2.0)
    early = StepModel(profile, link_for(profile, 1.5), 2).course(borders(profile), Mode.EAGER).early
    assert early
    assert len(set(early)) == len(early)


def test_one_worker_neither_waits_nor_launches():
    profile = even_profile(4, forward_s=1.0, backward_s=2.0)
    for mode in Mode:
        assert simulate(profile, (1000,), Link(1.0, 1.0, 1.0), 1, mode).step_s == pytest.approx(3.0)


@pytest.mark.parametrize("cuts", [(0,), (4000,), (2000, 1000), (1000, 1000), (-5,)])
def test_cuts_that_split_nothing_are_refused(cuts):
    with pytest.raises(UsageError, match="increasing offsets"):
        simulate(even_profile(4, 1.0, 2.0), cuts, Link(0.0, 0.0), 2, Mode.BARRIER)


def test_nonsense_profiles_links_and_workers_are_refused():
    with pytest.raises(UsageError, match="without parameters"):
        StepProfile((), 1.0, 1.0, 0.0, 4)
    with pytest.raises(UsageError, match="negative or infinite"):
        StepProfile((ParameterTiming(1, float("nan"), 0.0),), 1.0, 1.0, 0.0, 4)
    with pytest.raises(UsageError, match="at least one element"):
        StepProfile((ParameterTiming(0, 0.0, 0.0),), 1.0, 1.0, 0.0, 4)
    with pytest.raises(UsageError, match="cannot cost"):
        Link(-1.0, 0.0)
    with pytest.raises(UsageError, match="0 workers"):
        simulate(even_profile(1, 1.0, 1.0), (), Link(0.0, 0.0), 0, Mode.DDP)


def test_measured_times_that_overshoot_the_phase_are_taken_as_its_end():
    late = StepProfile((ParameterTiming(1000, 1.02, 0.0),), 0.5, 1.0, 0.0, 4)
    on_time = StepProfile((ParameterTiming(1000, 1.0, 0.0),), 0.5, 1.0, 0.0, 4)
    link = Link(0.1, 1e-5)
    assert simulate(late, (), link, 2, Mode.DDP).step_s == simulate(on_time, (), link, 2, Mode.DDP).step_s


def test_the_documented_table_is_what_the_bounds_give():
    page = (Path(__file__).parents[3] / "docs" / "overlap.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| \d\.\d \|", line)]
    assert len(rows) == 5
    for row in rows:
        ratio, *shown = map(float, row)
        half_s = ratio * 3 / 2
        ddp, barrier, eager = (
            bound(1.0, 2.0, half_s, half_s) for bound in (ddp_bound_s, barrier_bound_s, eager_bound_s)
        )
        assert shown == pytest.approx([ddp, barrier, eager, ddp / barrier, ddp / eager], abs=0.00501)
