"""The replay can be believed: repeatable, and right where the answer can be worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.cluster import Cluster, Shape
from weft.core.job import JobSpec
from weft.core.reason import PolicyChoice, Reason
from weft.core.snapshot import Allocation, Snapshot
from weft.core.speed import StepTime
from weft.elastic import POLICIES, policy_named
from weft.elastic.balanced import Balanced
from weft.errors import UsageError
from weft.perf.crossover import filler_speed, turns_speed
from weft.sim.believed_lengths import Lengths
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import SimulationResult
from weft.sim.workload import TableProfile, TrueJob, Workload

LINEAR = TableProfile({w: StepTime(1.0 / w) for w in range(1, 9)})
WAITING = TableProfile({w: StepTime(1.0 / w + 0.2, 0.2) for w in range(1, 9)})
AT_ONCE = SimulationOptions(decision_interval_s=0.0, restart_s=0.0)


def job(name: str, submitted_s: float, steps: float, *, workers: int = 8, profile: TableProfile = LINEAR) -> TrueJob:
    return TrueJob(
        JobSpec(name, submitted_s, max_workers=workers, requested_workers=workers), profile, total_steps=steps
    )


def replay(jobs: list[TrueJob], policy: str = "balanced", options: SimulationOptions = AT_ONCE) -> SimulationResult:
    return simulate(Workload("test", tuple(jobs)), Cluster.uniform(2, 4), policy_named(policy), options)


def test_one_job_alone_takes_start_and_work() -> None:
    options = SimulationOptions(decision_interval_s=60.0, restart_s=30.0)
    result = replay([job("a", 70.0, steps=800.0)], options=options)
    (only,) = result.jobs
    assert only.started_s == 120.0
    assert only.finished_s == pytest.approx(120.0 + 30.0 + 800.0 / 8)
    assert result.utilization == pytest.approx(130.0 / 180.0)
    assert only.device_s == pytest.approx(8 * 130.0)


def test_fifo_serves_in_order_and_moves_no_job() -> None:
    result = replay([job("a", 0.0, 80.0), job("b", 1.0, 80.0)], policy="fifo")
    assert [one.finished_s for one in result.jobs] == pytest.approx([10.0, 20.0])
    assert result.restarts_per_job == 0


def test_every_move_costs_its_restart() -> None:
    options = replace(AT_ONCE, restart_s=10.0)
    result = replay([job("a", 0.0, 800.0), job("b", 20.0, 80.0)], policy="equal", options=options)
    moved = [one for one in result.jobs if one.num_restarts]
    assert moved
    work_s = sum((span.end_s - span.start_s) * len(span.devices) for span in result.spans)
    starts = sum(1 + one.num_restarts for one in result.jobs)
    assert work_s > 880.0
    assert work_s <= 880.0 + starts * 10.0 * 8


class Together:
    """Two jobs on all devices, always."""

    name = "together"

    def __init__(self, *, fill: bool) -> None:
        self.fill = fill

    def decide(self, snapshot: Snapshot) -> Allocation:
        names = [job.id for job in snapshot.jobs]
        if len(names) == 1:
            return Allocation({names[0]: 8})
        fillers = frozenset(names[1:] if self.fill else ())
        return Allocation(dict.fromkeys(names, 8), ((names[0], names[1]),), fillers)

    def explain(self, snapshot: Snapshot, allocation: Allocation, job: str) -> Reason:
        return PolicyChoice(self.name, allocation.workers[job])


def share(steps: tuple[float, float], *, fill: bool, restart_s: float = 0.0) -> SimulationResult:
    jobs = [job(name, 0.0, num, profile=WAITING) for name, num in zip("ab", steps, strict=True)]
    options = replace(AT_ONCE, crossover=True, handover_s=0.0, restart_s=restart_s)
    return simulate(Workload("two", tuple(jobs)), Cluster.uniform(2, 4), Together(fill=fill), options)


def test_two_jobs_that_take_turns_advance_by_the_rule_of_the_design() -> None:
    result = share((1000.0, 1000.0), fill=False)
    speed = turns_speed(WAITING.times[8], WAITING.times[8]).first_steps_per_s
    assert {span.partner for span in result.spans} == {"a", "b"}
    assert [one.finished_s for one in result.jobs] == pytest.approx([1000.0 / speed] * 2)
    assert result.busy_device_s == pytest.approx(8 * 1000.0 / speed)


def test_the_survivor_of_a_pair_has_the_devices_to_itself() -> None:
    result = share((1000.0, 500.0), fill=False)
    together_s = 500.0 / turns_speed(WAITING.times[8], WAITING.times[8]).first_steps_per_s
    assert result.jobs[1].finished_s == pytest.approx(together_s)
    assert result.jobs[0].finished_s == pytest.approx(together_s + 500.0 * WAITING.times[8].step_s)
    assert result.jobs[0].num_restarts == 0


def test_a_primary_ends_as_if_it_were_alone_and_its_filler_got_the_gaps() -> None:
    result = share((1000.0, 1000.0), fill=True)
    alone_s = 1000.0 * WAITING.times[8].step_s
    filled = filler_speed(WAITING.times[8], WAITING.times[8]).second_steps_per_s * alone_s
    assert 0 < filled < 1000.0
    assert result.jobs[0].finished_s == pytest.approx(alone_s)
    assert result.jobs[1].finished_s == pytest.approx(alone_s + (1000.0 - filled) * WAITING.times[8].step_s)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    profiles = [LINEAR, WAITING, TableProfile({1: StepTime(1.0), 4: StepTime(0.4, 0.15)})]
    times = sorted(draw(st.lists(st.floats(0, 2000), min_size=1, max_size=8)))
    jobs = tuple(
        TrueJob(
            JobSpec(
                f"j{index}",
                time_s,
                max_workers=draw(st.integers(1, 8)),
                requested_workers=draw(st.integers(1, 8)),
                user=draw(st.sampled_from(["ada", "bo"])),
            ),
            draw(st.sampled_from(profiles)),
            draw(st.floats(1.0, 2000.0)),
        )
        for index, time_s in enumerate(times)
    )
    return Workload("drawn", jobs, quotas=draw(st.sampled_from([{}, {"ada": 4}])))


knobs = st.builds(
    SimulationOptions,
    decision_interval_s=st.sampled_from([0.0, 60.0]),
    restart_s=st.sampled_from([0.0, 30.0]),
    seed=st.integers(0, 3),
    prediction_error=st.sampled_from([0.0, 0.5]),
    explore=st.booleans(),
    crossover=st.booleans(),
    node_mtbf_s=st.sampled_from([0.0, 3000.0]),
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, deadline=None)
@given(workload=workloads(), options=knobs)
def test_every_job_ends_and_the_log_is_the_same_each_time(
    policy: str, workload: Workload, options: SimulationOptions
) -> None:
    cluster = Cluster.uniform(2, 4)
    first, second = (simulate(workload, cluster, policy_named(policy), options) for _ in range(2))
    assert (first.jobs, first.spans) == (second.jobs, second.spans)
    assert len(first.jobs) == len(workload.jobs)
    for true, one in zip(workload.jobs, first.jobs, strict=True):
        # The steps were really made, and no faster than the fastest size allows.
        assert one.submitted_s <= one.started_s
        fastest = min(true.profile.step_time((size,)).step_s for size in true.profile.sizes)
        assert one.finished_s - one.started_s >= options.restart_s + true.total_steps * fastest * (1 - 1e-9)
    check_devices(first, shared=options.crossover)


def check_devices(result: SimulationResult, *, shared: bool) -> None:
    """At no time do two jobs hold a device, unless they take turns on it."""
    held: dict[int, list[tuple[float, float, str, str | None]]] = {}
    for span in result.spans:
        for device in span.devices:
            held.setdefault(device, []).append((span.start_s, span.end_s, span.job, span.partner))
    for spans in held.values():
        spans.sort()
        for index, (_, end_s, name, partner) in enumerate(spans):
            for start_s, _, other, other_partner in spans[index + 1 :]:
                if start_s >= end_s - 1e-9:
                    break
                assert shared
                assert (partner, other_partner) == (other, name)


def test_node_failures_cost_time_but_no_job() -> None:
    jobs = [job(f"j{i}", 0.0, 20_000.0) for i in range(4)]
    calm = replay(jobs)
    stormy = replay(jobs, options=replace(AT_ONCE, node_mtbf_s=2000.0, node_repair_s=500.0))
    assert stormy.makespan_s > calm.makespan_s
    assert len(stormy.jobs) == 4


def test_exploring_jobs_try_small_sizes_before_large_ones() -> None:
    options = SimulationOptions(explore=True)
    result = replay([job("a", 0.0, 8000.0)], options=options)
    sizes = [len(span.devices) for span in result.spans]
    assert sizes[0] == 1
    assert all(after <= 2 * before for before, after in pairwise(sizes))
    assert sizes[-1] == 8


def test_a_job_larger_than_the_cluster_is_refused_by_name() -> None:
    big = TrueJob(JobSpec("big", 0.0, min_workers=9, max_workers=9, requested_workers=9), LINEAR, 1.0)
    with pytest.raises(UsageError, match="job big needs at least 9 workers, this cluster has 8"):
        replay([big])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_quota_that_lets_a_job_never_run_is_an_error_not_an_endless_replay(policy: str) -> None:
    jobs = (TrueJob(JobSpec("a", 0.0, min_workers=4, max_workers=4, user="ada"), LINEAR, 1.0),)
    workload = Workload("stuck", jobs, quotas={"ada": 2})
    with pytest.raises(UsageError, match="job a needs at least 4 workers, but the quota of ada is 2: raise the quota"):
        simulate(workload, Cluster.uniform(2, 4), policy_named(policy), AT_ONCE)


def test_where_a_job_sits_decides_how_fast_it_is() -> None:
    class AcrossNodes:
        sizes = (4,)

        def step_time(self, shape: Shape) -> StepTime:
            return StepTime(1.0 if len(shape) == 1 else 5.0)

    profile = AcrossNodes()
    jobs = [
        TrueJob(JobSpec(f"j{i}", 0.0, min_workers=4, max_workers=4, requested_workers=4), profile, 100.0)
        for i in range(2)
    ]
    assert [one.finished_s for one in replay(jobs, policy="fifo").jobs] == pytest.approx([100.0, 100.0])


def test_decisions_about_a_job_are_put_into_words() -> None:
    options = replace(AT_ONCE, explained_jobs=frozenset({"b"}))
    result = replay([job("a", 0.0, 80.0), job("b", 1.0, 80.0)], policy="fifo", options=options)
    assert [one.workers for one in result.explanations] == [0, 8]
    assert [one.sentence for one in result.explanations] == ["waits for 8 devices", "8 workers, as requested"]


RESIZING = [name for name in POLICIES if name not in ("fifo", "tiresias")]
"""Those that would stop or shrink a running job for a short one."""


@pytest.mark.parametrize("name", RESIZING)
def test_a_job_shorter_than_its_start_does_not_wait_for_hours(name: str) -> None:
    """8 hours of work on 4 devices, and after 10 minutes a job of 20 s."""
    jobs = (job("long", 0.0, 8 * 3600.0 * 4, workers=4), job("short", 600.0, 20.0, workers=4))
    result = simulate(
        Workload("two", jobs), Cluster.uniform(1, 4), policy_named(name), SimulationOptions(restart_s=30.0)
    )
    assert result.mean_jct_s == pytest.approx(14480.0, rel=0.01)


@pytest.mark.parametrize("name", RESIZING)
@settings(max_examples=20, deadline=None)
@given(
    restart_s=st.floats(0.1, 120.0),
    lengths_s=st.lists(st.floats(0.1, 300.0), min_size=1, max_size=6),
    workers=st.integers(1, 8),
    scaling=st.floats(0.3, 1.0),
)
def test_no_short_job_waits_for_a_long_one_to_end(
    name: str, restart_s: float, lengths_s: list[float], workers: int, scaling: float
) -> None:
    profile = TableProfile({size: StepTime(size**-scaling) for size in range(1, 9)})
    short = [
        job(f"short{at}", 600.0 + 500.0 * at, length_s, workers=workers, profile=profile)
        for at, length_s in enumerate(lengths_s)
    ]
    jobs = [job("long", 0.0, 8 * 3600.0 * 8, profile=profile), *short]
    result = replay(jobs, name, SimulationOptions(restart_s=restart_s))
    for one in result.jobs[1:]:
        assert one.finished_s - one.submitted_s < 3600.0


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "fifo"])
def test_a_short_job_is_started_when_it_is_due_even_if_nothing_else_happens(name: str) -> None:
    """Without a decision at that time, it would wait for the next review or, if there is none, until it is overdue."""
    jobs = [job(f"long{at}", 0.0, 1e5, workers=1) for at in range(8)]
    short = job("short", 610.0, 20.0, workers=1)
    result = replay([*jobs, short], name, SimulationOptions(restart_s=30.0))
    assert result.jobs[-1].started_s - short.spec.submitted_s <= 10 * 20.0 + 300.0


def test_a_wrong_prediction_does_not_keep_a_job_small_forever() -> None:
    """With errors of 50 % some job is told that two workers are slower than one; running at a size corrects it."""
    jobs = [job(f"j{number}", 100_000.0 * number, 60_000.0) for number in range(12)]
    options = SimulationOptions(explore=True, prediction_error=0.5)
    for one in replay(jobs, options=options).jobs:
        # Alone on eight devices, and told the truth, it takes 7500 s of work; on one device 60,000 s.
        assert one.completion_s < 15_000.0, one.name


@pytest.mark.parametrize("lengths", list(Lengths))
def test_lengths_may_be_known_declared_learned_or_unknown(lengths: Lengths) -> None:
    jobs = [job(f"train-{number}", 10.0 * number, 100.0 * (1 + number % 3)) for number in range(30)]
    options = SimulationOptions(lengths=lengths)
    result = replay(jobs, options=options)
    assert len(result.jobs) == len(jobs)
    again = replay(jobs, options=options)
    assert (result.jobs, result.spans) == (again.jobs, again.spans)


def test_an_unknown_length_is_not_leaked_to_the_policy() -> None:
    seen: list[float] = []

    class Spy(Balanced):
        def decide(self, snapshot: Snapshot) -> Allocation:
            seen.extend(view.remaining_steps for view in snapshot.jobs if not view.attained_device_s)
            return super().decide(snapshot)

    jobs = [job("short", 0.0, 10.0), job("long", 0.0, 1e5)]
    simulate(Workload("test", tuple(jobs)), Cluster.uniform(2, 4), Spy(), SimulationOptions(lengths=Lengths.UNKNOWN))
    assert set(seen) == {300.0}, "ten restarts, whatever the job"


def test_a_job_of_unknown_length_is_assumed_to_need_ten_of_its_own_starts() -> None:
    seen: dict[str, float] = {}

    class Spy(Balanced):
        def decide(self, snapshot: Snapshot) -> Allocation:
            seen.update((view.id, view.remaining_steps) for view in snapshot.jobs if not view.attained_device_s)
            return super().decide(snapshot)

    jobs = (job("usual", 0.0, 10.0), replace(job("slow", 0.0, 10.0), start_s=90.0))
    simulate(Workload("test", jobs), Cluster.uniform(2, 4), Spy(), SimulationOptions(lengths=Lengths.UNKNOWN))
    assert seen == {"usual": 300.0, "slow": 900.0}


@pytest.mark.parametrize("start_s", [-1.0, float("nan"), float("inf")])
def test_a_start_that_takes_no_real_time_is_refused(start_s: float) -> None:
    with pytest.raises(UsageError, match="a start of job a costs"):
        replace(job("a", 0.0, 10.0), start_s=start_s)


@pytest.mark.parametrize("is_first_of_family", [True, False])
def test_few_long_steps_count_as_a_short_job_only_until_the_family_is_known(*, is_first_of_family: bool) -> None:
    slow, fast = (TableProfile({1: StepTime(step_s)}) for step_s in (100.0, 1.0))
    waiting = [job("slow-2", 200.0, 5.0, profile=slow), job("fast-2", 200.5, 50.0, profile=fast)]
    earlier = [job("busy", 100.0, 300.0, profile=fast)]
    if not is_first_of_family:
        earlier = [job("slow-1", 0.0, 1.0, profile=slow), job("fast-1", 1.0, 1.0, profile=fast), *earlier]
    options = replace(AT_ONCE, explore=True, restart_s=1.0)
    cluster = Cluster.uniform(1, 1)
    result = simulate(Workload("test", (*earlier, *waiting)), cluster, policy_named("balanced"), options)
    ended = {one.name: one.finished_s for one in result.jobs}
    assert (ended["slow-2"] < ended["fast-2"]) == is_first_of_family


@pytest.mark.parametrize(("reports", "every_s", "resized_s"), [(0, 0.0, 2.0), (5, 0.0, 7.0), (3, 1.5, 8.0)])
def test_a_size_is_believed_only_after_as_many_reports_as_the_controller_needs(
    reports: int, every_s: float, resized_s: float
) -> None:
    options = replace(AT_ONCE, explore=True, restart_s=2.0, measured_after_reports=reports, report_every_s=every_s)
    assert replay([job("a", 0.0, 100.0)], options=options).spans[1].start_s == resized_s


def test_a_policy_counts_what_a_restart_costs_when_the_first_start_was_cheaper() -> None:
    """Otherwise a job is stopped for another although that delays both."""
    ended_s = {}
    for restart_s in (None, 5.0):
        running = replace(job("running", 0.0, 20.0, workers=1), start_s=1.0, restart_s=restart_s)
        later = replace(job("later", 5.0, 11.0, workers=1), start_s=1.0)
        policy = policy_named("balanced")
        result = simulate(Workload("test", (running, later)), Cluster.uniform(1, 1), policy, AT_ONCE)
        ended_s[restart_s] = [one.finished_s for one in result.jobs]
    assert ended_s == {None: [34.0, 17.0], 5.0: [21.0, 33.0]}


def test_nodes_that_fail_too_often_for_any_job_are_refused_instead_of_replayed_forever() -> None:
    jobs = [job("a", 0.0, steps=800.0), job("b", 0.0, steps=800.0)]
    options = SimulationOptions(node_mtbf_s=2.0, restart_s=60.0)
    with pytest.raises(UsageError, match=r"nodes fail so often \(every 2 s .* a start \(60 s\).*raise --node-mtbf-s"):
        replay(jobs, options=options)
    # Slow, but not forever.
    often = SimulationOptions(node_mtbf_s=60.0, node_repair_s=1.0, restart_s=30.0, decision_interval_s=0.0)
    assert len(replay(jobs, options=often).jobs) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"node_mtbf_s": 0.000001}, "node_mtbf_s is 1e-06: expected at least 1 s"),
        ({"prediction_error": 1e9}, r"prediction_error is 1e\+09: expected at most 10"),
    ],
)
def test_values_that_make_a_replay_impossible_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SimulationOptions(**values)  # type: ignore[arg-type]


def test_decision_times_do_not_include_the_import_of_scipy() -> None:
    """The first policy that repacks nodes would look slower than the others."""
    script = """
import sys
from weft.core.cluster import Cluster
from weft.elastic import policy_named
from weft.sim import replay
from weft.sim.synthetic import synthetic_workload
decide, loaded = replay.decide, []
def watched(*args, **options):
    loaded.append("scipy.optimize" in sys.modules)
    return decide(*args, **options)
replay.decide = watched
replay.simulate(synthetic_workload("synthetic:none:2", num_devices=4), Cluster.uniform(1, 4), policy_named("fifo"))
print(set(loaded))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "{True}\n", done.stderr
