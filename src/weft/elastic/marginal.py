"""Policies that start every job small and assign the rest by marginal gain: doubling, optimus, afs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.menu import Growth, Menu, doubled
from weft.elastic.policy import BasePolicy, ordered
from weft.elastic.rules import Room, admitted, by_priority


class MarginalPolicy(BasePolicy):
    """The smallest sizes first, in order of submission; then repeatedly the growth that gains the most per worker."""

    def growths(self, menu: Menu) -> Sequence[Growth | None]:
        """For each size, the next larger one to consider."""
        return menu.next_sizes

    def _decide(self, snapshot: Snapshot) -> Allocation:
        menus = self._book.menus(snapshot.cluster, snapshot.jobs)
        order = ordered(snapshot, self.rules)
        sizes, room = admitted(snapshot, menus, order, self.rules)
        free = [row for row in sizes if not self.rules.pinned(snapshot.jobs[row])]
        self._grow(snapshot.jobs, menus, sizes, free, room)
        workers = {snapshot.jobs[row].spec.id: size for row, size in sizes.items()}
        valid_until_s = min(self.rules.next_due_s(snapshot), snapshot.now_s + self.rules.review_s)
        return Allocation(workers, valid_until_s=valid_until_s)

    def _grow(
        self,
        jobs: Sequence[JobView],
        menus: Sequence[Menu],
        sizes: dict[int, int],
        free: Sequence[int],
        room: Room,
    ) -> None:
        heap: list[tuple[int, float, int, Growth]] = []
        growths = {row: self.growths(menus[row]) for row in free}

        def offer(row: int, column: int) -> None:
            growth = growths[row][column]
            if growth is not None and growth.saved_s > 0:
                job = jobs[row]
                gain = job.remaining_steps * growth.saved_s * job.spec.weight / growth.num_added
                heapq.heappush(heap, (-job.spec.priority, -gain, row, growth))

        for row in free:
            offer(row, menus[row].sizes.index(sizes[row]))
        while heap and room.devices:
            _, _, row, growth = heapq.heappop(heap)
            if room.fits(jobs[row], growth.num_added):
                room.take(jobs[row], growth.num_added)
                sizes[row] += growth.num_added
                offer(row, growth.column)


class Optimus(MarginalPolicy):
    """One worker each, then one more where it saves the most remaining time."""

    name = "optimus"
    because = "the next worker always goes where it saves the most remaining time"
    aligned = False


class Doubling(MarginalPolicy):
    """One worker each, then the job with the largest gain per added worker is doubled, again and again."""

    name = "doubling"
    because = "the job that gains most remaining time per added worker is doubled, until the devices are used"

    aligned = False
    """On nodes of three devices, hardly any power of two fills nodes evenly."""

    def growths(self, menu: Menu) -> Sequence[Growth | None]:
        return menu.doublings

    def larger(self, sizes: Sequence[int], size: int) -> int | None:
        return doubled(sizes, size)


class Afs(BasePolicy):
    """Elastic sharing between short jobs and jobs that use devices well.

    Jobs are ordered by remaining time.  The next worker goes to the first of them, unless a later one would gain
    relatively more from it (the later job's gain is relative to its speed after, the first job's to its speed before,
    so the shorter job wins in close cases).
    """

    name = "afs"
    because = "a worker goes to the shortest job unless a longer one would use it better"

    def _decide(self, snapshot: Snapshot) -> Allocation:
        menus = self._book.menus(snapshot.cluster, snapshot.jobs)
        lengths = [
            job.remaining_steps * min(menu.step_s) / job.spec.weight if menu.sizes else float("inf")
            for job, menu in zip(snapshot.jobs, menus, strict=True)
        ]
        order = ordered(snapshot, self.rules, lengths)
        sizes, room = admitted(snapshot, menus, order, self.rules)
        line = [row for row in order if row in sizes and not self.rules.pinned(snapshot.jobs[row])]
        line.sort(key=lambda row: (lengths[row], row))
        for rows in by_priority(snapshot.jobs, line):
            self._share_out(snapshot.jobs, menus, sizes, rows, room)
        workers = {snapshot.jobs[row].spec.id: size for row, size in sizes.items()}
        valid_until_s = min(self.rules.next_due_s(snapshot), snapshot.now_s + self.rules.review_s)
        return Allocation(workers, valid_until_s=valid_until_s)

    @staticmethod
    def _share_out(
        jobs: Sequence[JobView], menus: Sequence[Menu], sizes: dict[int, int], line: Sequence[int], room: Room
    ) -> None:
        columns = [menus[row].sizes.index(sizes[row]) for row in line]
        gains = [_gains(menus[row], column) for row, column in zip(line, columns, strict=True)]
        while room.devices:
            front, to_beat = -1, 0.0
            for place, (as_front, as_back) in enumerate(gains):
                if as_back > to_beat:
                    front, to_beat = place, as_front
            if front < 0:
                return
            row = line[front]
            after = menus[row].sizes[columns[front] + 1]
            if room.fits(jobs[row], after - sizes[row]):
                room.take(jobs[row], after - sizes[row])
                sizes[row] = after
                columns[front] += 1
                gains[front] = _gains(menus[row], columns[front])
            else:
                gains[front] = (0.0, 0.0)


def _gains(menu: Menu, column: int) -> tuple[float, float]:
    """Gain in speed per added worker at the next size, relative to the speed before and to the speed after."""
    if column + 1 == len(menu.sizes) or menu.step_s[column + 1] >= menu.step_s[column]:
        return (0.0, 0.0)
    added = menu.sizes[column + 1] - menu.sizes[column]
    faster = menu.step_s[column] / menu.step_s[column + 1] - 1.0
    return (faster / added, faster / (1.0 + faster) / added)
