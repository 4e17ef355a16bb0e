"""Whatever happens to a Ray cluster, no acknowledged job is lost and each sample counts exactly once."""

from __future__ import annotations

import os
import random
import time

import pytest
from tests.faults.ray_kinds import RAY_KINDS, bring_back
from tests.ray_cluster import RayTestCluster
from tests.ray_controller import controller_on

NUM_FAULTS = 4
MAX_RESTARTS = 1000
SEEDS = range(int(os.environ.get("WEFT_RAY_SCHEDULES", "2")))


@pytest.mark.soak
@pytest.mark.netns
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_schedule_of_faults_on_ray_loses_a_job_or_a_sample(ray_cluster: RayTestCluster, seed: int) -> None:
    """Every kind of fault is in two schedules after each other; ``WEFT_RAY_SCHEDULES`` of them."""
    rng = random.Random(seed)
    kinds = random.Random(seed // 2).sample(sorted(RAY_KINDS), len(RAY_KINDS))
    with controller_on(ray_cluster) as controller:
        jobs = [
            controller.submit(workers, rng.randrange(200, 600), max_restarts=MAX_RESTARTS)
            for workers in ("3", "1", "1:2")
        ]
        for kind in kinds[NUM_FAULTS * (seed % 2) :][:NUM_FAULTS]:
            print(f"seed {seed}: {kind}")
            time.sleep(rng.uniform(0.0, 3.0))  # at any moment of whatever is happening
            RAY_KINDS[kind](controller, rng)
            bring_back(controller)
            size, num_samples = rng.choice(("1", "2", "1:4")), rng.randrange(100, 300)
            jobs.append(controller.submit(size, num_samples, max_restarts=MAX_RESTARTS))
        for job_id in jobs:
            controller.completes(job_id)
