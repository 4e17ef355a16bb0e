"""The job life cycle: events in, actions out, no I/O.  The controller and the simulator run the same code."""
