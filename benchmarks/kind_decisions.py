"""How far decisions across device kinds are from optimal, and what they cost: random queues and an exact solver.

    python -m benchmarks.kind_decisions [--instances 8]

Prints one line per cluster: the gap to the solution of scipy's integer solver (HiGHS), and CPU time per decision.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from weft.elastic.kind_knapsack import KindProblem, best_options

CASES = ((10, (8, 4)), (30, (16, 16)), (60, (64, 32)), (150, (128, 64, 32)), (300, (256, 128, 64)))
"""Jobs, and devices by kind."""
SIZES = (1, 2, 4, 8, 16, 32)


def random_problem(seed: int, num_jobs: int, capacity: tuple[int, ...]) -> KindProblem:
    """Jobs of very different worth that scale differently, on kinds of different speeds."""
    draw = np.random.default_rng(seed)
    kinds = np.append(-1, np.repeat(np.arange(len(capacity)), len(SIZES)))
    sizes = np.tile(np.append(0, np.tile(SIZES, len(capacity))), (num_jobs, 1))
    speed = np.append(0.0, np.repeat(draw.uniform(1.0, 3.0, len(capacity)), len(SIZES)))
    scaling = sizes ** draw.uniform(0.3, 1.0, (num_jobs, 1)) * draw.uniform(0.9, 1.1, sizes.shape)
    own = np.append(
        np.ones((num_jobs, 1)), np.repeat(draw.uniform(0.7, 1.4, (num_jobs, len(capacity))), len(SIZES), 1), 1
    )
    return KindProblem(
        draw.lognormal(0.0, 1.0, (num_jobs, 1)) * speed * own * scaling, sizes, kinds, np.array(capacity)
    )


def exact_utility(problem: KindProblem) -> float:
    """By the integer solver, to a relative gap of 1e-6."""
    num_jobs, width = problem.utility.shape
    limits = lil_matrix((num_jobs + len(problem.capacity), num_jobs * width))
    for row in range(num_jobs):
        limits[row, row * width : (row + 1) * width] = 1
        for column in range(1, width):
            limits[num_jobs + problem.kinds[column], row * width + column] = problem.sizes[row, column]
    most = np.append(np.ones(num_jobs), problem.capacity)
    least = np.append(np.ones(num_jobs), np.zeros(len(problem.capacity)))
    found = milp(
        -problem.utility.ravel(),
        constraints=LinearConstraint(limits.tocsr(), least, most),
        integrality=np.ones(num_jobs * width),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-6, "time_limit": 120},
    )
    return float(-found.fun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=8)
    num_instances = parser.parse_args().instances
    for num_jobs, capacity in CASES:
        gaps, times_s = [], []
        for seed in range(num_instances):
            problem = random_problem(seed, num_jobs, capacity)
            began = time.process_time()
            found = best_options(problem, np.zeros(num_jobs, dtype=np.int64))
            times_s.append(time.process_time() - began)
            gaps.append(max(1.0 - found.utility / exact_utility(problem), 0.0))
        print(
            f"{num_jobs:4} jobs on {'+'.join(map(str, capacity)):>12} devices: gap mean {np.mean(gaps):.2%}, "
            f"largest {max(gaps):.2%}; {1e3 * np.median(times_s):.1f} ms of CPU time",
            flush=True,
        )


if __name__ == "__main__":
    main()
