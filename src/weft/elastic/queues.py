"""Policies that give each job one size and only decide who runs: fifo, srtf, tiresias; and equal shares."""

from __future__ import annotations

from abc import abstractmethod

from weft.core.snapshot import Allocation, JobView, Snapshot
from weft.elastic.menu import Menu
from weft.elastic.policy import BasePolicy, ordered
from weft.elastic.rules import Room, Rules, admitted


class QueuePolicy(BasePolicy):
    """Jobs at the size they asked for, in some order, as long as devices last."""

    aligned = False
    blocking = False
    """Whether the first job that does not fit holds up those behind it."""

    @abstractmethod
    def key(self, job: JobView, menu: Menu) -> float:
        """Smaller is served sooner."""

    def _decide(self, snapshot: Snapshot) -> Allocation:
        menus = self._book.menus(snapshot.cluster, snapshot.jobs)
        keys = [self.key(job, menu) for job, menu in zip(snapshot.jobs, menus, strict=True)]
        room = Room(snapshot)
        workers: dict[str, int] = {}
        for row in ordered(snapshot, self.rules, keys):
            job, menu = snapshot.jobs[row], menus[row]
            pinned = self.rules.pinned(job) and job.workers in menu.sizes
            limit = snapshot.quotas.get(job.spec.user, snapshot.cluster.num_devices)
            size = job.workers if pinned else self.size(job, menu, limit)
            if not size:
                continue
            if room.fits(job, size):
                room.take(job, size)
                workers[job.name] = size
            elif self.blocking and size > room.devices:
                break
        return Allocation(workers, valid_until_s=min(self.rules.next_due_s(snapshot), self.next_change_s(snapshot)))

    def size(self, job: JobView, menu: Menu, limit: int) -> int:
        """The one size ``job`` is run at, within ``limit`` if possible; 0 where the cluster is too small."""
        return menu.nearest(min(job.spec.requested_workers, limit)) if menu.sizes else 0

    def next_change_s(self, snapshot: Snapshot) -> float:
        """When the order changes by itself."""
        return float("inf")


class Fifo(QueuePolicy):
    """First in, first out; nobody is stopped for another, nobody overtakes."""

    name = "fifo"
    because = "jobs run at the size they asked for, in the order in which they came"
    blocking = True

    def key(self, job: JobView, menu: Menu) -> float:
        # A running job stays: it is ahead of all that wait.
        return -1.0 if job.workers else 0.0


class Srtf(QueuePolicy):
    """Shortest remaining time first, at the size each job asked for."""

    name = "srtf"
    because = "jobs run at the size they asked for, the one that would be done soonest first"

    # Running jobs only get shorter and waiting ones stay as they are: the order does not turn by itself.
    def key(self, job: JobView, menu: Menu) -> float:
        if not menu.sizes:
            return float("inf")
        return (
            job.remaining_steps
            * menu.step_s[menu.sizes.index(menu.nearest(job.spec.requested_workers))]
            / job.spec.weight
        )


class Tiresias(QueuePolicy):
    """Two queues by device time used so far; first in, first out within each; no idea of remaining work."""

    name = "tiresias"
    because = "jobs run at the size they asked for, those that have used little device time first"

    def __init__(self, rules: Rules | None = None, threshold_device_s: float = 16 * 3600.0) -> None:
        super().__init__(rules)
        self.threshold_device_s = threshold_device_s

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
    """The same number of devices for everybody, as far as menus allow."""

    name = "equal"
    because = "every job gets the same share of the devices"

    def _decide(self, snapshot: Snapshot) -> Allocation:
        menus = self._book.menus(snapshot.cluster, snapshot.jobs)
        order = ordered(snapshot, self.rules, [0.0] * len(menus))
        sizes, room = admitted(snapshot, menus, order, self.rules)
        growing = [row for row in order if row in sizes and not self.rules.pinned(snapshot.jobs[row])]
        # Everybody's next size before anybody's next but one: the smallest holdings grow first.
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
        workers = {snapshot.jobs[row].name: size for row, size in sizes.items()}
        return Allocation(workers, valid_until_s=self.rules.next_due_s(snapshot))
