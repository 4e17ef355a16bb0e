"""A Ray cluster as an engine: Ray tracks nodes and starts processes, weft decides which job gets what.

Only four modules here import ray, and none of them runs in the controller's process.

Read in this order:

    cluster_order.py    one attempt, split into the parts that run on each node; how the parts' outcomes combine (pure)
    ray_engine.py       the engine, in the controller: orders, parts, what to report
    bridge_client.py    starts the bridge and talks to it
    bridge.py           the process that is a Ray driver (imports ray)
    report_queue.py     reports on a node until they are fetched
    report_relay.py     passes workers' reports on to the controller's channel
    cluster_access.py   connects to a cluster, or explains why it cannot (imports ray)
    node_names.py       stable names of nodes (pure)
    node_check.py       what is installed on a node; runs there even if weft is missing
    node_agent.py       one actor per node: starts that node's workers with the local engine (imports ray)
    node_leases.py      the lease server of a node, for jobs that share its devices
    attempt_owner.py    one actor per attempt: owns its placement group and coordinates its parts (imports ray)
    warden.py           one process per node: kills the workers when their node is cut off from the cluster
    job_folders.py      the files of jobs on a node, and when they are deleted
    node_checkpoints.py checkpoints on a node, if nodes share no folder
    checkpoint_relay.py collects them in the home, and delivers them before an attempt starts
    code_package.py     a job's folder as one file, and unpacked on a node
    deliveries.py       what an attempt's nodes receive before it starts
    output_mirror.py    copies of the workers' output, on the controller's machine
"""

from weft.engines.ray.ray_engine import RayEngine

__all__ = ["RayEngine"]
