"""``weft bench crossover``: two jobs on the same hosts, in every way they can share them.

Data flow: scenario -> compute of each job -> link rate -> rounds of cells -> row -> files.  A cell is one way
of running the two jobs; each begins with fresh models, so that the losses of every cell can be compared with those of
each job alone.  This side never imports torch; the workers do, each in its own network namespace.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.crossover_fleet import Fleet
from benchmarks.crossover_lone import measure_lone
from benchmarks.crossover_results import keep, open_record
from benchmarks.crossover_rows import Cost, PairTimes, Timed, make_row, middle_of, pair_times, slowest
from benchmarks.crossover_scenarios import Effort, Lone, Member, Scenario, fitting, within
from benchmarks.overlap_bounds import half_exchange_s
from benchmarks.record import Row, RowRecord
from benchmarks.testbed import HostFailed, Testbed

NUM_HOSTS = 2
START_RATE_BITS_PER_S = 1e9
START_DELAY_S = 0.2
OFFSET_SEED = 7
SHARED_CELLS = ("lone", "crossover")

# (rows done, current activity)
OnProgress = Callable[[int, str], None]


def run_scenarios(
    scenarios: Sequence[Scenario | Lone],
    *,
    command: str,
    on_progress: OnProgress,
    folder: Path,
    minutes: float | None = None,
    fresh: bool = False,
) -> RowRecord:
    """Measure the rows that this code has not measured yet; a row that fails is noted and the others follow."""
    record = open_record(folder, command)
    end_s = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    left = [scenario for scenario in scenarios if fresh or record.measured(scenario.key) is None]
    on_progress(len(scenarios) - len(left), "starting")
    if not left:
        return record
    with Testbed(NUM_HOSTS, START_RATE_BITS_PER_S) as bed:
        while fitting(left, end_s - time.monotonic()):
            try:
                with Fleet(bed) as fleet:
                    while fit := fitting(left, end_s - time.monotonic()):
                        scenario = within(fit, end_s - time.monotonic())
                        left.remove(fit[0])
                        on_progress(0, scenario.label)
                        if isinstance(scenario, Lone):
                            row = measure_lone(bed, fleet, scenario)
                        else:
                            row = Measurement(bed, fleet, scenario, on_progress).row()
                        record.put(scenario.key, row)
                        keep(record)
                        on_progress(1, scenario.label)
            except HostFailed as failure:  # its peers would wait for it: start fresh processes for the next row
                record.failures.append(f"{scenario.label}: {failure}")
                on_progress(1, f"{scenario.label} failed, continuing with the next row")
                keep(record)
    return record


@dataclass(frozen=True, slots=True)
class Shape:
    """Steps of a job without communication, and how many bytes it would have to communicate."""

    steps_s: tuple[float, ...]
    gradient_bytes: int


@dataclass(slots=True)
class Rounds:
    """What the rounds of a row have measured so far."""

    compute_s: dict[str, tuple[float, ...]] = field(default_factory=lambda: defaultdict(tuple))
    alone_s: dict[str, tuple[float, ...]] = field(default_factory=lambda: defaultdict(tuple))
    # With sharing on, although there is no other job: only then are a job's waits measured.
    waited_s: dict[str, tuple[float, ...]] = field(default_factory=lambda: defaultdict(tuple))
    cells: list[dict[str, PairTimes]] = field(default_factory=list)
    alone_ms: list[list[float]] = field(default_factory=list)
    """Of each round, for the pairs of a confidence interval."""


class Measurement:
    """One row."""

    def __init__(self, bed: Testbed, fleet: Fleet, scenario: Scenario, on_progress: OnProgress) -> None:
        self._bed = bed
        self._fleet = fleet
        self._scenario = scenario
        self._effort: Effort = scenario.effort
        self._members = {"A": scenario.first, "B": scenario.second}
        self._on_progress = on_progress
        self._expected: dict[str, list[list[float]]] = {}
        self._same_size = scenario.first.size == scenario.second.size
        self._loss_equal: dict[str, bool] = {}
        self._waited_s = 0.0
        self._timelines: dict[str, dict[str, Any]] = {}
        self._offset = random.Random(OFFSET_SEED)

    def row(self) -> Row:
        jobs = ("A",) if self._same_size else ("A", "B")
        # The link rate and the row depend on this number: measured once to set the rate, and again in every round.
        shapes = {job: self._compute(job, 2 * self._effort.num_alone_steps) for job in jobs}
        ratio_s = self._scenario.ratio * median(shapes["A"].steps_s)
        self._bed.set_rate(2 * half_exchange_s(shapes["A"].gradient_bytes, NUM_HOSTS, 1.0) / ratio_s)
        rounds = Rounds()
        for _ in range(self._effort.num_rounds):
            self._round(jobs, rounds)
        for job in {"A", "B"} - set(jobs):
            shapes[job], rounds.compute_s[job] = shapes["A"], rounds.compute_s["A"]
        if self._scenario.is_equal:
            rounds.waited_s["B"] = rounds.waited_s["A"]
        first, second = (
            Cost(
                median(rounds.compute_s[job]),
                self._network_s(self._members[job], shapes[job].gradient_bytes),
                median(rounds.alone_s[job]),
                median(rounds.waited_s[job]),
                sends_all_the_time=self._members[job].kind == "overlap",
            )
            for job in ("A", "B")
        )
        details = {
            "loss_equal": all(self._loss_equal.values()),
            "loss_equal_by_cell": dict(self._loss_equal),
            "ratio_wanted": self._scenario.ratio,
            "rate_mbit_per_s": round(self._bed.rate_bits_per_s / 1e6, 1),
            "gradient_bytes": [shapes[job].gradient_bytes for job in ("A", "B")],
            "rounds": [
                {
                    "alone": alone_ms,
                    **{
                        cell: [round(1e3 * s, 1) for s in (pair.first_s, pair.second_s)] for cell, pair in cells.items()
                    },
                }
                for alone_ms, cells in zip(rounds.alone_ms, rounds.cells, strict=True)
            ],
            "timelines": self._timelines,
        }
        return make_row(self._scenario, first, second, middle_of(rounds.cells), details)

    def _round(self, jobs: Sequence[str], rounds: Rounds) -> None:
        """Everything once, in sequence, so that a slow machine affects all alike."""
        for job in jobs:
            rounds.compute_s[job] += self._compute(job, self._effort.num_alone_steps).steps_s
        latest: dict[str, float] = {}
        for job in ("A",) if self._scenario.is_equal else ("A", "B"):
            self._tell(f"{job} alone")
            steps_s = self._lone_steps(job, share=False)
            latest[job] = median(steps_s)
            rounds.alone_s[job] += steps_s
            self._tell(f"{job} alone, sharing switched on")
            self._lone_steps(job, share=True)
            rounds.waited_s[job] += (self._waited_s,)
        if self._scenario.is_equal:
            rounds.alone_s["B"] = rounds.alone_s["A"]
            self._expected["B"] = self._expected["A"]
        rounds.alone_ms.append([round(1e3 * latest.get(job, latest["A"]), 1) for job in ("A", "B")])
        alone_s = {job: median(rounds.alone_s[job]) for job in self._members}
        offset_s = self._offset.uniform(0.25, 0.75) * alone_s["A"]
        rounds.cells.append(
            {
                "in_phase": self._together("in_phase", alone_s),
                "random_phase": self._together("random_phase", alone_s, offset_s=offset_s),
                "crossover": self._together("crossover", alone_s, share=True),
            }
        )

    def _compute(self, job: str, num_steps: int) -> Shape:
        """The job on one worker, without communication."""
        self._tell("compute alone")
        bare = Member("single", self._members[job].size)
        described = self._prepare({job: bare}, share=False)[job][0]
        return Shape(self._run({job: num_steps}, {job: 0.0})[job].steps_s, int(described["gradient_bytes"]))

    def _lone_steps(self, job: str, *, share: bool) -> tuple[float, ...]:
        self._prepare({job: self._members[job]}, share=share)
        cell = "lone" if share else "alone"
        return self._run({job: self._effort.num_alone_steps}, {job: 0.0}, cell=cell)[job].steps_s

    def _together(
        self, cell: str, alone_s: Mapping[str, float], *, offset_s: float = 0.0, share: bool = False
    ) -> PairTimes:
        self._tell(cell.replace("_", " "))
        self._prepare(self._members, share=share)
        num_steps = self._effort.num_pair_steps
        # The shorter job makes more steps, so that both run for about the same time.
        num_second = max(num_steps, round(num_steps * alone_s["A"] / alone_s["B"]))
        timed = self._run({"A": num_steps, "B": num_second}, {"A": 0.0, "B": offset_s}, cell=cell)
        return pair_times(timed["A"], timed["B"])

    def _prepare(self, members: dict[str, Member], *, share: bool) -> dict[str, list[dict[str, Any]]]:
        answers: dict[str, list[dict[str, Any]]] = {}
        for job, member in members.items():  # one at a time: warm-up must not be shared either
            order = {
                "do": "prepare",
                "kind": member.kind,
                "size": asdict(member.size),
                "role": member.role if share else "",
                "num_warmup_steps": self._effort.num_warmup_steps,
            }
            answers |= self._fleet.ask({job: order})
        return answers

    def _run(self, num_steps: dict[str, int], offsets_s: dict[str, float], cell: str = "") -> dict[str, Timed]:
        start_s = time.monotonic() + START_DELAY_S
        orders = {
            job: {"do": "run", "num_steps": num, "start_s": start_s + offsets_s[job], "with_spans": bool(cell)}
            for job, num in num_steps.items()
        }
        answers = self._fleet.ask(orders)
        for job, found in answers.items():
            if cell in SHARED_CELLS and not all(answer["is_shared"] for answer in found):
                raise HostFailed(f"job {job} lost its lease server, so what was measured is not crossover")
            if cell == "lone":
                self._waited_s = max(answer["waited_s"] for answer in found)
            if cell:
                self._compare(cell, job, [answer["losses"] for answer in found])
                self._timelines.setdefault(cell, {})[job] = _from(start_s, found[0]["spans"])
        return {job: slowest(found) for job, found in answers.items()}

    def _compare(self, cell: str, job: str, losses: list[list[float]]) -> None:
        """Every loss of every worker, bit for bit those of the job alone, as far as both have gone."""
        expected = self._expected.setdefault(job, losses)
        same = all(mine[: len(alone)] == alone[: len(mine)] for mine, alone in zip(losses, expected, strict=True))
        self._loss_equal[cell] = self._loss_equal.get(cell, True) and same
        if len(losses[0]) > len(expected[0]):
            self._expected[job] = losses

    def _network_s(self, member: Member, num_bytes: int) -> float:
        if member.kind == "single":
            return 0.0
        return 2 * half_exchange_s(num_bytes, NUM_HOSTS, self._bed.rate_bits_per_s)

    def _tell(self, what: str) -> None:
        self._on_progress(0, f"{self._scenario.label}: {what}")


def _from(start_s: float, spans: Sequence[Sequence[Any]]) -> list[tuple[str, float, float]]:
    """Spans in milliseconds since the start, those too short to be seen left out."""
    shown = [(what, round(1e3 * (b - start_s), 1), round(1e3 * (e - start_s), 1)) for what, b, e in spans]
    return [span for span in shown if span[2] - span[1] >= 1.0]
