"""Small queues replayed from scratch: no line of it is shared with weft, so that one mistake is not in both."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

NUM_DEVICES = 8


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


def doubled_in_turn(num_tasks: int) -> list[int]:
    """Devices of each task: those that came first get one; then the smallest holdings double, as long as it fits."""
    held = [1 if rank < NUM_DEVICES else 0 for rank in range(num_tasks)]
    growing = [rank for rank in range(num_tasks) if held[rank]]
    while growing:
        growing.sort(key=lambda rank: (held[rank], rank))
        still = []
        for rank in growing:
            if sum(held) + held[rank] <= NUM_DEVICES:
                held[rank] *= 2
                still.append(rank)
        growing = still
    return held


def equal_shares(tasks: list[Task], elasticity: float) -> list[float]:
    """Ends of tasks that may have 1, 2, 4, or 8 devices, w of which are w ** elasticity times as fast as one.

    Resizes cost nothing.
    """
    arrivals, present, now_s = list(tasks), list[Task](), 0.0
    while arrivals or present:
        speeds = [num**elasticity if num else 0.0 for num in doubled_in_turn(len(present))]
        ends = [now_s + task.left_s / speed for task, speed in zip(present, speeds, strict=True) if speed]
        next_s = min(ends + [one.submitted_s for one in arrivals[:1]])
        for task, speed in zip(present, speeds, strict=True):
            task.left_s -= (next_s - now_s) * speed
        now_s = next_s
        for task in [one for one in present if one.left_s <= 1e-9]:
            task.end_s = now_s
            present.remove(task)
        while arrivals and arrivals[0].submitted_s <= now_s:
            present.append(arrivals.pop(0))
    return [task.end_s for task in tasks]
