"""Layer 1: a job's communication under its own backward and next forward."""
