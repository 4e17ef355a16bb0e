"""Turns the end times of steps into one row of the table.  Pure.

c: compute of a step, measured on one worker without communication.  n: network time of a step at line rate.
alone: a step of the job with its devices to itself; alone - c is exposed.  The job *waits* during only part of that: on
a core, moving its bytes also slows down its compute, and no other job can use that time.

[Note: pairs]  Both jobs run at the same time; only the time in which both run counts.  With equal jobs the pair's
time is the time until both have made one step.  Unequal jobs make different numbers of steps; their *work* is then
counted in steps alone: the pair's time is what one after the other takes, divided by how much more work per second the
two do together.  For equal jobs that is the same number.

[Note: bound]  T* = max(sum (c + handover), max alone, sum n): neither the device nor the link can do more.  Of unequal
jobs the shorter may make k steps a round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.crossover_scenarios import Scenario
from benchmarks.intervals import Ratio, paired_ratio
from benchmarks.record import Row
from weft.core.speed import StepTime
from weft.crossover.phases import TurnLimits
from weft.elastic.pairing import predicted_gain, refusal
from weft.perf.crossover import MAX_STEPS_PER_ROUND

HANDOVER_S = TurnLimits().handover_s

# The frozen part of a row.
FIELDS = (
    *("job", "network_over_compute", "alone_ms", "serial_ms", "in_phase_ms", "random_phase_ms"),
    *("crossover_ms", "bound_ms", "loss_equal"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step of one job takes."""

    compute_s: float
    network_s: float
    alone_s: float
    waited_s: float | None = None
    """What the job itself reports as waiting for the network; the exposed time where it was not asked."""
    sends_all_the_time: bool = False
    """Not only while it waits: its model is overlapped."""

    @property
    def exposed_s(self) -> float:
        return max(0.0, self.alone_s - self.compute_s)

    @property
    def waits_s(self) -> float:
        return min(self.exposed_s if self.waited_s is None else self.waited_s, self.alone_s)

    @property
    def reported(self) -> StepTime:
        """The step as a controller sees it: it knows a step and its gap, and assumes the rest is compute."""
        left_s = self.alone_s - (self.network_s if self.sends_all_the_time else 0.0)
        return StepTime(self.alone_s, max(0.0, min(self.waits_s, left_s)))


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of one job in one cell, the slowest worker counting."""

    began_s: float
    ends_s: tuple[float, ...]

    @property
    def steps_s(self) -> tuple[float, ...]:
        """How long each step took."""
        return tuple(end - start for start, end in zip((self.began_s, *self.ends_s), self.ends_s, strict=False))

    def steps_until(self, at_s: float) -> float:
        """How many steps were done then; within a step, the part of its time that had passed."""
        done, last_s = 0.0, self.began_s
        for end_s in self.ends_s:
            if at_s < end_s:
                return done + max(0.0, at_s - last_s) / (end_s - last_s)
            done, last_s = done + 1, end_s
        return done


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Two jobs at the same time: seconds per step of each, while both ran."""

    first_s: float
    second_s: float

    def work(self, first: Cost, second: Cost) -> float:
        """Work per second, where each job alone does 1."""
        return first.alone_s / self.first_s + second.alone_s / self.second_s

    def round_s(self, first: Cost, second: Cost) -> float:
        return (first.alone_s + second.alone_s) / self.work(first, second)


def slowest(answers: Sequence[Mapping[str, Any]]) -> Timed:
    """A step has ended when it has on all workers."""
    ends_s = tuple(max(ends) for ends in zip(*(answer["ends_s"] for answer in answers), strict=True))
    return Timed(max(answer["began_s"] for answer in answers), ends_s)


def pair_times(first: Timed, second: Timed) -> PairTimes:
    """Speeds in the time both ran, from when both have made their first step on.

    >>> pair_times(Timed(0.0, (1.0, 2.0, 3.0)), Timed(0.5, (1.5, 2.5, 3.5)))
    PairTimes(first_s=1.0, second_s=1.0)
    """
    from_s = max(first.ends_s[0], second.ends_s[0])
    until_s = min(first.ends_s[-1], second.ends_s[-1])
    steps = [timed.steps_until(until_s) - timed.steps_until(from_s) for timed in (first, second)]
    if min(steps) <= 0:  # one ended before the other had started: nothing was shared
        return PairTimes(median(first.steps_s), median(second.steps_s))
    return PairTimes((until_s - from_s) / steps[0], (until_s - from_s) / steps[1])


def middle_of(rounds: Sequence[Mapping[str, PairTimes]]) -> dict[str, PairTimes]:
    """The median of each cell over the rounds, for each job separately.

    >>> middle_of([{"crossover": PairTimes(1.0, 2.0)}, {"crossover": PairTimes(3.0, 4.0)}])
    {'crossover': PairTimes(first_s=2.0, second_s=3.0)}
    """
    return {
        cell: PairTimes(
            median(cells[cell].first_s for cells in rounds), median(cells[cell].second_s for cells in rounds)
        )
        for cell in rounds[0]
    }


def bound_s(first: Cost, second: Cost, handover_s: float = HANDOVER_S) -> float:
    """A lower bound on a round of both jobs; see [Note: bound].

    >>> job = Cost(compute_s=1.0, network_s=1.2, alone_s=2.2)
    >>> round(bound_s(job, job, 0.0), 3)
    2.4
    """
    long, short = (first, second) if first.alone_s >= second.alone_s else (second, first)
    best_work = 0.0
    for k in range(1, MAX_STEPS_PER_ROUND + 1):
        round_s = max(
            long.compute_s + handover_s + k * (short.compute_s + handover_s),
            long.alone_s,
            k * short.alone_s,
            long.network_s + k * short.network_s,
        )
        best_work = max(best_work, (long.alone_s + k * short.alone_s) / round_s)
    return (first.alone_s + second.alone_s) / best_work


def make_row(
    scenario: Scenario,
    first: Cost,
    second: Cost,
    cells: Mapping[str, PairTimes],
    details: Mapping[str, Any],
) -> Row:
    """One row: the frozen fields first, then what helps to understand them."""
    shared = cells["crossover"]
    row: Row = {
        "job": scenario.first.kind,
        "network_over_compute": round(first.network_s / first.compute_s, 3),
        "alone_ms": _ms(first.alone_s),
        "serial_ms": _ms(first.alone_s + second.alone_s),
        **{f"{name}_ms": _ms(times.round_s(first, second)) for name, times in cells.items()},
        "bound_ms": _ms(bound_s(first, second)),
        "pair": scenario.pair,
        "second_alone_ms": _ms(second.alone_s),
        "compute_ms": [_ms(first.compute_s), _ms(second.compute_s)],
        "network_ms": [_ms(first.network_s), _ms(second.network_s)],
        "exposed_ms": [_ms(first.exposed_s), _ms(second.exposed_s)],
        "waited_ms": [_ms(first.waits_s), _ms(second.waits_s)],
        "slowdown": {
            name: [round(times.first_s / first.alone_s, 3), round(times.second_s / second.alone_s, 3)]
            for name, times in cells.items()
        },
        **_verdict(first, second),
        **details,
    }
    if scenario.pair == "filler":
        row |= _filler(first, second, shared)
    return row


def _verdict(first: Cost, second: Cost) -> dict[str, Any]:
    """What the controller's pairing model predicts for the jobs."""
    return {
        "predicted_gain": round(predicted_gain(first.reported, second.reported, HANDOVER_S), 3),
        "refused": refusal("B", first.reported, second.reported, HANDOVER_S),
    }


def _filler(primary: Cost, filler: Cost, shared: PairTimes) -> dict[str, Any]:
    """What the primary leaves of its device when it is alone, and how much of that the filler got."""
    left_over = 1.0 - primary.compute_s / primary.alone_s
    got = filler.compute_s / shared.second_s
    return {
        "primary_slowed": round(shared.first_s / primary.alone_s - 1.0, 4),
        "left_over": round(left_over, 4),
        "filler_got": round(got / left_over, 4) if left_over > 0 else None,
    }


def ratio(row: Row, slower: str) -> Ratio:
    """How many times as fast crossover is, with its interval over rounds.

    Rows from before 2026-11-17 do not have each job alone round by round: "one after the other" then has no interval.
    """
    above_ms = [_round_ms(row, cells, slower) for cells in row["rounds"]]
    below_ms = [_round_ms(row, cells, "crossover") for cells in row["rounds"]]
    known = [(above, below) for above, below in zip(above_ms, below_ms, strict=True) if above and below]
    if not known:
        return Ratio(row[f"{slower}_ms"] / row["crossover_ms"], 0.0, math.inf)
    return paired_ratio([above for above, _ in known], [below for _, below in known])


def _round_ms(row: Row, cells: Mapping[str, Sequence[float]], name: str) -> float | None:
    """The pair's time in one round, as ``PairTimes.round_s`` counts it."""
    if name == "serial":
        return sum(cells["alone"]) if "alone" in cells else None
    first_ms, second_ms = cells.get("alone", (row["alone_ms"], row["second_alone_ms"]))
    return (first_ms + second_ms) / (first_ms / cells[name][0] + second_ms / cells[name][1])


def slowdown(row: Row, place: int) -> Ratio:
    """A job's step with crossover over its step alone, with its interval; ``place``: 0 is the first job."""
    known = [(cells["crossover"][place], cells["alone"][place]) for cells in row["rounds"] if "alone" in cells]
    if not known:
        return Ratio(row["slowdown"]["crossover"][place], 0.0, math.inf)
    return paired_ratio([shared for shared, _ in known], [alone for _, alone in known])


def share_of_bound(row: Row) -> float:
    return float(row["bound_ms"] / row["crossover_ms"])


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
