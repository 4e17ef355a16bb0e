"""How long things take: collectives, step time, convergence, fitting, bounds.  Pure; used by all layers."""
