"""How long a step would take on another cluster: DDP, DeAR and weft by the same recurrence, each next to its bound.

[Note: what is assumed]
- Every host has one full-duplex link of the given rate, and all hosts are alike.  Inside a host bytes are free.
- DDP's all-reduce is one ring through all workers: with P workers a link carries (P-1)/P of the bytes in each phase,
  however many share it, and a phase has P-1 latencies.  That is NCCL's and gloo's way for large buckets.
- weft and DeAR reduce inside each host first: a link carries (H-1)/H of the bytes with H hosts.  Between few workers
  they send direct messages, one latency a phase.  Over gloo weft does so at any size; from ``RING_FROM`` workers on the
  latencies of a ring of hosts are counted, as with NCCL: the more cautious assumption.
- DDP fills buckets of 25 MB; at its best it takes the best of several sizes.  DeAR has buckets of 25 MB too.  weft cuts
  by its own planner.
- Computing is not slowed down by communication, and updates count as nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.errors import UsageError
from weft.perf.fusion import UNIFORM_MB, plan_cuts, uniform_cuts
from weft.perf.link import Link
from weft.perf.recurrence import StepModel
from weft.perf.schedule import bound_s
from weft.perf.step_profile import Mode, StepProfile

RING_FROM = 16
DEFAULT_LATENCY_S = 30e-6
DDP_BUCKET_BYTES = 25 * 1024 * 1024
MAX_WORKERS = 4096
_LAUNCH_S = 20e-6
_GRANULARITY = 1024


@dataclass(frozen=True, slots=True)
class TargetCluster:
    """Workers on equal hosts, each host with one link."""

    num_workers: int
    workers_per_host: int
    link_bits_per_s: float
    latency_s: float = DEFAULT_LATENCY_S

    def __post_init__(self) -> None:
        if not 1 <= self.num_workers <= MAX_WORKERS:
            raise UsageError(f"{self.num_workers} workers: expected 1 to {MAX_WORKERS}")
        if self.workers_per_host < 1 or self.num_workers % self.workers_per_host:
            raise UsageError(
                f"{self.num_workers} workers do not fill hosts of {self.workers_per_host}: expected a multiple"
            )
        if not (math.isfinite(self.link_bits_per_s) and self.link_bits_per_s > 0):
            raise UsageError(f"a link of {self.link_bits_per_s:g} bits per second: expected a rate above 0")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise UsageError(f"a latency of {self.latency_s:g} s: expected 0 or more")

    @property
    def num_hosts(self) -> int:
        return self.num_workers // self.workers_per_host

    def ring(self) -> Link:
        """One ring through all workers."""
        if self.num_hosts == 1:
            return Link(0.0, 0.0, _LAUNCH_S)
        return Link((self.num_workers - 1) * self.latency_s, 8 / self.link_bits_per_s, _LAUNCH_S)

    def two_levels(self) -> Link:
        """Inside hosts first.  The recurrence counts (P-1)/P of the bytes, of which the link carries (H-1)/H."""
        if self.num_hosts == 1:
            return Link(0.0, 0.0, _LAUNCH_S)
        hops = self.num_hosts - 1 if self.num_workers >= RING_FROM else 1
        share = (1 - 1 / self.num_hosts) / (1 - 1 / self.num_workers)
        return Link(hops * self.latency_s, share * 8 / self.link_bits_per_s, _LAUNCH_S)


@dataclass(frozen=True, slots=True)
class Predicted:
    """One contender.  ``bound_s``: no plan of its kind can be faster on this cluster."""

    contender: str
    step_s: float
    exposed_s: float
    bound_s: float
    num_buckets: int


def predict(profile: StepProfile, cluster: TargetCluster) -> list[Predicted]:
    """Steps of each contender; the first row computes alone."""
    workers, ring, direct = cluster.num_workers, cluster.ring(), cluster.two_levels()

    def row(contender: str, mode: Mode, link: Link, cuts: tuple[int, ...]) -> Predicted:
        course = StepModel(profile, link, workers).course(cuts, mode)
        return Predicted(
            contender, course.step_s, course.exposed_s, bound_s(profile, link, workers, mode), len(cuts) + 1
        )

    default = uniform_cuts(profile, DDP_BUCKET_BYTES, _GRANULARITY)
    uniform = [default, *(uniform_cuts(profile, size * 1e6, _GRANULARITY) for size in UNIFORM_MB)]
    best = min((row("ddp_best", Mode.DDP, ring, cuts) for cuts in uniform), key=lambda found: found.step_s)
    compute_s = profile.forward_s + profile.backward_s
    return [
        Predicted("alone", compute_s, 0.0, compute_s, 0),
        row("ddp", Mode.DDP, ring, default),
        best,
        row("dear", Mode.BARRIER, direct, default),
        row("weft", Mode.BARRIER, direct, plan_cuts(profile, direct, workers, Mode.BARRIER, _GRANULARITY)),
        row("weft_eager", Mode.EAGER, direct, plan_cuts(profile, direct, workers, Mode.EAGER, _GRANULARITY)),
    ]
