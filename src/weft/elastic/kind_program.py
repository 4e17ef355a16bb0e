"""The utility program for several device kinds: each job gets some devices of one kind, or waits.

The options of a job are its sizes on every kind it can run on.  Utilities are those of the policy, with the job's speed
on that kind; changing the kind costs a restart, like changing the size.  The summed utility is maximized under one
limit per kind, by :mod:`weft.elastic.kind_knapsack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.kind_knapsack import KindProblem, best_options
from weft.elastic.kind_turns import relative_speed
from weft.elastic.menu import MenuBook, MenuTable
from weft.elastic.policy import ordered
from weft.elastic.rules import Rules, by_priority
from weft.elastic.stakes import FloatArray, IntArray, Stakes


class KindUtility(Protocol):
    """The part of a utility policy that the program needs."""

    rules: Rules
    admits_in_order: bool

    def standing(self, stakes: Stakes) -> FloatArray: ...

    def utility(self, times_s: FloatArray, standing: FloatArray) -> FloatArray: ...

    def restarts_s(self, times_s: FloatArray, stakes: Stakes, rows: IntArray | slice) -> FloatArray: ...

    def stop_costs(self, stakes: Stakes, standing: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, eq=False)
class _Options:
    """What each job could have: one row per job, with the columns of each kind next to each other."""

    kind_names: tuple[str, ...]
    capacity: IntArray
    sizes: IntArray
    step_s: FloatArray
    kinds: IntArray
    """Kind by column; -1 for no workers."""
    is_present: NDArray[np.bool_]
    """Whether the option is what the job has now."""


class _KindRoom:
    """The remaining devices by kind and quotas by user."""

    def __init__(self, snapshot: Snapshot, options: _Options) -> None:
        self._options = options
        self.devices = options.capacity.copy()
        self.quotas = dict(snapshot.quotas)

    def fits(self, job: JobView, row: int, column: int) -> bool:
        size = int(self._options.sizes[row, column])
        has_room = not column or size <= self.devices[self._options.kinds[column]]
        return bool(has_room) and size <= self.quotas.get(job.spec.user, size)

    def take(self, job: JobView, row: int, column: int, times: int = 1) -> None:
        size = times * int(self._options.sizes[row, column])
        if column:
            self.devices[self._options.kinds[column]] -= size
        if job.spec.user in self.quotas:
            self.quotas[job.spec.user] -= size


def decide_across_kinds(policy: KindUtility, books: Mapping[str, MenuBook], snapshot: Snapshot) -> Allocation:
    """The allocation with the greatest summed utility."""
    options = _options(books, snapshot)
    num_able = np.count_nonzero(options.sizes, axis=1)
    if not num_able.all():
        able = tuple(job for job, num in zip(snapshot.jobs, num_able.tolist(), strict=True) if num)
        return decide_across_kinds(policy, books, replace(snapshot, jobs=able)) if able else Allocation({})
    jobs = snapshot.jobs
    stakes = _stakes(snapshot, options)
    standing = policy.standing(stakes)
    restarts_s = policy.restarts_s(stakes.times_s, stakes, slice(None))
    utility = policy.utility(stakes.times_s + np.where(options.is_present, 0.0, restarts_s), standing[:, None])
    utility += np.where(np.isfinite(stakes.times_s), policy.stop_costs(stakes, standing)[:, None], 0.0)
    utility[:, 1:][options.sizes[:, 1:] == 0] = -np.inf
    start = _confined(policy, snapshot, options, utility)
    choice = start.copy()
    room = _KindRoom(snapshot, options)
    for row, job in enumerate(jobs):
        room.take(job, row, int(start[row]))
    for rows in by_priority(jobs, range(len(jobs))):
        for row in rows:
            room.take(jobs[row], row, int(start[row]), -1)
        choice[rows] = _best(options, utility, [jobs[row] for row in rows], rows, room, start[rows])
        for row in rows:
            room.take(jobs[row], row, int(choice[row]))
    _use_idle(jobs, options, utility, choice, room)
    workers, kinds = {}, {}
    for row, (job, column) in enumerate(zip(jobs, choice.tolist(), strict=True)):
        if column:
            workers[job.id] = int(options.sizes[row, column])
            kinds[job.id] = options.kind_names[options.kinds[column]]
    valid_until_s = min(policy.rules.next_due_s(snapshot), snapshot.now_s + policy.rules.review_s)
    return Allocation(workers, valid_until_s=valid_until_s, kinds=kinds)


def _options(books: Mapping[str, MenuBook], snapshot: Snapshot) -> _Options:
    jobs, names = snapshot.jobs, snapshot.cluster.kind_names
    sizes, step_s = [np.zeros((len(jobs), 1), dtype=np.int64)], [np.full((len(jobs), 1), np.inf)]
    kinds = [-1]
    capacity = []
    row_of = {job.id: row for row, job in enumerate(jobs)}
    for number, kind in enumerate(names):
        capacity.append(snapshot.num_of_kind(kind))
        part = snapshot.of_kind(kind, jobs)
        if not part.jobs:
            continue
        table = books[kind].table(part.cluster, part.jobs)
        rows = [row_of[job.id] for job in part.jobs]
        width = table.sizes.shape[1] - 1
        wide_sizes, wide_step_s = np.zeros((len(jobs), width), dtype=np.int64), np.full((len(jobs), width), np.inf)
        wide_sizes[rows], wide_step_s[rows] = table.sizes[:, 1:], table.step_s[:, 1:]
        # Some devices may be in use: a size that does not fit the others is ruled out.
        too_large = wide_sizes > capacity[-1]
        wide_sizes[too_large], wide_step_s[too_large] = 0, np.inf
        sizes.append(wide_sizes)
        step_s.append(wide_step_s)
        kinds += [number] * width
    of_column = np.array(kinds)
    all_sizes = np.concatenate(sizes, axis=1)
    home = np.array([names.index(job.kind) if job.workers else -1 for job in jobs])
    held = np.array([job.workers for job in jobs])
    is_present = (all_sizes == held[:, None]) & (of_column[None, :] == home[:, None])
    return _Options(names, np.array(capacity), all_sizes, np.concatenate(step_s, axis=1), of_column, is_present)


def _stakes(snapshot: Snapshot, options: _Options) -> Stakes:
    jobs, names = snapshot.jobs, options.kind_names
    rows = [(job.remaining_steps, job.restart_s, job.workers, job.spec.weight) for job in jobs]
    remaining_steps, restart_s, workers, weights = np.array(rows, dtype=np.float64).T.copy()
    speeds = np.array([relative_speed(jobs, kind, names[0]) for kind in names])
    return Stakes(
        MenuTable(options.sizes, options.step_s),
        remaining_steps,
        restart_s,
        workers,
        weights,
        np.array([job.is_length_known for job in jobs]),
        options.is_present,
        max(float(options.capacity @ speeds), 1e-9),
        options.kinds,
        speeds,
    )


def _confined(policy: KindUtility, snapshot: Snapshot, options: _Options, utility: FloatArray) -> IntArray:
    """Rule out (``-inf``) what the rules forbid; returns a choice that keeps them all."""
    rules, jobs = policy.rules, snapshot.jobs
    if policy.admits_in_order:
        rows = ordered(snapshot, rules)
    else:
        rows = sorted(rules.urgent(jobs), key=lambda row: (rules.rank(jobs[row]), row))
    start = np.zeros(len(jobs), dtype=np.int64)
    room = _KindRoom(snapshot, options)
    for row in rows:
        job = jobs[row]
        present = np.flatnonzero(options.is_present[row] & (options.sizes[row] > 0))
        is_pinned = rules.pinned(job) and len(present) > 0
        wishes = present.tolist() if is_pinned else _smallest(options, row)
        column = next((column for column in wishes if room.fits(job, row, column)), 0)
        if column:
            room.take(job, row, column)
            start[row] = column
            utility[row, 0] = -np.inf
            if is_pinned:
                utility[row, np.arange(utility.shape[1]) != column] = -np.inf
        elif policy.admits_in_order:
            utility[row, 0] = 0.0
            utility[row, 1:] = -np.inf
    return start


def _smallest(options: _Options, row: int) -> list[int]:
    """The columns of the smallest size on each kind, starting with the kind that needs the least device time."""
    columns = np.flatnonzero(options.sizes[row])
    first = [int(column) for column in columns if options.kinds[column - 1] != options.kinds[column]]
    return sorted(first, key=lambda column: options.sizes[row, column] * options.step_s[row, column])


def _best(
    options: _Options,
    utility: FloatArray,
    jobs: Sequence[JobView],
    rows: Sequence[int],
    room: _KindRoom,
    start: IntArray,
) -> IntArray:
    """The best options of some jobs with the remaining devices."""
    slack = [(np.flatnonzero([job.spec.user == user for job in jobs]), limit) for user, limit in room.quotas.items()]
    # Most quotas do not bind: only those that do become part of the program.
    binding: list[tuple[IntArray, int]] = []
    part_utility, part_sizes = utility[rows], options.sizes[rows]
    while True:
        problem = KindProblem(part_utility, part_sizes, options.kinds, room.devices, tuple(binding))
        choice = best_options(problem, start).choice
        held = part_sizes[np.arange(len(rows)), choice]
        broken = [held[group].sum() > limit for group, limit in slack]
        if not any(broken):
            return choice
        binding += [group for group, over in zip(slack, broken, strict=True) if over]
        slack = [group for group, over in zip(slack, broken, strict=True) if not over]


def _use_idle(
    jobs: Sequence[JobView], options: _Options, utility: FloatArray, choice: IntArray, room: _KindRoom
) -> None:
    """No job waits while devices are idle, not even one whose utility is lost in the rounding of the sum."""
    if not room.devices.any():
        return
    for row in np.flatnonzero(choice == 0).tolist():
        for column in _smallest(options, row):
            if np.isfinite(utility[row, column]) and room.fits(jobs[row], row, column):
                room.take(jobs[row], row, column)
                choice[row] = column
                break
