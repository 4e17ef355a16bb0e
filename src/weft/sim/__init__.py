"""The control loop in virtual time: the same reducer and policies as the controller, no devices needed.

    workload (readers, synthetic)  ->  weft.sim.replay.simulate(workload, cluster, policy, options, progress)
                                   ->  SimulationResult  ->  tables, plots, traces

``policy`` comes from ``weft.elastic.policy_named(name)``; ``options`` is a ``SimulationOptions``;
``progress`` is called with (jobs finished, total jobs).
"""
