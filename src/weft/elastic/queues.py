"""Policies that give each job one size and only decide who runs: fifo, srtf, tiresias; and equal shares."""

from __future__ import annotations

from abc import abstractmethod

from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.menu import Menu
from weft.elastic.policy import BasePolicy, ordered
from weft.elastic.rules import Room, admitted


class FixedSizePolicy(BasePolicy):
    """Jobs at the size they asked for, or not at all."""

    aligned = False
    keeps_sizes = True
    keeps_order = False

    def _size(self, snapshot: Snapshot, job: JobView, menu: Menu) -> int:
        """The only size at which ``job`` runs, within its quota if possible; 0 if the cluster is too small."""
        if not menu.sizes:
            return 0
        wanted = job.spec.requested_workers
        return menu.nearest(min(wanted, snapshot.quotas.get(job.spec.user, wanted)) if snapshot.quotas else wanted)


class Fifo(FixedSizePolicy):
    """First in, first out; no job is stopped for another, and none overtakes."""

    name = "fifo"
    because = "jobs run at the size they asked for, in the order in which they came"

    def _decide(self, snapshot: Snapshot) -> Allocation:
        jobs = snapshot.jobs
        menus = self._book.menus(snapshot.cluster, jobs)
        room = Room(snapshot)
        sizes: dict[int, int] = {}
        for row, job in enumerate(jobs):
            # Before aging and priority, which only order waiting jobs: a running job keeps what it has.
            if job.workers and job.workers in menus[row].sizes and room.fits(job, job.workers):
                room.take(job, job.workers)
                sizes[row] = job.workers
        for row, held in sizes.items():  # its speed at the size it asked for was unknown before
            more = 0 if self.rules.pinned(jobs[row]) else self._size(snapshot, jobs[row], menus[row]) - held
            if more > 0 and room.fits(jobs[row], more):
                room.take(jobs[row], more)
                sizes[row] = held + more
        for row in ordered(snapshot, self.rules):
            size = 0 if row in sizes else self._size(snapshot, jobs[row], menus[row])
            if size and room.fits(jobs[row], size):
                room.take(jobs[row], size)
                sizes[row] = size
            elif size > room.devices and size <= room.quotas.get(jobs[row].spec.user, size):
                break  # none overtakes, but a job that is held back by its quota is skipped
        workers = {jobs[row].spec.id: size for row, size in sizes.items()}
        return Allocation(workers, valid_until_s=self.rules.next_due_s(snapshot))


class QueuePolicy(FixedSizePolicy):
    """In some order, while devices last; earlier jobs stop later ones."""

    @abstractmethod
    def key(self, job: JobView, menu: Menu) -> float:
        """Smaller is served sooner."""

    def _decide(self, snapshot: Snapshot) -> Allocation:
        menus = self._book.menus(snapshot.cluster, snapshot.jobs)
        keys = [self.key(job, menu) for job, menu in zip(snapshot.jobs, menus, strict=True)]
        room = Room(snapshot)
        workers: dict[str, int] = {}
        for row in ordered(snapshot, self.rules, keys):
            job = snapshot.jobs[row]
            size = self._size(snapshot, job, menus[row])
            if self.rules.pinned(job) and job.workers in menus[row].sizes and room.fits(job, job.workers):
                size = job.workers
            if size and room.fits(job, size):
                room.take(job, size)
                workers[job.spec.id] = size
                if not room.devices:
                    break
        return Allocation(workers, valid_until_s=min(self.rules.next_due_s(snapshot), self.next_change_s(snapshot)))

    def next_change_s(self, snapshot: Snapshot) -> float:
        """When the order changes without an event."""
        return float("inf")


class Srtf(QueuePolicy):
    """Shortest remaining time first, at the size each job asked for."""

    name = "srtf"
    because = "jobs run at the size they asked for, the one that would be done soonest first"

    # Running jobs only get shorter, and waiting ones do not change: the order stays the same without an event.
    def key(self, job: JobView, menu: Menu) -> float:
        if not menu.sizes:
            return float("inf")
        return (
            job.remaining_steps
            * menu.step_s[menu.sizes.index(menu.nearest(job.spec.requested_workers))]
            / job.spec.weight
        )


class Tiresias(QueuePolicy):
    """Two queues by device time used so far; first in, first out within each; ignores remaining work."""

    name = "tiresias"
    because = "jobs run at the size they asked for, those that have used little device time first"
    threshold_device_s = 16 * 3600.0

    def key(self, job: JobView, menu: Menu) -> float:
        return float(job.attained_device_s >= self.threshold_device_s * job.spec.weight)

    def next_change_s(self, snapshot: Snapshot) -> float:
        soonest = float("inf")
        for job in snapshot.jobs:
            left = self.threshold_device_s * job.spec.weight - job.attained_device_s
            if job.workers and left > 0:
                soonest = min(soonest, left / job.workers)
        return snapshot.now_s + soonest


class Equal(BasePolicy):
    """The same number of devices for every job, as far as menus allow."""

    name = "equal"
    because = "every job gets the same share of the devices"

    def _decide(self, snapshot: Snapshot) -> Allocation:
        menus = self._book.menus(snapshot.cluster, snapshot.jobs)
        order = ordered(snapshot, self.rules)
        sizes, room = admitted(snapshot, menus, order, self.rules)
        growing = [row for row in order if row in sizes and not self.rules.pinned(snapshot.jobs[row])]
        # Every job gets its next size before any gets the one after: the jobs with the fewest devices grow first.
        while growing:
            growing.sort(key=lambda row: sizes[row] / snapshot.jobs[row].spec.weight)
            still = []
            for row in growing:
                job, menu = snapshot.jobs[row], menus[row]
                index = menu.sizes.index(sizes[row]) + 1
                if index < len(menu.sizes) and room.fits(job, menu.sizes[index] - sizes[row]):
                    room.take(job, menu.sizes[index] - sizes[row])
                    sizes[row] = menu.sizes[index]
                    still.append(row)
            growing = still
        workers = {snapshot.jobs[row].id: size for row, size in sizes.items()}
        return Allocation(workers, valid_until_s=self.rules.next_due_s(snapshot))
