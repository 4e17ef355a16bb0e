"""How long a step would take on another cluster: DDP, DeAR and weft by the same recurrence, each next to its bound.

[Note: what is assumed]
- Every host has one full-duplex link of the given rate, and all hosts are alike.  Inside a host bytes are free.
- Headers take their share of a link: ``FRAME_BYTES`` for every ``PAYLOAD_BYTES`` of data (TCP with timestamps over
  Ethernet, packets of 1500 bytes).
- DDP's all-reduce is one ring through all workers: with P workers a link carries (P-1)/P of the bytes in each phase,
  however many share it, and a phase has P-1 latencies.  NCCL and gloo do this for large buckets.
- weft and DeAR reduce inside each host first: a link carries (H-1)/H of the bytes with H hosts.  Between few workers
  they send direct messages, one latency per phase.  Over gloo, weft has at most two at any size; from ``RING_FROM``
  workers on, a ring of hosts is assumed, as with NCCL: more latencies, but one sender per receiver.
- Direct messages that share a link get unequal parts of it, and a collective ends with its slowest message.  See
  [Note: the slowest message].
- DDP and DeAR never cut a parameter.  DDP closes a bucket once it has reached 25 MB (the first one 1 MB); ``ddp_best``
  uses the best of several sizes.  DeAR closes one before it would exceed 25 MB.  weft cuts by its own planner.
- DeAR gathers one bucket ahead of forward (one_ahead.py); weft launches all gathers at once.
- Computing is not slowed down by communication.  Updates take what the profile says: nothing for a known model.

[Note: the slowest message]  Of n messages that share a link, the others have 1 - 1/n of its bytes.  A part of those
goes ahead of the message that a collective ends with, and the link has idle time later.  The part comes from the
exchanges without training in docs/design/receive-window.md (means of four runs, headers deducted, windows limited as
weft does): 0.144 with 4 hosts and 0.140 with 8.  It was not fitted to the rows of ``weft bench overlap --profiles``,
but those rows showed that such a term was missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import UsageError
from weft.perf.fusion import UNIFORM_MB, plan_cuts
from weft.perf.link import Link
from weft.perf.one_ahead import one_ahead
from weft.perf.recurrence import StepModel
from weft.perf.schedule import bound_s
from weft.perf.step_profile import Mode, StepProfile

RING_FROM = 16
DEFAULT_LATENCY_S = 30e-6
DDP_FIRST_BUCKET_BYTES = 1024 * 1024
DDP_BUCKET_BYTES = 25 * 1024 * 1024
MAX_WORKERS = 4096
# As Linux counts and shapes them; preamble and gap take another 24 bytes of an Ethernet link's time.
FRAME_BYTES = 1514
PAYLOAD_BYTES = 1448
# Of the bytes of other messages on a link, the part that goes ahead of a collective's slowest message.
AHEAD = 0.14
_LAUNCH_S = 20e-6
GRANULARITY = 1024


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
        return Link((self.num_workers - 1) * self.latency_s, self._s_per_byte, _LAUNCH_S)

    def two_levels(self, ahead: float = AHEAD) -> Link:
        """Inside hosts first.  The recurrence counts (P-1)/P of the bytes, of which the link carries (H-1)/H.

        ``ahead``: see [Note: the slowest message]; 0 if messages could share a link equally.
        """
        if self.num_hosts == 1:
            return Link(0.0, 0.0, _LAUNCH_S)
        hops = num_messages = 1
        if self.num_workers >= RING_FROM:
            hops = self.num_hosts - 1
        else:
            num_messages = self.workers_per_host * (self.num_hosts - 1)
        share = (1 - 1 / self.num_hosts) / (1 - 1 / self.num_workers)
        slowest = 1 + ahead * (1 - 1 / num_messages)
        return Link(hops * self.latency_s, share * slowest * self._s_per_byte, _LAUNCH_S)

    @property
    def _s_per_byte(self) -> float:
        return 8 / self.link_bits_per_s * FRAME_BYTES / PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class Predicted:
    """One contender.  ``bound_s``: no plan of its kind can be faster on this cluster."""

    contender: str
    step_s: float
    exposed_s: float
    bound_s: float
    num_buckets: int


def predict(profile: StepProfile, cluster: TargetCluster, *, bucket_scale: float = 1.0) -> list[Predicted]:
    """Steps of each contender; the first row has no communication.

    ``bucket_scale``: of a model whose layers were all scaled by that factor, so that default buckets are scaled too.
    """
    workers, ring, direct = cluster.num_workers, cluster.ring(), cluster.two_levels()

    def bound(mode: Mode) -> float:
        return bound_s(profile, ring if mode == Mode.DDP else cluster.two_levels(ahead=0.0), workers, mode)

    def row(contender: str, mode: Mode, link: Link, cuts: tuple[int, ...]) -> Predicted:
        course = StepModel(profile, link, workers).course(cuts, mode)
        return Predicted(contender, course.step_s, course.exposed_s, bound(mode), len(cuts) + 1)

    default = ddp_cuts(profile, [DDP_FIRST_BUCKET_BYTES * bucket_scale, DDP_BUCKET_BYTES * bucket_scale])
    uniform = [default, *(ddp_cuts(profile, [size * 1e6]) for size in UNIFORM_MB)]
    best = min((row("ddp_best", Mode.DDP, ring, cuts) for cuts in uniform), key=lambda found: found.step_s)
    compute_s = profile.forward_s + profile.backward_s
    update_s = profile.update_s_per_element * profile.num_elements
    fused = dear_cuts(profile, DDP_BUCKET_BYTES * bucket_scale)
    dear = one_ahead(StepModel(profile, direct, workers), fused)
    return [
        Predicted("alone", compute_s + update_s, 0.0, compute_s + update_s, 0),
        row("ddp", Mode.DDP, ring, default),
        best,
        Predicted("dear", dear.step_s, dear.exposed_s, bound(Mode.BARRIER), len(fused) + 1),
        row("weft", Mode.BARRIER, direct, plan_cuts(profile, direct, workers, Mode.BARRIER, GRANULARITY)),
        row("weft_eager", Mode.EAGER, direct, plan_cuts(profile, direct, workers, Mode.EAGER, GRANULARITY)),
    ]


def ddp_cuts(profile: StepProfile, caps_bytes: Sequence[float]) -> tuple[int, ...]:
    """Buckets as DDP fills them: closed once they have reached the next cap; the last cap counts for all that follow.

    >>> from weft.perf.step_profile import ParameterTiming
    >>> equal = StepProfile((ParameterTiming(10, 0.0, 0.0),) * 5, 1.0, 2.0, 0.0, element_bytes=4)
    >>> ddp_cuts(equal, [40.0, 50.0])
    (10, 30)
    """
    cuts: list[int] = []
    filled = end = 0
    for parameter in profile.parameters:
        filled, end = filled + parameter.num_elements, end + parameter.num_elements
        if filled * profile.element_bytes >= caps_bytes[min(len(cuts), len(caps_bytes) - 1)]:
            cuts.append(end)
            filled = 0
    return tuple(cut for cut in cuts if cut < end)


def dear_cuts(profile: StepProfile, cap_bytes: float) -> tuple[int, ...]:
    """Buckets as DeAR fills them: closed before they would exceed the cap."""
    cuts: list[int] = []
    start = end = 0
    for parameter in profile.parameters:
        if end > start and (end + parameter.num_elements - start) * profile.element_bytes > cap_bytes:
            cuts.append(end)
            start = end
        end += parameter.num_elements
    return tuple(cuts)
