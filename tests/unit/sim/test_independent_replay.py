"""A second replay, written from the documentation and without the first: both must agree to the microsecond."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

import pytest

from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.elastic import policy_named
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import TableProfile, TrueJob, Workload

NUM_DEVICES = 8
NUM_QUEUES = 60


@dataclass
class Task:
    """One job at the one size it asked for."""

    submitted_s: float
    size: int
    left_s: float
    """Work at that size."""
    end_s: float = 0.0


def random_tasks(draw: random.Random) -> list[Task]:
    at_s, tasks = 0.0, []
    for _ in range(draw.randint(2, 14)):
        at_s += draw.expovariate(1 / 150.0)
        tasks.append(Task(at_s, draw.choice((1, 2, 3, 4, 8)), draw.uniform(60.0, 1500.0)))
    return tasks


def first_in_first_out(tasks: list[Task], restart_s: float, tick_s: float) -> list[float]:
    """Ends of the tasks; nobody overtakes, decisions at ticks after something happened."""
    arrivals, waiting, free, due_s = list(tasks), [], NUM_DEVICES, math.inf
    ends: list[tuple[float, int]] = []
    while arrivals or waiting or ends:
        now_s = min(ends[0][0] if ends else math.inf, arrivals[0].submitted_s if arrivals else math.inf, due_s)
        if ends and ends[0][0] == now_s:
            free += heapq.heappop(ends)[1]
        elif arrivals and arrivals[0].submitted_s == now_s:
            waiting.append(arrivals.pop(0))
        else:
            due_s = math.inf
            while waiting and waiting[0].size <= free:
                task = waiting.pop(0)
                task.end_s = now_s + restart_s + task.left_s
                free -= task.size
                heapq.heappush(ends, (task.end_s, task.size))
            continue
        due_s = min(due_s, math.ceil(now_s / tick_s) * tick_s if tick_s else now_s)
    return [task.end_s for task in tasks]


def shortest_remaining_first(tasks: list[Task]) -> list[float]:
    """Ends of the tasks; restarts and decisions cost nothing."""
    arrivals, present, now_s = list(tasks), list[Task](), 0.0
    while arrivals or present:
        running, free = [], NUM_DEVICES
        for task in sorted(present, key=lambda task: task.left_s):
            if task.size <= free:
                running.append(task)
                free -= task.size
        next_s = min([now_s + task.left_s for task in running] + [one.submitted_s for one in arrivals[:1]])
        for task in running:
            task.left_s -= next_s - now_s
        now_s = next_s
        for task in [one for one in present if one.left_s <= 1e-9]:
            task.end_s = now_s
            present.remove(task)
        while arrivals and arrivals[0].submitted_s <= now_s:
            present.append(arrivals.pop(0))
    return [task.end_s for task in tasks]


def by_weft(tasks: list[Task], policy: str, options: SimulationOptions) -> list[float]:
    jobs = []
    for number, task in enumerate(tasks):
        sizes = (task.size,)
        spec = JobSpec(f"j{number}", task.submitted_s, task.size, task.size, task.size, sizes)
        jobs.append(TrueJob(spec, TableProfile({task.size: StepTime(0.5)}), total_steps=task.left_s / 0.5))
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
