"""What loading the policies costs a controller or a command line."""

from __future__ import annotations

import subprocess
import sys


def test_policies_decide_before_the_slow_solver_library_is_loaded() -> None:
    """Loading scipy takes longer than most commands; only a repacking or a pairing needs it."""
    program = """
import sys
from weft.core.cluster import Cluster
from weft.core.job import JobSpec
from weft.core.snapshot import JobView, Snapshot
from weft.core.speed import SpeedCurve, StepTime
from weft.elastic import POLICIES, policy_named
from weft.elastic.placement import Unit, place

cluster = Cluster.uniform(1, 4)
job = JobView(JobSpec("job", 0.0, max_workers=2), SpeedCurve({1: StepTime(1.0), 2: StepTime(0.6)}), 10.0)
for name in POLICIES:
    workers = policy_named(name).decide(Snapshot(0.0, cluster, (job,))).workers["job"]
    place(cluster, [Unit(("job",), workers)], {})
print(sorted(module for module in sys.modules if module.split(".")[0] in ("scipy", "torch")))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
