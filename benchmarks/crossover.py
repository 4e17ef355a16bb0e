"""``weft bench crossover``: two jobs on the same hosts, in every way they can share them.

The way of the data: scenario -> compute of each job -> link rate -> cells -> row -> files.  A cell is one way of
running the two jobs; each begins with fresh models, so that the losses of every cell can be compared with those of each
job alone.  This side never imports torch; the workers do, each in its own network namespace.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.crossover_fleet import Fleet
from benchmarks.crossover_results import Results
from benchmarks.crossover_rows import Cost, PairTimes, Row, Timed, make_row, pair_times, slowest
from benchmarks.crossover_scenarios import Effort, Member, Scenario
from benchmarks.overlap_bounds import half_exchange_s
from benchmarks.testbed import HostFailed, Testbed

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
NUM_HOSTS = 2
START_RATE_BITS_PER_S = 1e9
START_DELAY_S = 0.2
OFFSET_SEED = 7
SHARED_CELLS = ("lone", "crossover")

# (rows done, what is going on)
OnProgress = Callable[[int, str], None]


def run_scenarios(
    scenarios: Sequence[Scenario],
    *,
    command: str,
    on_progress: OnProgress,
    folder: Path = RESULTS,
    continued: Results | None = None,
) -> Results:
    """Measure what ``continued`` does not have yet; a row that fails is noted and the rest goes on."""
    results = continued or Results(folder, datetime.now(), command)
    if continued is not None:
        results.command += f"; {command}"
    left = [scenario for scenario in scenarios if scenario.key not in results.keys]
    on_progress(len(scenarios) - len(left), "starting")
    with Testbed(NUM_HOSTS, START_RATE_BITS_PER_S) as bed:
        while left:
            try:
                with Fleet(bed) as fleet:
                    while left:
                        scenario = left.pop(0)
                        on_progress(0, scenario.label)
                        results.add(scenario, Measurement(bed, fleet, scenario, on_progress).row())
                        on_progress(1, scenario.label)
            except HostFailed as failure:  # the others of its job wait for it: a fresh fleet for the next row
                results.failures.append(f"{scenario.label}: {failure}")
                on_progress(1, f"{scenario.label} failed, going on")
                results.save()
    return results


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
        self._gate_s = 0.0
        self._timelines: dict[str, dict[str, Any]] = {}

    def row(self) -> Row:
        compute = {"A": self._compute("A")}
        compute["B"] = compute["A"] if self._same_size else self._compute("B")
        ratio_s = self._scenario.ratio * compute["A"][0]
        self._bed.set_rate(2 * half_exchange_s(compute["A"][1], NUM_HOSTS, 1.0) / ratio_s)
        alone, lone_s = self._alone()
        costs = {
            job: Cost(compute[job][0], self._network_s(self._members[job], compute[job][1]), alone[job])
            for job in self._members
        }
        first, second = costs["A"], costs["B"]
        offset_s = random.Random(OFFSET_SEED).uniform(0.25, 0.75) * first.alone_s
        cells = {
            "in_phase": self._together("in_phase", first, second),
            "random_phase": self._together("random_phase", first, second, offset_s=offset_s),
            "crossover": self._together("crossover", first, second, share=True),
        }
        details = {
            "loss_equal": all(self._loss_equal.values()),
            "loss_equal_by_cell": dict(self._loss_equal),
            "lone_shared_ms": round(lone_s * 1e3, 2),
            "lone_overhead": round(lone_s / first.alone_s - 1.0, 4),
            # The gate's own time in a step: what drifting clocks and neighbours of the machine cannot hide.
            "lone_gate_share": round(self._gate_s / lone_s, 6),
            "ratio_wanted": self._scenario.ratio,
            "offset_ms": round(offset_s * 1e3, 1),
            "rate_mbit_per_s": round(self._bed.rate_bits_per_s / 1e6, 1),
            "gradient_bytes": [compute["A"][1], compute["B"][1]],
            "timelines": self._timelines,
        }
        return make_row(self._scenario, first, second, cells, details)

    def _compute(self, job: str) -> tuple[float, int]:
        """Seconds of compute in a step, and bytes of gradients."""
        self._tell("compute alone")
        bare = Member("single", self._members[job].size)
        described = self._prepare({job: bare}, share=False)[job][0]
        # Link rate and bound hang on this one number: twice as many steps as elsewhere.
        timed = self._run({job: 2 * self._effort.num_alone_steps}, {job: 0.0})[job]
        return timed.step_s, int(described["gradient_bytes"])

    def _alone(self) -> tuple[dict[str, float], float]:
        """Median step of each job alone, and of the first one alone with sharing switched on; in turn."""
        steps: dict[str, list[float]] = {"A": [], "B": [], "lone": []}
        for _ in range(self._effort.num_alone_blocks):
            self._tell("A alone")
            steps["A"] += self._lone_steps("A", share=False)
            self._tell("A alone, sharing switched on")
            steps["lone"] += self._lone_steps("A", share=True)
            if not self._scenario.is_equal:
                self._tell("B alone")
                steps["B"] += self._lone_steps("B", share=False)
        if self._scenario.is_equal:
            steps["B"] = steps["A"]
            self._expected["B"] = self._expected["A"]
        return {job: median(steps[job]) for job in self._members}, median(steps["lone"])

    def _lone_steps(self, job: str, *, share: bool) -> list[float]:
        self._prepare({job: self._members[job]}, share=share)
        timed = self._run({job: self._effort.num_alone_steps}, {job: 0.0}, cell="lone" if share else "alone")[job]
        starts_s = (timed.began_s, *timed.ends_s)
        return [end - start for start, end in zip(starts_s, timed.ends_s, strict=False)]

    def _together(
        self, cell: str, first: Cost, second: Cost, *, offset_s: float = 0.0, share: bool = False
    ) -> PairTimes:
        self._tell(cell.replace("_", " "))
        self._prepare(self._members, share=share)
        num_steps = self._effort.num_pair_steps
        # The shorter one makes more steps, so that both are at it for about as long.
        num_second = max(num_steps, round(num_steps * first.alone_s / second.alone_s))
        timed = self._run({"A": num_steps, "B": num_second}, {"A": 0.0, "B": offset_s}, cell=cell)
        return pair_times(timed["A"], timed["B"])

    def _prepare(self, members: dict[str, Member], *, share: bool) -> dict[str, list[dict[str, Any]]]:
        answers: dict[str, list[dict[str, Any]]] = {}
        for job, member in members.items():  # one after the other: warming up must not be shared either
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
                raise HostFailed(f"job {job} has lost its lease server: what it did then is not crossover")
            if cell == "lone":
                self._gate_s = max(answer["turn_s"] for answer in found)
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
