"""Policies that maximize a sum of utilities exactly: what they share, and the paper's program."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.core.snapshot import Allocation, Snapshot
from weft.elastic.kind_program import decide_across_kinds
from weft.elastic.kind_turns import decide_in_turn
from weft.elastic.knapsack import best_choices, best_choices_in_groups, device_price
from weft.elastic.matching import choose_pairs
from weft.elastic.menu import Menu, MenuTable
from weft.elastic.pairing import MAX_CANDIDATES, PAIR_MODES, PairBook, PairMode, PairOptions
from weft.elastic.policy import BasePolicy, ordered
from weft.elastic.rules import Room, Rules, admitted, by_priority
from weft.elastic.stakes import FloatArray, IntArray, Stakes

_ROUNDING = 1e-9
"""Sums of utilities closer than this, relative to their terms, count as equal."""


class UtilityPolicy(BasePolicy):
    """Maximizes a sum of utilities of remaining times; a restart counts where a job would change its size."""

    admits_in_order = False
    """Whether jobs are admitted at their smallest size in order of submission, and all admitted jobs must run."""

    def __init__(self, rules: Rules | None = None) -> None:
        super().__init__(rules)
        self._pairs: PairBook | None = None

    @abstractmethod
    def standing(self, stakes: Stakes) -> FloatArray:
        """How much the speed of each job counts."""

    @abstractmethod
    def utility(self, times_s: FloatArray, standing: FloatArray) -> FloatArray:
        """Utility of ending after ``times_s`` (infinite: not running), element by element."""

    def restarts_s(self, times_s: FloatArray, stakes: Stakes, rows: IntArray | slice) -> FloatArray:
        """What a start on other devices costs the jobs in ``rows``, if they then need ``times_s``."""
        return np.broadcast_to(stakes.restart_s[rows, None], times_s.shape)

    def stop_costs(self, stakes: Stakes, standing: FloatArray) -> FloatArray:
        """Utility that each job loses if it is stopped: if it runs now, it will have to be started again."""
        return np.zeros(len(standing))

    def confine(self, snapshot: Snapshot, utility: FloatArray, table: MenuTable) -> None:
        """Rule out (``-inf``) what the rules forbid: pinned jobs keep their size, overdue ones must run."""
        rules = self.rules
        urgent = rules.urgent(snapshot.jobs)
        if not urgent:
            return
        room = Room(snapshot)
        for row in sorted(urgent, key=lambda row: (rules.rank(snapshot.jobs[row]), row)):
            job = snapshot.jobs[row]
            columns = np.flatnonzero(np.isfinite(table.step_s[row]))
            if rules.pinned(job):
                columns = columns[table.sizes[row, columns] == job.workers]
            if len(columns) and room.fits(job, int(table.sizes[row, columns[0]])):
                room.take(job, int(table.sizes[row, columns[0]]))
                barred = np.ones(utility.shape[1], dtype=bool)
                barred[columns] = False
                utility[row, barred] = -np.inf

    def _decide(self, snapshot: Snapshot) -> Allocation:
        jobs = snapshot.jobs
        table = self._book.table(snapshot.cluster, jobs)
        if not table.sizes[:, 1].all():  # some need more devices than the cluster has
            able = tuple(job for job, size in zip(jobs, table.sizes[:, 1], strict=True) if size)
            return self.decide(replace(snapshot, jobs=able))
        stakes = self._stakes(snapshot, table)
        standing = self.standing(stakes)
        restarts_s = self.restarts_s(stakes.times_s, stakes, slice(None))
        utility = self.utility(stakes.times_s + np.where(stakes.is_present, 0.0, restarts_s), standing[:, None])
        utility += np.where(np.isfinite(stakes.times_s), self.stop_costs(stakes, standing)[:, None], 0.0)
        self.confine(snapshot, utility, table)
        valid_until_s = min(self.rules.next_due_s(snapshot), snapshot.now_s + self.rules.review_s)
        classes = by_priority(jobs, range(len(jobs)))
        if len(classes) == 1:
            found = self._settle(snapshot, stakes, standing, utility, snapshot.num_devices)
        else:
            found = self._settle_by_class(snapshot, stakes, standing, utility, classes)
        workers = _with_idle_used(snapshot, found, utility, table)
        return replace(found, workers=workers, valid_until_s=valid_until_s)

    def _decide_mixed(self, snapshot: Snapshot) -> Allocation:
        policies = self._on_each_kind(snapshot)
        books = {kind: policy._book for kind, policy in policies.items()}
        found = decide_across_kinds(self, books, snapshot)
        # Kinds are chosen without pairs; then the jobs on one kind may share its devices.
        return decide_in_turn(policies, snapshot, found.kinds) if snapshot.crossover else found

    def _settle(
        self, snapshot: Snapshot, stakes: Stakes, standing: FloatArray, utility: FloatArray, capacity: int
    ) -> Allocation:
        """The best sizes and pairs on ``capacity`` devices."""
        jobs, sizes = snapshot.jobs, stakes.table.sizes
        users = [job.spec.user for job in jobs] if snapshot.quotas else []
        choice = self._choose(snapshot.quotas, capacity, users, utility, sizes)
        if snapshot.crossover:
            paired = self._with_pairs(snapshot, stakes, standing, utility, choice, capacity)
            if paired:
                return paired
        picked = sizes[np.arange(len(jobs)), choice].tolist()
        return Allocation({job.spec.id: size for job, size in zip(jobs, picked, strict=True) if size})

    def _settle_by_class(
        self,
        snapshot: Snapshot,
        stakes: Stakes,
        standing: FloatArray,
        utility: FloatArray,
        classes: Sequence[Sequence[int]],
    ) -> Allocation:
        """One priority at a time, each with what is left; the smallest sizes of jobs that must run are reserved."""
        jobs, sizes = snapshot.jobs, stakes.table.sizes
        least = sizes[np.arange(len(jobs)), np.isfinite(utility).argmax(axis=1)].tolist()
        room = Room(snapshot)
        for job, size in zip(jobs, least, strict=True):
            room.take(job, size)
        workers: dict[str, int] = {}
        pairs: tuple[tuple[str, str], ...] = ()
        fillers: frozenset[str] = frozenset()
        for rows in classes:
            for row in rows:
                room.take(jobs[row], -least[row])
            part = replace(snapshot, jobs=tuple(jobs[row] for row in rows), quotas=room.quotas)
            found = self._settle(part, stakes.of(rows), standing[rows], utility[rows], room.devices)
            for job in part.jobs:
                room.take(job, found.workers.get(job.id, 0))
            room.devices += sum(found.workers[first] for first, _ in found.pairs)
            workers |= found.workers
            pairs += found.pairs
            fillers |= found.fillers
        return Allocation(workers, pairs, fillers)

    def _stakes(self, snapshot: Snapshot, table: MenuTable) -> Stakes:
        jobs = snapshot.jobs
        rows = [(job.remaining_steps, job.restart_s, job.workers, job.spec.weight) for job in jobs]
        remaining_steps, restart_s, workers, weights = np.array(rows, dtype=np.float64).T.copy()
        is_length_known = np.array([job.is_length_known for job in jobs])
        is_present = table.sizes == workers[:, None]
        return Stakes(
            table, remaining_steps, restart_s, workers, weights, is_length_known, is_present, snapshot.num_devices
        )

    def _with_pairs(
        self,
        snapshot: Snapshot,
        stakes: Stakes,
        standing: FloatArray,
        utility: FloatArray,
        choice: IntArray,
        capacity: int,
    ) -> Allocation | None:
        """Sizes and pairs that are worth more than ``choice`` without pairs; None if there are none."""
        jobs, cluster = snapshot.jobs, snapshot.cluster
        candidates = [
            row
            for row, job in enumerate(jobs)
            if job.spec.id not in snapshot.alone
            and job.spec.may_share
            and job.spec.user not in snapshot.quotas
            and not self.rules.pinned(job)
        ][:MAX_CANDIDATES]
        if len(candidates) < 2:
            return None
        if self._pairs is None or self._pairs.setting != (snapshot.handover_s, cluster):
            self._pairs = PairBook(snapshot.handover_s, cluster)
        menus = self._book.menus(cluster, jobs)
        price = device_price(utility, stakes.table.sizes, capacity)
        reached = utility[np.arange(len(jobs)), choice].sum()
        if self._max_with_pairs(self._pairs, stakes, standing, utility, menus, candidates, price, capacity) < reached:
            return None
        row_of = {jobs[row].id: row for row in candidates}
        apart = {frozenset(map(row_of.__getitem__, pair)) for pair in snapshot.apart if pair <= row_of.keys()}
        pairs = self._pairs.options(menus, candidates, apart)
        if pairs is None:
            return None
        worth_by_way = self._pair_utility(snapshot, stakes, standing, pairs)
        worth = np.maximum.reduceat(worth_by_way, pairs.starts, axis=0)
        first, second = pairs.first[pairs.starts], pairs.second[pairs.starts]
        sizes = stakes.table.sizes
        chosen = choose_pairs(utility, sizes, capacity, (first, second), worth, pairs.sizes, price)
        if not chosen:
            return None
        together = {int(row) for index in chosen for row in (first[index], second[index])}
        alone = [row for row in range(len(jobs)) if row not in together]
        width = max(utility.shape[1], worth.shape[1] + 1)
        all_utility = np.full((len(alone) + len(chosen), width), -np.inf)
        all_sizes = np.zeros(all_utility.shape, dtype=np.int64)
        all_utility[: len(alone), : utility.shape[1]] = utility[alone]
        all_sizes[: len(alone), : utility.shape[1]] = sizes[alone]
        all_utility[len(alone) :, 0] = utility[first[chosen], 0] + utility[second[chosen], 0]
        all_utility[len(alone) :, 1 : worth.shape[1] + 1] = worth[chosen]
        all_sizes[len(alone) :, 1 : worth.shape[1] + 1] = pairs.sizes
        owners = [jobs[row].spec.user for row in alone]
        picked = self._choose(snapshot.quotas, capacity, owners, all_utility, all_sizes)
        rows = np.arange(len(picked))
        if all_utility[rows, picked].sum() <= reached:
            return None
        num = all_sizes[rows, picked].tolist()
        workers = {jobs[row].id: size for row, size in zip(alone, num, strict=False) if size}
        couples = []
        fillers = set()
        ends = np.append(pairs.starts[1:], len(pairs.first))
        for index, size, column in zip(chosen, num[len(alone) :], picked[len(alone) :] - 1, strict=True):
            if size:
                one, other = jobs[int(first[index])].id, jobs[int(second[index])].id
                workers[one] = workers[other] = size
                couples.append((one, other))
                begin = pairs.starts[index]
                way = begin + int(worth_by_way[begin : ends[index], column].argmax())
                mode = PAIR_MODES[int(pairs.modes[way])]
                if mode is not PairMode.TURNS:
                    fillers.add(other if mode is PairMode.SECOND_FILLS else one)
        return Allocation(workers, tuple(couples), frozenset(fillers))

    def _max_with_pairs(
        self,
        book: PairBook,
        stakes: Stakes,
        standing: FloatArray,
        utility: FloatArray,
        menus: Sequence[Menu],
        candidates: Sequence[int],
        price: float,
        capacity: int,
    ) -> float:
        """An upper limit on the total utility with at least one pair; infinite if a pair may be worth it at ``price``.

        At any price per device, no allocation without pairs reaches more than the sum of what each job alone is worth
        at that price, plus the price of all devices; a pair adds what it is worth beyond its two jobs alone.  If even
        the best pair would lose, several lose more.  The best of each menu stands for all jobs that have it, so this
        looks at pairs of menus, of which there are far fewer than pairs of jobs.
        """
        values = (utility - price * stakes.table.sizes).max(axis=1)
        ways = book.ways([menus[row] for row in candidates])
        if ways is None:
            return np.inf
        jobs = np.array(candidates)[ways.jobs]
        with np.errstate(divide="ignore"):
            times_s = stakes.remaining_steps[jobs, None] / ways.steps_per_s
        # As if no job that has this size already had to move for its partner, and every job found the best partner.
        stays = stakes.workers[jobs, None] == book.sizes
        times_s += np.where(stays, 0.0, self.restarts_s(times_s, stakes, jobs))
        gain = self.utility(times_s, standing[jobs, None])
        gain += (self.stop_costs(stakes, standing) - values)[jobs, None]
        gain = np.maximum.reduceat(np.where(ways.steps_per_s > 0, gain, -np.inf), ways.starts, axis=0)
        first, second = gain.reshape(2, -1, len(book.sizes))
        most = float((first + second - price * book.sizes).max())
        if most >= 0:
            return np.inf
        bound = float(values.sum()) + price * capacity
        return bound + most + _ROUNDING * (abs(bound) + float(np.abs(values).max()))

    def _pair_utility(self, snapshot: Snapshot, stakes: Stakes, standing: FloatArray, pairs: PairOptions) -> FloatArray:
        """Total utility of both jobs of each pair, by size, minus a restart for each job that would have to move."""
        first, second = pairs.first, pairs.second
        row_of = {job.id: row for row, job in enumerate(snapshot.jobs)}
        partner = np.array([row_of.get(job.partner or "", -1) for job in snapshot.jobs])
        couple = partner[first] == second
        first_there = stakes.workers[first][:, None] == pairs.sizes
        second_there = stakes.workers[second][:, None] == pairs.sizes
        # If the two do not share yet, at least one of them has to move.
        second_stays = second_there & (couple[:, None] | ~first_there)
        with np.errstate(divide="ignore"):
            first_s = stakes.remaining_steps[first][:, None] / pairs.first_steps_per_s
            second_s = stakes.remaining_steps[second][:, None] / pairs.second_steps_per_s
        first_s += np.where(first_there, 0.0, self.restarts_s(first_s, stakes, first))
        second_s += np.where(second_stays, 0.0, self.restarts_s(second_s, stakes, second))
        worth = self.utility(first_s, standing[first][:, None]) + self.utility(second_s, standing[second][:, None])
        stop_costs = self.stop_costs(stakes, standing)
        # Where sharing does not pay off, the times are infinite and the sum does not matter.
        worth += stop_costs[first, None]
        worth += stop_costs[second, None]
        return np.where(pairs.first_steps_per_s > 0, worth, -np.inf)

    @staticmethod
    def _choose(
        quotas: Mapping[str, int], capacity: int, users: Sequence[str], utility: FloatArray, sizes: IntArray
    ) -> IntArray:
        """The best columns within capacity and quotas; ``users`` own the first rows; the others have no owner."""
        if not quotas:
            return best_choices(utility, sizes, capacity)
        groups = [(np.flatnonzero([owner == user for owner in users]), limit) for user, limit in quotas.items()]
        # Most quotas do not bind: only those that do become part of the program, which stays exact.
        binding: list[tuple[IntArray, int]] = []
        slack = groups
        while True:
            choice = best_choices_in_groups(utility, sizes, capacity, binding)
            broken = [sizes[rows, choice[rows]].sum() > limit for rows, limit in slack]
            if not any(broken):
                return choice
            binding += [group for group, over in zip(slack, broken, strict=True) if over]
            slack = [group for group, over in zip(slack, broken, strict=True) if not over]


def _with_idle_used(snapshot: Snapshot, found: Allocation, utility: FloatArray, table: MenuTable) -> Mapping[str, int]:
    """No job waits while devices are idle, not even one whose utility is lost in the rounding of the sum."""
    if found.num_devices() == snapshot.num_devices or len(found.workers) == len(snapshot.jobs):
        return found.workers
    room = Room(snapshot)
    for job in snapshot.jobs:
        room.take(job, found.workers.get(job.id, 0))
    room.devices += sum(found.workers[first] for first, _ in found.pairs)
    workers = dict(found.workers)
    for row, job in enumerate(snapshot.jobs):
        if job.id not in workers:
            size = next((int(table.sizes[row, at]) for at in np.flatnonzero(np.isfinite(utility[row])) if at), 0)
            if size and room.fits(job, size):
                room.take(job, size)
                workers[job.id] = size
    return workers


class Exact(UtilityPolicy):
    """Minimizes the sum of remaining times, with every job running that can (the paper's integer program)."""

    name = "exact"
    because = "this split of the devices minimizes the summed remaining time"
    admits_in_order = True

    def standing(self, stakes: Stakes) -> FloatArray:
        return stakes.weights

    def utility(self, times_s: FloatArray, standing: FloatArray) -> FloatArray:
        return -standing * times_s

    def confine(self, snapshot: Snapshot, utility: FloatArray, table: MenuTable) -> None:
        """Jobs are admitted at their smallest size in order of submission; those that fit must run."""
        first = table.sizes[:, 1]
        if not snapshot.quotas and not self.rules.hold_s and int(first.sum()) <= snapshot.num_devices:
            return  # all jobs fit, and the infinite time of not running rules it out
        menus = self._book.menus(snapshot.cluster, snapshot.jobs)
        inside, _ = admitted(snapshot, menus, ordered(snapshot, self.rules), self.rules)
        # A waiting job waits for one of the admitted jobs; only a pair could admit it earlier.
        smallest = np.where(np.isfinite(utility[:, 1]), utility[:, 1], 0.0)
        wait = float(smallest[sorted(inside)].mean()) if inside else 0.0
        for row, job in enumerate(snapshot.jobs):
            if row not in inside:
                utility[row, 0] = smallest[row] + wait
                utility[row, 1:] = -np.inf
            elif self.rules.pinned(job):
                utility[row, table.sizes[row] != inside[row]] = -np.inf
