"""What starting a job costs, as the simulator wants to know it."""

from __future__ import annotations

from weft.client import Client

LEAST_S = 0.1


def reported_step_s(client: Client, name: str) -> float:
    """The step time that the jobs of this name reported; the slowest one's."""
    return max((row["step_s"] for row in client.job_details() if row["name"] == name), default=0.0)


def start_cost_s(took_s: float, num_steps: int, step_s: float) -> float:
    """A job's time beyond that of its steps.

    The difference between a short and a long job would be wrong on a busy machine: if the short one ran while it was
    faster, the start would cost less than nothing.
    """
    return max(LEAST_S, took_s - num_steps * step_s)
