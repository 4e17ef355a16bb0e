"""The queue of ``weft bench queue``: its jobs, the contenders, and what the simulator says about each.  Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from benchmarks.queue_models import LINK_BITS_PER_S, MODELS, SCALE, QueueModel
from weft.core.cluster import Cluster, Shape
from weft.core.job import JobSpec
from weft.core.speed import StepTime
from weft.elastic.registry import policy_named
from weft.elastic.rules import Rules
from weft.perf.fusion import default_bucket_bytes, uniform_cuts
from weft.perf.layer_profile import known_profile
from weft.perf.prediction import GRANULARITY, TargetCluster, predict
from weft.perf.recurrence import StepModel
from weft.perf.step_profile import Mode
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import SimulationResult
from weft.sim.workload import TrueJob, Workload

DEVICES_PER_HOST = 1
# Twice the time of a start.  Chosen with the simulator on queues of other seeds: 5 s is up to 8 % worse there.
HOLD_S = 2.5
# The controller does not count the first two reports after a start, whose steps are slower; a worker reports at most
# five times a second.
MEASURED_AFTER_REPORTS = 3
REPORT_EVERY_S = 0.2
# Starts of one model on the testbed's two cores spread by about a quarter.  Whether one takes a tenth of a second more
# can decide which job gets a free device, and so the course of the whole queue: one replay is one course of many.
START_SPREAD = 0.25
NUM_REPLAYS = 25
MAX_WORKERS = 8
# Between the testbed's hosts, where it is not scaled: the median over the rows of `weft bench overlap --profiles`.
LATENCY_S = 100e-6


@dataclass(frozen=True, slots=True)
class QueueJob:
    """A job as its owner would submit it."""

    name: str
    model: str
    arrives_s: float
    num_steps: int
    asked_workers: int
    """What its owner asks for where sizes are fixed."""


NUM_JOBS = 12
LENGTHS_S = (3.0, 40.0)
"""Compute of the shortest and the longest job on one device.  Half of the jobs in the Philly log spread over 25:1."""
ARRIVE_WITHIN_S = 30.0


def drawn_queue(seed: int) -> tuple[QueueJob, ...]:
    """Four jobs of each model, with lengths evenly spread on a logarithmic scale, arriving at random times.

    Half of the owners ask for two workers, because two are faster; BERT needs two.
    """
    draw = random.Random(seed)
    shortest_s, longest_s = LENGTHS_S
    lengths_s = [shortest_s * (longest_s / shortest_s) ** (place / (NUM_JOBS - 1)) for place in range(NUM_JOBS)]
    draw.shuffle(lengths_s)
    arrivals_s = sorted(draw.uniform(0.0, ARRIVE_WITHIN_S) for _ in range(NUM_JOBS))
    models = [name for name in MODELS for _ in range(NUM_JOBS // len(MODELS))]
    draw.shuffle(models)
    jobs: list[QueueJob] = []
    for name, length_s, arrives_s in zip(models, lengths_s, arrivals_s, strict=True):
        model = MODELS[name]
        number = 1 + sum(job.model == name for job in jobs)
        num_steps = max(2, round(length_s / model.compute_s))
        asked = max(model.min_workers, draw.choice((1, 2)))
        jobs.append(QueueJob(f"{name}-{number}", name, round(arrives_s - arrivals_s[0], 1), num_steps, asked))
    return tuple(jobs)


QUEUE = drawn_queue(seed=0)


@dataclass(frozen=True, slots=True)
class QueueContender:
    """One way to run the queue."""

    name: str
    title: str
    policy: str
    sync: str
    """How gradients are averaged: ddp or overlap."""
    is_elastic: bool
    shares: bool = False

    def workers(self, job: QueueJob, num_devices: int) -> tuple[int, int]:
        """The least and the most it may get."""
        if self.is_elastic:
            return MODELS[job.model].min_workers, min(num_devices, MAX_WORKERS)
        return (min(job.asked_workers, num_devices),) * 2


CONTENDERS = {
    contender.name: contender
    for contender in (
        QueueContender("fifo_ddp", "FIFO, fixed sizes, DDP", "fifo", "ddp", is_elastic=False),
        QueueContender("elastic_ddp", "elastic, DDP", "balanced", "ddp", is_elastic=True),
        QueueContender("elastic_overlap", "elastic, overlap", "balanced", "overlap", is_elastic=True),
        QueueContender(
            "elastic_overlap_crossover", "elastic, overlap, crossover", "balanced", "overlap", True, shares=True
        ),
    )
}


@dataclass(frozen=True, eq=False)
class ShapeProfile:
    """Step times of one model by how many workers are on each host, from the step model of ``weft predict``."""

    model: QueueModel
    sync: str
    num_devices: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(range(1, min(self.num_devices, MAX_WORKERS) + 1))

    def step_time(self, shape: Shape) -> StepTime:
        return predicted_step(self.model.profile, self.sync, max(shape), len(shape), sum(shape))


@cache
def predicted_step(name: str, sync: str, workers_per_host: int, num_hosts: int, num_workers: int) -> StepTime:
    """By ``weft predict``, for the whole model on the whole link; ``exposed_s`` is what another job could use.

    Hosts with fewer workers than others count as full: the busiest link decides.
    """
    step = known_profile(name).step(MODELS[name].compute_s / num_workers)
    cluster = TargetCluster(workers_per_host * num_hosts, workers_per_host, SCALE * LINK_BITS_PER_S, LATENCY_S)
    if sync == "ddp":
        (ddp,) = [row for row in predict(step, cluster) if row.contender == "ddp"]
        return StepTime(ddp.step_s, ddp.exposed_s)
    num_bytes = step.num_elements * step.element_bytes
    cuts = uniform_cuts(step, default_bucket_bytes(num_bytes), GRANULARITY)  # the jobs do not tune theirs
    course = StepModel(step, cluster.two_levels(), cluster.num_workers).course(cuts, Mode.BARRIER)
    # As the workers report it: what the link leaves to another job.
    network_s = 2 * (1 - 1 / num_hosts) * 8 * num_bytes / cluster.link_bits_per_s
    return StepTime(course.step_s, max(0.0, min(course.exposed_s, course.step_s - network_s)))


@dataclass(frozen=True, slots=True)
class StartCosts:
    """What starts of a model cost, as measured on the idle cluster."""

    start_s: float
    """From submitting a job of two workers to its first step."""
    restart_s: float
    """From starting such a job again, after it was stopped, to its first step."""


def replays(
    contender: QueueContender,
    queue: Sequence[QueueJob],
    num_hosts: int,
    costs: Mapping[str, StartCosts],
    arrivals: Mapping[str, float],
) -> tuple[SimulationResult, ...]:
    """Courses that the queue could take."""
    return tuple(simulated(contender, queue, num_hosts, costs, arrivals, seed) for seed in range(NUM_REPLAYS))


def simulated(
    contender: QueueContender,
    queue: Sequence[QueueJob],
    num_hosts: int,
    costs: Mapping[str, StartCosts],
    arrivals: Mapping[str, float] | None = None,
    seed: int | None = None,
) -> SimulationResult:
    """The queue under the simulator: step times from the step model, and the measured cost of each model's starts.

    With a ``seed``, starts of each job cost more or less than measured, as they do in reality.
    """
    draw = random.Random(seed)
    cluster = Cluster.uniform(num_hosts, DEVICES_PER_HOST)
    profiles = {name: ShapeProfile(model, contender.sync, cluster.num_devices) for name, model in MODELS.items()}
    jobs = []
    for job in queue:
        least, most = contender.workers(job, cluster.num_devices)
        arrives_s = job.arrives_s if arrivals is None else arrivals[job.name]
        spec = JobSpec(job.name, arrives_s, least, most, most)
        factor = draw.lognormvariate(0.0, START_SPREAD) if seed is not None else 1.0
        cost = costs[job.model]
        true = TrueJob(
            spec,
            profiles[job.model],
            job.num_steps,
            start_s=factor * cost.start_s,
            restart_s=factor * cost.restart_s,
        )
        jobs.append(true)
    jobs.sort(key=lambda job: job.spec.submitted_s)
    options = SimulationOptions(
        decision_interval_s=0.0,
        restart_s=median(cost.start_s for cost in costs.values()),
        explore=True,
        measured_after_reports=MEASURED_AFTER_REPORTS,
        report_every_s=REPORT_EVERY_S,
        crossover=contender.shares,
    )
    policy = policy_named(contender.policy, Rules(hold_s=HOLD_S, review_s=60.0))
    return simulate(Workload("queue", tuple(jobs)), cluster, policy, options)
