"""Completion times that the Pollux authors' simulator reports, to hold ours against."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from weft.errors import InputError

# File name -> the policy of ours that does the same; Pollux itself also changes batch sizes, we do not.
SAME_POLICY = {"optimus": "optimus", "tiresias": "tiresias", "pollux": None}


def published_means(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """Published policy -> workload -> mean completion time in seconds."""
    return {name: _means(folder / f"{name}.json") for name in SAME_POLICY}


def _means(path: Path) -> dict[str, float]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        jobs_by_workload = dict(document["jcts"])
        means = {name: sum(jobs.values()) / len(jobs) for name, jobs in jobs_by_workload.items()}
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        raise InputError('expected {"jcts": {WORKLOAD: {JOB: seconds}}}', file=str(path)) from None
    if not all(math.isfinite(mean) and mean > 0 for mean in means.values()):
        raise InputError("a mean completion time is not a positive number", file=str(path))
    return means
