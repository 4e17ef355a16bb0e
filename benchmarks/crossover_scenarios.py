"""What ``weft bench crossover`` measures.  Pure; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

KINDS = ("plain", "ddp", "overlap")
FULL_MINUTES = 13.5
QUICK_MINUTES = 4.5
MIN_ROUNDS = 2
_ROW_START_S = 10.0
# Where a pair that communicates after its backward has most to gain.
PLAIN_RATIO = 1.2


@dataclass(frozen=True, slots=True)
class JobSize:
    """The transformer of a job."""

    width: int
    num_layers: int
    num_sequences: int


# Much compute for few bytes: moving them takes core time too, which two jobs on one core have little of.
WHOLE = JobSize(width=320, num_layers=4, num_sequences=11)
# About half the compute and half the gradients.
HALF = JobSize(width=224, num_layers=4, num_sequences=10)
SMALL = JobSize(width=64, num_layers=1, num_sequences=2)
# Short steps, and therefore many: a difference of one percent is far smaller than that between single steps.
SHORT = JobSize(width=192, num_layers=4, num_sequences=2)


@dataclass(frozen=True, slots=True)
class Member:
    """One job of a pair."""

    kind: str
    size: JobSize
    role: str = "fair"


@dataclass(frozen=True, slots=True)
class Effort:
    """How often everything is repeated."""

    num_warmup_steps: int = 2
    num_rounds: int = 5
    num_alone_steps: int = 2
    num_pair_steps: int = 4

    @property
    def round_s(self) -> float:
        """About how long a round takes, on two cores of an AMD EPYC."""
        return 10.0 + 2.0 * self.num_alone_steps + 3.5 * self.num_pair_steps


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row: two jobs at one network/compute ratio of the first."""

    pair: str
    """equal or filler"""
    first: Member
    second: Member
    ratio: float
    effort: Effort

    @property
    def key(self) -> str:
        return f"{self.pair} {self.first.kind} {self.ratio:g}"

    @property
    def label(self) -> str:
        return f"{self.pair} pair, {self.first.kind}, network/compute {self.ratio:g}"

    @property
    def estimated_s(self) -> float:
        """About how long the row takes."""
        return _ROW_START_S + self.effort.num_rounds * self.effort.round_s

    @property
    def least_s(self) -> float:
        """About how long it takes with as few rounds as possible."""
        return _ROW_START_S + min(MIN_ROUNDS, self.effort.num_rounds) * self.effort.round_s

    @property
    def is_equal(self) -> bool:
        return (self.first.kind, self.first.size) == (self.second.kind, self.second.size)


@dataclass(frozen=True, slots=True)
class Lone:
    """One job with its devices to itself, alternating between sharing on and off."""

    kind: str
    size: JobSize
    ratio: float
    num_blocks: int
    """Of each kind."""
    num_steps: int
    """In a block; the first is not counted."""

    @property
    def key(self) -> str:
        return f"lone {self.kind}"

    @property
    def label(self) -> str:
        return f"{self.kind} job without another, sharing on and off"

    @property
    def estimated_s(self) -> float:
        return _ROW_START_S + 2 * self.num_blocks * self.num_steps * 0.08

    @property
    def least_s(self) -> float:
        return self.estimated_s


def fitting(scenarios: Sequence[Scenario | Lone], left_s: float) -> list[Scenario | Lone]:
    """Those that fit into ``left_s`` with as few rounds as possible, taken in order."""
    found = []
    for scenario in scenarios:
        if scenario.least_s <= left_s:
            found.append(scenario)
            left_s -= scenario.least_s
    return found


def within(scenarios: Sequence[Scenario | Lone], left_s: float) -> Scenario | Lone:
    """The first of the scenarios, with as many rounds as fit if all have to end within ``left_s``, but at least two."""
    first = scenarios[0]
    if isinstance(first, Lone):
        return first
    share = min(1.0, left_s / sum(scenario.estimated_s for scenario in scenarios))
    least = min(MIN_ROUNDS, first.effort.num_rounds)
    num_rounds = max(least, int(first.effort.num_rounds * share + 1e-9))
    return replace(first, effort=replace(first.effort, num_rounds=num_rounds))


def equal(kind: str, ratio: float, effort: Effort, size: JobSize = WHOLE) -> Scenario:
    return Scenario("equal", Member(kind, size), Member(kind, size), ratio, effort)


def filler(kind: str, ratio: float, effort: Effort) -> Scenario:
    """The filler has one worker per host and no communication: the link stays the primary's."""
    return Scenario("filler", Member(kind, WHOLE, "primary"), Member("single", HALF, "filler"), ratio, effort)


def full_run() -> list[Scenario | Lone]:
    """Pairs of each kind where they have most to gain, then a primary with a filler, then each kind without a partner.

    In order of value, for a run with a limit.
    """
    effort = Effort()
    return [
        equal("plain", PLAIN_RATIO, effort),
        equal("ddp", 1.0, effort),
        equal("overlap", 1.0, effort),
        filler("ddp", 1.0, effort),
        *(Lone(kind, SHORT, 1.0, num_blocks=40, num_steps=4) for kind in KINDS),
    ]


def quick_run() -> list[Scenario | Lone]:
    """Under five minutes; one round, so no interval."""
    effort = Effort(num_rounds=1, num_alone_steps=2, num_pair_steps=4)
    return [
        equal("plain", PLAIN_RATIO, effort),
        equal("ddp", 1.0, effort),
        equal("overlap", 1.0, effort),
        filler("plain", 1.0, effort),
        Lone("ddp", SHORT, 1.0, num_blocks=15, num_steps=4),
    ]


def tiny_run() -> list[Scenario | Lone]:
    """The whole benchmark with almost no work, to check that it runs."""
    effort = Effort(num_warmup_steps=2, num_rounds=1, num_alone_steps=2, num_pair_steps=3)
    return [equal("plain", 1.0, effort, SMALL), Lone("overlap", SMALL, 1.0, num_blocks=2, num_steps=2)]
