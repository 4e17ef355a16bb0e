"""The elastic decision loop on virtual time: the same policy objects, no devices needed.

    workload (readers, synthetic)  ->  weft.sim.replay.simulate(workload, cluster, policy, options, progress)
                                   ->  SimulationResult  ->  tables, plots, traces

``policy`` comes from ``weft.elastic.policy_named(name)``; ``options`` is a ``SimulationOptions``;
``progress`` is called now and then with (jobs finished, jobs in all).
"""
