"""Which workers share a host, and which of them does what for the others.  Pure.

Hosts are numbered by their lowest rank, and a host's workers are in rank order.  Every worker owns one row (shard) of
every bucket, whatever the layout.  Within each host, one worker is the *delegate* for each row: it sums the host's
contributions to that row, sends one message to the row's owner, and receives the owner's new values for its whole host.
With the same number of workers on each host, that is the worker with the owner's own local rank.  A host with k of the
P workers therefore sends (P - k) / P of a bucket over its link for a reduce-scatter, instead of k (P - k) / P with
direct messages.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class HostLayout:
    """Ranks by host.

    >>> layout = host_layout(["a", "b", "a", "b", "b"])
    >>> layout.hosts
    ((0, 2), (1, 3, 4))
    >>> layout.delegate(host=0, row=4), layout.rows_of(2)
    (0, (1, 2, 3))
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
        return ranks[self.neighbors(row).index(row) % len(ranks)]

    def rows_of(self, rank: int) -> tuple[int, ...]:
        """The rows for which ``rank`` is its host's delegate, including its own, in rank order."""
        host = self.host_of[rank]
        return tuple(row for row in range(self.num_workers) if self.delegate(host, row) == rank)


def host_layout(identities: Sequence[Hashable]) -> HostLayout:
    """Workers with the same identity share a host.

    >>> host_layout(["x", "x", "y"]).has_two_levels, host_layout(["x", "x"]).has_two_levels
    (True, False)
    """
    hosts: dict[Hashable, list[int]] = {}
    for rank, identity in enumerate(identities):
        hosts.setdefault(identity, []).append(rank)
    return HostLayout(tuple(map(tuple, hosts.values())))
