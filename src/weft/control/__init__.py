"""The life of jobs: events in, actions out, no I/O.  The controller and the simulator run the same code."""
