"""Which workers share a host or a row of a grid, and which of them does what for the others.  Pure.

Hosts are numbered by their lowest rank, and a host's workers are in rank order.  Every worker owns one row (shard) of
every bucket, whatever the layout.  Within each host, one worker is the *delegate* for each row: it sums the host's
contributions to that row, sends one message to the row's owner, and receives the owner's new values for its whole host.
With the same number of workers on each host, that is the worker with the owner's own local rank.  A host with k of the
P workers therefore sends (P - k) / P of a bucket over its link for a reduce-scatter, instead of k (P - k) / P with
direct messages.

[Note: grid]  gloo connects all pairs of a group, so with direct messages each worker has P - 1 connections per group.
From MIN_GRID_WORKERS on, if no two-level layout is given by hosts, workers are arranged as a grid whose rows take the
place of hosts.  Row r of R has the workers r, r + R, r + 2R, ..., so that each worker is the delegate for consecutive
shards, which are one message.  Row mates and column mates are all the connections it needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

MIN_GRID_WORKERS = 16


@dataclass(frozen=True)
class HostLayout:
    """Ranks by host.

    >>> layout = host_layout(["a", "b", "a", "b", "b"])
    >>> layout.hosts
    ((0, 2), (1, 3, 4))
    >>> layout.delegate(host=0, row=4), layout.rows_of(2)
    (2, (2, 3, 4))
    """

    hosts: tuple[tuple[int, ...], ...]

    @property
    def num_workers(self) -> int:
        return sum(map(len, self.hosts))

    @property
    def has_two_levels(self) -> bool:
        """Whether some workers share a host and others do not."""
        return 1 < len(self.hosts) < self.num_workers

    @cached_property
    def host_of(self) -> tuple[int, ...]:
        """The host of each rank."""
        found = {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}
        return tuple(found[rank] for rank in range(self.num_workers))

    def neighbors(self, rank: int) -> tuple[int, ...]:
        """All workers on the host of ``rank``, including itself."""
        return self.hosts[self.host_of[rank]]

    def delegate(self, host: int, row: int) -> int:
        """The worker that sums and receives the row of worker ``row`` for ``host``; on its own host, the owner."""
        ranks = self.hosts[host]
        there_and_back = (*ranks, *ranks[::-1])  # on a host with fewer workers, turn around at its last
        return there_and_back[self.neighbors(row).index(row) % len(there_and_back)]

    def rows_of(self, rank: int) -> tuple[int, ...]:
        """The rows for which ``rank`` is its host's delegate, including its own, in rank order."""
        host = self.host_of[rank]
        return tuple(row for row in range(self.num_workers) if self.delegate(host, row) == rank)

    @cached_property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Workers that exchange messages with workers of other hosts, in sets that do so only among themselves."""
        columns: list[set[int]] = []
        for row in range(self.num_workers):
            column = {self.delegate(host, row) for host in range(len(self.hosts))}
            column.update(*(known for known in columns if known & column))
            columns = [*(known for known in columns if not known & column), column]
        return tuple(tuple(sorted(column)) for column in sorted(columns, key=min))


def grid_layout(num_workers: int) -> HostLayout:
    """Rows of a grid as hosts, with as few connections per worker as possible.

    If rows differ in length, one worker of each short row is the delegate for more shards.  A shard that a worker
    receives beyond its share counts as much as a connection.

    >>> grid_layout(16).columns
    ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    >>> grid_layout(17).hosts
    ((0, 4, 8, 12, 16), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    """

    def cost(num_rows: int) -> tuple[int, int]:
        short, num_long = divmod(num_workers, num_rows)
        surplus = max(num_long * (short - 2), num_rows - num_long) if num_long else 0
        num_connections = short - (num_long == 0) + num_rows + num_long - 1
        return num_connections + surplus, num_connections

    num_rows = min(range(2, num_workers // 2 + 1), key=cost)
    return HostLayout(tuple(tuple(range(row, num_workers, num_rows)) for row in range(num_rows)))


def host_layout(identities: Sequence[Hashable]) -> HostLayout:
    """Workers with the same identity share a host.

    >>> host_layout(["x", "x", "y"]).has_two_levels, host_layout(["x", "x"]).has_two_levels
    (True, False)
    """
    hosts: dict[Hashable, list[int]] = {}
    for rank, identity in enumerate(identities):
        hosts.setdefault(identity, []).append(rank)
    return HostLayout(tuple(map(tuple, hosts.values())))
