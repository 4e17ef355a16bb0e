"""A second replay, written from the documentation and without the first: both must agree to the microsecond."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from pathlib import Path

import independent_replay
import pytest
from independent_replay import (
    NUM_DEVICES,
    Task,
    equal_shares,
    first_in_first_out,
    random_tasks,
    shortest_remaining_first,
)

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.elastic import policy_named
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import TableProfile, TrueJob, Workload

NUM_QUEUES = 60
ELASTICITY = 0.7


def by_weft(
    tasks: list[Task], policy: str, options: SimulationOptions, sizes: Sequence[int] | None = None
) -> list[float]:
    """Ends of the tasks; at their own size if no ``sizes`` are given."""
    jobs = []
    for number, task in enumerate(tasks):
        menu = tuple(sizes or (task.size,))
        spec = JobSpec(f"j{number}", task.submitted_s, menu[0], menu[-1], menu[-1], menu)
        profile = TableProfile({size: StepTime(0.5 * (size / menu[0]) ** -ELASTICITY) for size in menu})
        jobs.append(TrueJob(spec, profile, total_steps=task.left_s / 0.5))
    # One node: on several, a job may be moved so that another fits on a whole node.
    cluster = Cluster.uniform(1, NUM_DEVICES)
    result = simulate(Workload("random", tuple(jobs)), cluster, policy_named(policy), options)
    return [job.finished_s for job in result.jobs]


@pytest.mark.parametrize(("restart_s", "tick_s"), [(0.0, 0.0), (30.0, 60.0), (7.0, 0.0)])
def test_first_in_first_out_agrees(restart_s: float, tick_s: float) -> None:
    draw = random.Random(f"fifo {restart_s} {tick_s}")
    options = SimulationOptions(restart_s=restart_s, decision_interval_s=tick_s)
    for _ in range(NUM_QUEUES):
        tasks = random_tasks(draw)
        found = by_weft(tasks, "fifo", options)
        assert found == pytest.approx(first_in_first_out(tasks, restart_s, tick_s), abs=1e-6)


def test_shortest_remaining_time_first_agrees() -> None:
    draw = random.Random("srtf")
    options = SimulationOptions(restart_s=0.0, decision_interval_s=0.0)
    for _ in range(NUM_QUEUES):
        tasks = random_tasks(draw)
        found = by_weft(tasks, "srtf", options)
        assert found == pytest.approx(shortest_remaining_first(tasks), abs=1e-6)


def test_jobs_that_are_resized_at_every_arrival_and_end_agree() -> None:
    draw = random.Random("equal")
    options = SimulationOptions(restart_s=0.0, decision_interval_s=0.0)
    for _ in range(NUM_QUEUES):
        tasks = random_tasks(draw)
        found = by_weft(tasks, "equal", options, sizes=(1, 2, 4, 8))
        assert found == pytest.approx(equal_shares(tasks, ELASTICITY), abs=1e-6)


def test_the_independent_replay_is_independent() -> None:
    tree = ast.parse(Path(str(independent_replay.__file__)).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "dataclasses", "heapq", "math", "random"}
