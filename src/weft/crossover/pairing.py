"""Which jobs should share their devices, and whether those that do should go on.

From measured steps to a decision, without I/O: :mod:`weft.perf.crossover` predicts what each pair would do (the
simulator uses the same functions), what does not fit or does not pay is dropped, and of what is left a matching of
greatest weight is taken.  Every job gets a sentence that says why.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from weft.core.speed import StepTime
from weft.errors import UsageError
from weft.perf.crossover import MIN_GAIN, PairSpeed, filler_speed, turns_speed

MIN_REALISED_GAIN = 0.02
"""A pair that brings less than this is split; less than ``MIN_GAIN``, or pairs would come and go."""

_CAP_SLACK = 1.02
"""Handovers alone must not break a cap of 2."""


class Way(enum.Enum):
    """How two jobs share."""

    TURNS = "take turns"
    FIRST_FILLS = "the first fills the gaps of the second"
    SECOND_FILLS = "the second fills the gaps of the first"


@dataclass(frozen=True, slots=True)
class Measured:
    """One job, from its reports at its present size."""

    job: str
    compute_s: float
    exposed_s: float
    network_s: float | None = None
    """Time its link is busy in a step; hidden communication counts.  The exposed time where it was not measured."""
    memory_bytes: int = 0
    """On each of its devices."""
    num_workers: int = 1
    max_slowdown: float = 2.0
    """A step may take so many times what it takes alone; 2 is what half a device would do."""
    may_share: bool = True

    def __post_init__(self) -> None:
        if not self.compute_s > 0 or not self.exposed_s >= 0 or not (self.network_s or 0) >= 0:
            raise UsageError(
                f"job {self.job} reports {self.compute_s} s of computing, {self.exposed_s} s exposed and "
                f"{self.network_s} s of network a step: expected computing > 0 and the others >= 0"
            )

    @property
    def step(self) -> StepTime:
        """Its step when it has the devices for itself."""
        return StepTime(self.compute_s + self.exposed_s, self.exposed_s)

    @property
    def link_s(self) -> float:
        return self.exposed_s if self.network_s is None else self.network_s


@dataclass(frozen=True, slots=True)
class Prospect:
    """What two jobs would do on the same devices."""

    first: Measured
    second: Measured
    way: Way
    speed: PairSpeed

    @property
    def gain(self) -> float:
        """Work done per unit of time, where each job alone does 1."""
        return self.speed.gain

    @property
    def slowdowns(self) -> tuple[float, float]:
        """Step time of each over its step time alone."""
        return (
            _slowdown(self.first, self.speed.first_steps_per_s),
            _slowdown(self.second, self.speed.second_steps_per_s),
        )

    @property
    def keeps_caps(self) -> bool:
        one, other = self.slowdowns
        return one <= self.first.max_slowdown * _CAP_SLACK and other <= self.second.max_slowdown * _CAP_SLACK

    @property
    def jobs(self) -> tuple[str, str]:
        return self.first.job, self.second.job

    @property
    def filler(self) -> str | None:
        """The job that fills gaps, if they do not take turns."""
        return {Way.FIRST_FILLS: self.first.job, Way.SECOND_FILLS: self.second.job}.get(self.way)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Who shares with whom, and why; jobs that are in no pair have a sentence too."""

    pairs: tuple[Prospect, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def prospects(first: Measured, second: Measured, handover_s: float, *, on_one_link: bool = True) -> list[Prospect]:
    """The ways these two could share, best first.

    >>> job = Measured("a", compute_s=1.0, exposed_s=1.0)
    >>> round(prospects(job, job, handover_s=0.0)[0].gain, 2)
    2.0
    """
    swapped = filler_speed(second.step, first.step, handover_s)
    speeds = {
        Way.TURNS: turns_speed(first.step, second.step, handover_s),
        Way.SECOND_FILLS: filler_speed(first.step, second.step, handover_s),
        Way.FIRST_FILLS: PairSpeed(swapped.second_steps_per_s, swapped.first_steps_per_s, swapped.gain),
    }
    found = [
        Prospect(first, second, way, _within_link(first, second, speed) if on_one_link else speed)
        for way, speed in speeds.items()
    ]
    return sorted(found, key=lambda prospect: -prospect.gain)


def refusal(first: Measured, second: Measured, handover_s: float, device_memory_bytes: int | None = None) -> str | None:
    """Why these two should not share; ``None`` if they should."""
    if not (first.may_share and second.may_share):
        unwilling = first.job if not first.may_share else second.job
        return f"{unwilling} does not want to share its devices"
    if first.num_workers != second.num_workers:
        return (
            f"{first.job} has {first.num_workers} workers and {second.job} {second.num_workers}: "
            "only jobs of the same size share devices"
        )
    needed_bytes = first.memory_bytes + second.memory_bytes
    if device_memory_bytes is not None and needed_bytes > device_memory_bytes:
        return (
            f"{first.job} and {second.job} need {needed_bytes / 2**30:.1f} GiB together, "
            f"a device has {device_memory_bytes / 2**30:.1f} GiB"
        )
    ways = prospects(first, second, handover_s)
    if ways[0].gain < 1 + MIN_GAIN:
        return (
            f"{first.job} and {second.job} together would do {ways[0].gain:.2f} times the work of one after the "
            f"other: less than the {1 + MIN_GAIN:.2f} that sharing must bring"
        )
    lasting = [way for way in ways if way.keeps_caps]
    if not lasting:
        one, other = ways[0].slowdowns
        return (
            f"together {first.job} would take {one:.2f} times as long for a step and {second.job} {other:.2f} times: "
            f"more than the {first.max_slowdown:.2f} and {second.max_slowdown:.2f} they allow"
        )
    if lasting[0].gain < 1 + MIN_GAIN:
        return f"{first.job} and {second.job} gain too little in the ways of sharing that slow neither down too much"
    return None


def pair_up(
    jobs: Sequence[Measured], num_devices: int, handover_s: float, device_memory_bytes: int | None = None
) -> Pairing:
    """Who should share.  Nobody, as long as there is a device for every worker; and no more pairs than are needed."""
    excess = sum(job.num_workers for job in jobs) - num_devices
    if excess <= 0:
        return Pairing((), {job.job: "has its devices for itself: there are enough for all" for job in jobs})
    import networkx  # the controller reviews pairs with this module and never gets here

    by_name = {job.job: job for job in jobs}
    graph = networkx.Graph()
    refused: dict[str, list[str]] = {job.job: [] for job in jobs}
    best: dict[frozenset[str], Prospect] = {}
    for first, second in combinations(jobs, 2):
        why_not = refusal(first, second, handover_s, device_memory_bytes)
        if why_not is not None:
            refused[first.job].append(why_not)
            refused[second.job].append(why_not)
            continue
        prospect = next(way for way in prospects(first, second, handover_s) if way.keeps_caps)
        best[frozenset(prospect.jobs)] = prospect
        graph.add_edge(first.job, second.job, weight=(prospect.gain - 1) * first.num_workers)
    matched = [best[frozenset(edge)] for edge in networkx.max_weight_matching(graph)]
    matched.sort(key=lambda pair: (-pair.gain, pair.jobs))
    chosen: list[Prospect] = []
    for pair in matched:
        if excess > 0:
            chosen.append(pair)
            excess -= pair.first.num_workers
    reasons = {job: why for pair in chosen for job, why in explain(pair).items()}
    for name in by_name.keys() - reasons.keys():
        reasons[name] = _why_alone(name, refused[name], is_in_graph=name in graph)
    return Pairing(tuple(chosen), reasons)


def explain(pair: Prospect) -> dict[str, str]:
    """Why these two share, a sentence for each."""
    first, second = pair.jobs
    one, other = pair.slowdowns
    how = {
        first: "takes turns with" if pair.filler is None else "fills the gaps of" if pair.filler == first else "leads",
        second: "takes turns with"
        if pair.filler is None
        else "fills the gaps of"
        if pair.filler == second
        else "leads",
    }
    gain = f"together {pair.gain:.2f} times the work of one after the other"
    return {
        first: f"{how[first]} {second} on the same devices: {gain}, its own step {one:.2f} times as long as alone",
        second: f"{how[second]} {first} on the same devices: {gain}, its own step {other:.2f} times as long as alone",
    }


@dataclass(frozen=True, slots=True)
class Review:
    """What a pair has brought, and whether it should go on."""

    gain: float
    should_split: bool
    reason: str


def review(pair: Prospect, first_steps_per_s: float, second_steps_per_s: float) -> Review:
    """Compare the speeds a pair reached with what its jobs did alone."""
    gain = first_steps_per_s * pair.first.step.step_s + second_steps_per_s * pair.second.step.step_s
    first, second = pair.jobs
    done = f"{first} and {second} together do {gain:.2f} times the work of one after the other"
    if gain < 1 + MIN_REALISED_GAIN:
        why = f"{done}, {pair.gain:.2f} was expected: they are split"
        return Review(gain, should_split=True, reason=why)
    return Review(gain, should_split=False, reason=f"{done} ({pair.gain:.2f} was expected)")


def _within_link(first: Measured, second: Measured, speed: PairSpeed) -> PairSpeed:
    """One link carries both: also what is hidden takes time there, which only exposed times do not tell."""
    busy = speed.first_steps_per_s * first.link_s + speed.second_steps_per_s * second.link_s
    if busy <= 1:
        return speed
    one, other = speed.first_steps_per_s / busy, speed.second_steps_per_s / busy
    return PairSpeed(one, other, one * first.step.step_s + other * second.step.step_s)


def _slowdown(job: Measured, steps_per_s: float) -> float:
    return float("inf") if steps_per_s <= 0 else 1 / (steps_per_s * job.step.step_s)


def _why_alone(name: str, refused: Sequence[str], *, is_in_graph: bool) -> str:
    if is_in_graph:
        return "shares with nobody: other pairs gain more"
    return f"shares with nobody: {refused[0]}" if refused else "shares with nobody: there is no other job"
