"""What collectives cost: latency ``alpha`` per message, ``beta`` per byte sent, ``gamma`` per byte summed.

>>> link = Link(alpha_s=1e-4, beta_s_per_byte=1e-9, gamma_s_per_byte=0.0)
>>> ring = all_reduce_s(Algorithm.RING, 4, 1_000_000, link)
>>> round(ring, 6) == round(reduce_scatter_s(Algorithm.RING, 4, 1_000_000, link) * 2, 6)
True
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weft.errors import UsageError


@dataclass(frozen=True, slots=True)
class Link:
    """The network between workers as one of them sees it."""

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        if min(self.alpha_s, self.beta_s_per_byte, self.gamma_s_per_byte) < 0:
            raise UsageError(f"{self}: expected costs >= 0")


class Algorithm(enum.Enum):
    """How the workers talk."""

    RING = "ring"
    """p - 1 messages of 1/p each way: best bandwidth, latency grows with p."""
    HALVING_DOUBLING = "halving-doubling"
    """log p exchanges; where p is no power of two the surplus workers hand their data over first."""
    BINARY_BLOCKS = "binary-blocks"
    """Halving-doubling inside blocks of powers of two, results passed between the blocks."""


def reduce_scatter_s(algorithm: Algorithm, num_workers: int, num_bytes: float, link: Link) -> float:
    """Time until each worker holds its share of the sum."""
    return _half_s(algorithm, num_workers, num_bytes, link, link.gamma_s_per_byte)


def all_gather_s(algorithm: Algorithm, num_workers: int, num_bytes: float, link: Link) -> float:
    """Time until every worker holds all shares, ``num_bytes`` together."""
    return _half_s(algorithm, num_workers, num_bytes, link, 0.0)


def all_reduce_s(algorithm: Algorithm, num_workers: int, num_bytes: float, link: Link) -> float:
    """Reduce-scatter, then all-gather."""
    return reduce_scatter_s(algorithm, num_workers, num_bytes, link) + all_gather_s(
        algorithm, num_workers, num_bytes, link
    )


def fastest_all_reduce(num_workers: int, num_bytes: float, link: Link) -> Algorithm:
    """The algorithm to prefer: rings for large messages, the others where latency counts."""
    return min(Algorithm, key=lambda algorithm: all_reduce_s(algorithm, num_workers, num_bytes, link))


def _half_s(algorithm: Algorithm, num_workers: int, num_bytes: float, link: Link, gamma: float) -> float:
    if num_workers < 1 or num_bytes < 0:
        raise UsageError(f"a collective of {num_workers} workers and {num_bytes} bytes: expected >= 1 and >= 0")
    if num_workers == 1:
        return 0.0
    if algorithm is Algorithm.RING:
        share = num_bytes / num_workers
        return (num_workers - 1) * (link.alpha_s + share * (link.beta_s_per_byte + gamma))
    block = 1 << (num_workers.bit_length() - 1)
    if algorithm is Algorithm.HALVING_DOUBLING:
        surplus_s = 0.0
        if block != num_workers:
            surplus_s = link.alpha_s + num_bytes * (link.beta_s_per_byte + gamma)
        return surplus_s + _recursive_s(block, num_bytes, link, gamma)
    total_s = _recursive_s(block, num_bytes, link, gamma)
    rest = num_workers - block
    while rest:  # from each smaller block the shares go to the next larger one, one after the other
        smaller = 1 << (rest.bit_length() - 1)
        total_s += (block // smaller) * link.alpha_s + num_bytes / smaller * link.beta_s_per_byte
        total_s += num_bytes / block * gamma
        block, rest = smaller, rest - smaller
    return total_s


def _recursive_s(block: int, num_bytes: float, link: Link, gamma: float) -> float:
    num_rounds = block.bit_length() - 1
    return num_rounds * link.alpha_s + num_bytes * (block - 1) / block * (link.beta_s_per_byte + gamma)
