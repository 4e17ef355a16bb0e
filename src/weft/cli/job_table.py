"""Jobs as rows of text, for ``status``, ``top`` and ``nodes``."""

from __future__ import annotations

from collections.abc import Sequence

from weft.cli.render import duration, plain, print_columns
from weft.core.status_rows import JobRow

HEADINGS = ("ID", "NAME", "STATE", "WORKERS", "STEP", "RESTARTS", "TIME", "REASON")
STYLES = {"RUNNING": "green", "STOPPING": "yellow", "FAILED": "red", "CANCELLED": "dim", "COMPLETED": "dim"}
MAX_NAME = 24


def print_jobs(jobs: Sequence[JobRow], now_s: float) -> None:
    if not jobs:
        print("no jobs: submit one with `weft submit -- python train.py`")
        return
    print_columns([cells(job, now_s) for job in jobs], HEADINGS, [STYLES.get(job["state"], "") for job in jobs])


def cells(job: JobRow, now_s: float) -> tuple[str, ...]:
    """One job under :data:`HEADINGS`."""
    return (
        job["id"],
        shortened(plain(job["name"]), MAX_NAME),
        job["state"],
        workers(job),
        steps(job),
        str(job["restarts"]),
        duration(lasted_s(job, now_s)),
        plain(job["reason"]),
    )


def workers(job: JobRow) -> str:
    """How many it has, and how many it may have: ``2 of 1-4``."""
    low, high = job["min_workers"], job["max_workers"]
    return f"{job['workers']} of {low}" if low == high else f"{job['workers']} of {low}-{high}"


def steps(job: JobRow) -> str:
    if job["total_steps"]:
        return f"{job['step']}/{job['total_steps']}"
    return str(job["step"]) if job["step"] else "-"


def lasted_s(job: JobRow, now_s: float) -> float:
    """From submission to the end, or until now."""
    end_s = now_s if job["finished_s"] is None else job["finished_s"]
    return max(end_s - job["submitted_s"], 0.0)


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
