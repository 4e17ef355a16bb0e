"""Real jobs on a real controller: elastic vs. fixed sizes, and both vs. what the simulator predicts.

    python -m benchmarks.controller [--rounds 5] [--quick] [--out FOLDER]

The queue is that of `weft demo`.  First, jobs are run to find the time of a step and of a start, on one and on two
workers; the simulator is given only these.  Then the queue is run on two devices, round after round,
alternating between elastic and first in, first out with one and with two workers per job.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.figures import Document, finish, head
from benchmarks.intervals import interval_note, paired_ratio
from benchmarks.program import counted, parse, say
from benchmarks.queue_plan import MEASURED_AFTER_REPORTS, REPORT_EVERY_S
from benchmarks.record import markdown_table
from benchmarks.start_cost import reported_step_s, start_cost_s
from weft.client import Client
from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.demo.contest import Completion, Played, play, temporary_controller
from weft.demo.queue import QUEUE, QueuedJob
from weft.elastic.registry import policy_named
from weft.elastic.rules import Rules
from weft.sim.figure_style import BLUE, INK, POLICIES, WIDTH_IN, pyplot, save
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import TableProfile, TrueJob, Workload

NUM_DEVICES = 2
HOLD_S = 2.0
SHORT_STEPS, LONG_STEPS = 40, 200


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the queue."""

    name: str
    policy: str
    min_workers: int
    max_workers: int


WAYS = (
    Way("elastic", "balanced", 1, 2),
    Way("fixed, 1 worker", "fifo", 1, 1),
    Way("fixed, 2 workers", "fifo", 2, 2),
)


@dataclass(frozen=True, slots=True)
class Speed:
    """What one step takes at each size, and what a start costs on top."""

    step_s: Mapping[int, float]
    start_s: float


def measure_speed() -> Speed:
    """From long jobs (steps) and short ones (starts) at each size, with as many jobs at a time as fit."""
    step_s: dict[int, float] = {}
    starts: list[float] = []
    with temporary_controller("fifo", num_devices=NUM_DEVICES) as client:
        _warm_up(client)
        for workers in (1, 2):
            num_at_once = NUM_DEVICES // workers
            short, long = (QueuedJob(f"{num}-steps-{workers}", 0.0, num) for num in (SHORT_STEPS, LONG_STEPS))
            took_s = _run(client, [short] * num_at_once, workers)
            starts.append(start_cost_s(took_s, SHORT_STEPS, reported_step_s(client, short.name)))
            _run(client, [long] * num_at_once, workers)
            step_s[workers] = reported_step_s(client, long.name)
    return Speed(step_s, mean(starts))


def _warm_up(client: Client) -> None:
    """The pool of processes is ready after the first job, as on any cluster that has been up for a minute."""
    _run(client, [QueuedJob("warm-up", 0.0, SHORT_STEPS)], 1)


def _run(client: Client, queue: Sequence[QueuedJob], workers: int) -> float:
    return play(client, queue, min_workers=workers, max_workers=workers).mean_s


def predicted(way: Way, speed: Speed, arrivals: Mapping[str, float]) -> dict[str, float]:
    """Completion times by job, from the simulator, for the queue as it really arrived."""
    sizes = range(way.min_workers, way.max_workers + 1)
    profile = TableProfile({size: StepTime(speed.step_s[size]) for size in sizes})
    jobs = tuple(
        TrueJob(
            JobSpec(job.name, arrivals[job.name], way.min_workers, way.max_workers, way.max_workers),
            profile,
            job.num_steps,
        )
        for job in sorted(QUEUE, key=lambda job: arrivals[job.name])
    )
    options = SimulationOptions(
        decision_interval_s=0.0,
        restart_s=speed.start_s,
        explore=True,
        measured_after_reports=MEASURED_AFTER_REPORTS,
        report_every_s=REPORT_EVERY_S,
    )
    policy = policy_named(way.policy, Rules(hold_s=HOLD_S, review_s=60.0))
    result = simulate(Workload("queue", jobs), Cluster((NUM_DEVICES,)), policy, options)
    return {job.name: job.completion_s for job in result.jobs}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="elastic vs. fixed sizes, real vs. simulated")
    options, folder = parse(parser, argv, quick="one round", rounds=5)
    num_rounds = options.rounds
    say("measuring how long a step and a start take")
    speed = measure_speed()
    say(f"steps { ({size: round(s * 1e3, 1) for size, s in speed.step_s.items()}) } ms, start {speed.start_s:.2f} s")
    rounds: dict[str, list[Played]] = {way.name: [] for way in WAYS}
    for number in range(num_rounds):
        for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
            with temporary_controller(way.policy, num_devices=NUM_DEVICES, hold_s=HOLD_S) as client:
                _warm_up(client)
                played = play(client, QUEUE, min_workers=way.min_workers, max_workers=way.max_workers)
            rounds[way.name].append(played)
            say(f"round {number + 1} of {num_rounds}, {way.name}: mean {played.mean_s:.1f} s")
    rows = [row for way in WAYS for row in job_rows(way, speed, rounds[way.name])]
    document = {"rounds": num_rounds, "speed": asdict(speed), "summary": summary(rounds, rows), "rows": rows}
    command = shlex.join(["python", "-m", "benchmarks.controller", "--rounds", str(num_rounds)])
    finish("controller", command, document, tables, draw, folder)


def job_rows(way: Way, speed: Speed, plays: Sequence[Played]) -> list[dict[str, Any]]:
    """One row per job: medians over rounds next to the prediction."""
    arrivals = {job.name: median(_of(played, job.name).arrived_s for played in plays) for job in QUEUE}
    simulated = predicted(way, speed, arrivals)
    rows: list[dict[str, Any]] = []
    for job in QUEUE:
        real_s = median(_of(played, job.name).took_s for played in plays)
        rows.append(
            {
                "way": way.name,
                "job": job.name,
                "steps": job.num_steps,
                "arrived_s": round(arrivals[job.name], 2),
                "real_s": round(real_s, 2),
                "simulated_s": round(simulated[job.name], 2),
                "error": round(abs(simulated[job.name] - real_s) / real_s, 3),
                "restarts": median(_of(played, job.name).restarts for played in plays),
            }
        )
    return rows


def _of(played: Played, name: str) -> Completion:
    return next(job for job in played.completions if job.name == name)


def summary(rounds: Mapping[str, Sequence[Played]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per contender: mean completion time, and the simulator's average error."""
    means = {name: median(played.mean_s for played in plays) for name, plays in rounds.items()}
    best_fixed_s = min(seconds for name, seconds in means.items() if name != WAYS[0].name)
    return [
        {
            "way": name,
            "mean_s": round(seconds, 2),
            "over_best_fixed": round(seconds / best_fixed_s, 3),
            "makespan_s": round(median(played.makespan_s for played in rounds[name]), 2),
            "mean_error": round(mean(row["error"] for row in rows if row["way"] == name), 3),
            "means_of_rounds_s": [round(played.mean_s, 2) for played in rounds[name]],
        }
        for name, seconds in means.items()
    ]


def summary_table(document: Document) -> list[str]:
    """One row per contender."""
    ways: Sequence[Mapping[str, Any]] = document["summary"]
    elastic_s = ways[0]["means_of_rounds_s"]
    faster = [paired_ratio(way["means_of_rounds_s"], elastic_s) for way in ways]
    body = [
        [
            way["way"],
            way["mean_s"],
            "-" if way is ways[0] else ratio,
            way["makespan_s"],
            f"{100 * way['mean_error']:.0f} %",
            ", ".join(map(str, way["means_of_rounds_s"])),
        ]
        for way, ratio in zip(ways, faster, strict=True)
    ]
    heads = ["jobs run", "mean completion, s", "elastic is faster by (95 %)", "makespan, s", "simulator off by"]
    return [*markdown_table([*heads, "means of rounds, s"], body), *interval_note(faster[1:])]


def tables(document: Document) -> str:
    """The summary, and every job of the typical rounds."""
    heads = ["jobs run", "job", "steps", "arrived, s", "measured, s", "simulated, s", "off by", "restarts"]
    fields = ("way", "job", "steps", "arrived_s", "real_s", "simulated_s", "error", "restarts")
    jobs = [[*(row[name] for name in fields)] for row in document["rows"]]
    for cells in jobs:
        cells[6] = f"{100 * cells[6]:.0f} %"
    return "\n".join(
        [
            f"{counted(document['rounds'], 'round')} in alternating order; medians over rounds.",
            "",
            *summary_table(document),
            "",
            *markdown_table(heads, jobs),
        ]
    )


def draw(document: Document, path: Path) -> None:
    """Mean completion times, measured and simulated."""
    plt = pyplot()
    ways: Sequence[Mapping[str, Any]] = document["summary"]
    figure, axis = plt.subplots(figsize=(WIDTH_IN, 2.9), layout="constrained")
    for place, way in enumerate(ways):
        simulated_s = mean(row["simulated_s"] for row in document["rows"] if row["way"] == way["way"])
        color = BLUE if place == 0 else POLICIES["fifo"]
        axis.barh(place - 0.18, way["mean_s"], height=0.36, color=color, label="measured" if place == 1 else None)
        axis.barh(
            place + 0.2,
            simulated_s,
            height=0.3,
            color="white",
            edgecolor=color,
            hatch="////",
            label="simulated" if place == 1 else None,
        )
        for seconds in way["means_of_rounds_s"]:
            axis.plot(seconds, place - 0.18, "|", color=INK, markersize=9)
        far_s = max(way["mean_s"], simulated_s, *way["means_of_rounds_s"])
        axis.text(far_s, place, f"  {way['mean_s']:.1f} s", va="center", fontsize=8.5)
    axis.plot([], [], "|", color=INK, markersize=9, label="one round")
    axis.set_yticks(range(len(ways)), [way["way"] for way in ways])
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlabel("mean completion time, seconds")
    head(figure, f"{len(QUEUE)} real jobs on {NUM_DEVICES} devices: workers moved between jobs, or fixed", document)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, path)


if __name__ == "__main__":
    main()
