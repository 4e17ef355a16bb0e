"""Completion times that the Pollux authors' simulator reports, to compare with ours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from weft.errors import InputError

# File name -> the policy of ours that does the same; Pollux itself also changes batch sizes, we do not.
SAME_POLICY = {"optimus": "optimus", "tiresias": "tiresias", "pollux": None}


JobTimes = Mapping[str, float]
"""Job -> completion time in seconds."""


def published_times(folder: Path) -> Mapping[str, Mapping[str, JobTimes]]:
    """Published policy -> workload -> completion time of every job."""
    return {name: _times(folder / f"{name}.json") for name in SAME_POLICY}


def means_of(times: Mapping[str, Mapping[str, JobTimes]]) -> dict[str, dict[str, float]]:
    """Published policy -> workload -> mean completion time in seconds."""
    return {
        name: {workload: sum(jobs.values()) / len(jobs) for workload, jobs in by_workload.items()}
        for name, by_workload in times.items()
    }


def _times(path: Path) -> dict[str, dict[str, float]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        times = {workload: {job: float(s) for job, s in jobs.items()} for workload, jobs in document["jcts"].items()}
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError('expected {"jcts": {WORKLOAD: {JOB: seconds}}}', file=str(path)) from None
    if not all(jobs and all(math.isfinite(s) and s > 0 for s in jobs.values()) for jobs in times.values()):
        raise InputError("expected positive completion times, and at least one for every workload", file=str(path))
    return times
