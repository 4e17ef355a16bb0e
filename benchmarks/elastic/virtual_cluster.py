"""One virtual cluster of the Philly log, on as many nodes as it needs: a long log that is crowded.

The whole log leaves most of 1,024 GPUs idle, so every policy that resizes jobs comes close to the bound.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.core.cluster import Cluster
from weft.sim.workload import Workload

VIRTUAL_CLUSTER = "2869ce"
"""422 jobs, up to 32 GPUs each, in 89 days.  The larger ones take too long for a benchmark."""
GPUS_PER_NODE = 8


def virtual_cluster(log: Workload, name: str = VIRTUAL_CLUSTER) -> tuple[Workload, Cluster]:
    """Its jobs, and the fewest full nodes that could run all of them at the requested sizes by the last submission."""
    jobs = tuple(job for job in log.jobs if job.spec.user == name)
    span_s = jobs[-1].spec.submitted_s - jobs[0].spec.submitted_s
    requested = [job.spec.requested_workers for job in jobs]
    shapes = [Cluster.uniform(num, GPUS_PER_NODE).packed_shape(num) for num in requested]
    device_s = sum(
        num * job.total_steps * job.profile.step_time(shape).step_s
        for num, job, shape in zip(requested, jobs, shapes, strict=True)
    )
    num_gpus = max(device_s / span_s, *requested)
    cluster = Cluster.uniform(math.ceil(num_gpus / GPUS_PER_NODE), GPUS_PER_NODE)
    return replace(log, name=f"{log.name}-{name}", jobs=jobs), cluster
