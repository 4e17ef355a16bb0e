"""How long things take: schedules, convergence, fitting, bounds.  Pure; used by all layers."""
