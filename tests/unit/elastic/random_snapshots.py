"""Random snapshots for the policy tests."""

from __future__ import annotations

from hypothesis import strategies as st

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime

USERS = ("ada", "bo", "")


@st.composite
def curves(draw: st.DrawFn, sizes: tuple[int, ...]) -> SpeedCurve:
    """Any step times at all: policies must not rely on speed-ups being concave or even monotone."""
    times = {}
    for size in sizes:
        step_s = draw(st.floats(0.01, 10.0)) / size**0.5
        times[size] = StepTime(step_s, step_s * draw(st.floats(0.0, 0.9)))
    return SpeedCurve(times)


@st.composite
def job_views(draw: st.DrawFn, index: int, num_devices: int) -> JobView:
    min_workers = draw(st.integers(1, max(1, num_devices // 3)))
    max_workers = draw(st.integers(min_workers, num_devices + 2))
    menu = draw(st.sampled_from([(), tuple(range(min_workers, max_workers + 1, 2))]))
    spec = JobSpec(
        f"job{index}",
        submitted_s=float(index),
        min_workers=min_workers,
        max_workers=max_workers,
        requested_workers=draw(st.integers(min_workers, max_workers)),
        sizes=menu,
        user=draw(st.sampled_from(USERS)),
        weight=draw(st.floats(0.1, 10.0)),
        priority=draw(st.integers(-1, 1)),
    )
    sizes = spec.allowed_sizes(max_workers)
    workers = draw(st.sampled_from([0, *[size for size in sizes if size <= num_devices]]))
    return JobView(
        spec,
        draw(curves(sizes)),
        remaining_steps=draw(st.floats(1.0, 1e5)),
        restart_s=draw(st.floats(0.0, 60.0)),
        workers=workers,
        attained_device_s=draw(st.floats(0.0, 1e5)),
        waited_s=0.0 if workers else draw(st.floats(0.0, 1e5)),
        settled_s=draw(st.floats(0.0, 1e4)) if workers else 0.0,
    )


@st.composite
def snapshots(draw: st.DrawFn, *, crossover: bool = False) -> Snapshot:
    cluster = Cluster.uniform(draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    jobs = []
    held = 0
    for index in range(draw(st.integers(0, 7))):
        job = draw(job_views(index, cluster.num_devices))
        held += job.workers
        if held <= cluster.num_devices:
            jobs.append(job)
    quotas = draw(st.dictionaries(st.sampled_from(USERS[:2]), st.integers(1, cluster.num_devices), max_size=1))
    return Snapshot(1e5, cluster, tuple(jobs), quotas, crossover=crossover, handover_s=0.001)
