"""What the replays are expected to show, checked against the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Means = Mapping[str, Mapping[str, float]]
"""Policy -> workload -> mean completion time in seconds."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement with its limit and the measured value."""

    text: str
    limit: str
    measured: float
    met: bool

    def row(self) -> dict[str, Any]:
        return {"claim": self.text, "limit": self.limit, "measured": round(self.measured, 4), "met": self.met}


def at_most(text: str, measured: float, limit: float) -> Claim:
    return Claim(text, f"<= {limit:g}", measured, measured <= limit)


def at_least(text: str, measured: float, limit: float) -> Claim:
    return Claim(text, f">= {limit:g}", measured, measured >= limit)


def replay_claims(ours: Means, published: Means, crossover_balanced: Mapping[str, float]) -> list[Claim]:
    """The comparison with the published numbers, workload by workload where that is the claim.

    "On average" is taken both ways, mean of the ratios and ratio of the means; the worse counts.
    """
    workloads = sorted(set(ours["balanced"]) & set(published["pollux"]))
    if not workloads:
        return []
    claims = []
    for name, label in (("optimus", "Optimus+Oracle"), ("tiresias", "Tiresias")):
        off = max(abs(ours[name][w] / published[name][w] - 1.0) for w in workloads)
        claims.append(at_most(f"{name}: farthest from published {label} on any workload", off, 0.10))
    compared = worse(min, ours["fifo"], ours["doubling"], workloads)
    claims.append(at_least("fifo / doubling, on average", compared, 2.0))
    for name, label, limit in (
        ("tiresias", "Tiresias", 0.75),
        ("optimus", "Optimus+Oracle", 0.55),
        ("pollux", "Pollux", 1.0),
    ):
        ratio = worse(max, ours["balanced"], published[name], workloads)
        claims.append(at_most(f"balanced / published {label}, on average", ratio, limit))
    ratio = worse(max, crossover_balanced, ours["balanced"], workloads)
    claims.append(at_most("balanced with crossover / balanced, on average", ratio, 0.90))
    return claims


def worse(
    pick: Callable[[float, float], float],
    top: Mapping[str, float],
    bottom: Mapping[str, float],
    workloads: Sequence[str],
) -> float:
    """Of the two averages of top / bottom, the one that ``pick`` (min or max) takes."""
    mean_of_ratios = sum(top[w] / bottom[w] for w in workloads) / len(workloads)
    ratio_of_means = sum(top[w] for w in workloads) / sum(bottom[w] for w in workloads)
    return pick(mean_of_ratios, ratio_of_means)
