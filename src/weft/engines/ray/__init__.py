"""A Ray cluster as an engine: Ray tracks nodes and starts processes, weft decides which job gets what.

Only four modules here import ray, and none of them runs in the controller's process.

Read in this order:

    cluster_order.py    one attempt, split into the parts that run on each node; how the parts' ends add up (pure)
    ray_engine.py       the engine, in the controller: orders, parts, what to tell
    bridge_client.py    starts the bridge and talks to it
    bridge.py           the process that is a Ray driver (imports ray)
    report_relay.py     passes workers' reports on to the controller's channel
    cluster_access.py   how it gets into a cluster, and what it says when it cannot (imports ray)
    node_names.py       names that nodes keep (pure)
    node_check.py       what is installed on a node; runs there even if weft is missing
    node_agent.py       one actor per node: starts that node's workers with the local engine (imports ray)
    node_leases.py      the lease server of a node, for jobs that share its devices
    attempt_owner.py    one actor per attempt: owns its placement group and brings its parts together (imports ray)
    warden.py           one process per node: ends the workers when their node is cut off from the cluster
    job_folders.py      what a node keeps of jobs, and when it is deleted
    node_checkpoints.py checkpoints on a node, where nodes share no folder
    checkpoint_relay.py collects them in the home, and delivers them before an attempt starts
    code_package.py     a job's folder as one file
    node_code.py        jobs' folders on a node, as they were sent there
    deliveries.py       what an attempt's nodes get before it starts
    output_mirror.py    copies of the workers' output, on the controller's machine
"""

from weft.engines.ray.ray_engine import RayEngine

__all__ = ["RayEngine"]
