"""Measured step times of one job, by the shape of its devices, and how much of each was waiting for the network."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any

from weft.core.cluster import Shape
from weft.core.speed import StepTime

MAX_SAMPLES = 31
Samples = dict[Shape, deque[tuple[float, float]]]
"""Step time and exposed time of the last :data:`MAX_SAMPLES` steps, by workers per node."""


def medians(samples: Samples) -> dict[Shape, StepTime]:
    return {shape: median_step(kept) for shape, kept in samples.items()}


def median_step(kept: Iterable[tuple[float, float]]) -> StepTime:
    step_times, exposed_times = zip(*kept, strict=True)
    step_s = statistics.median(step_times)
    return StepTime(step_s, min(statistics.median(exposed_times), step_s))


def samples_document(samples: Samples) -> list[Any]:
    """Plain data for a JSON file."""
    return [[list(shape), [list(one) for one in kept]] for shape, kept in samples.items()]


def restored_samples(document: Iterable[Any]) -> Samples:
    """What :func:`samples_document` wrote; raises ``ValueError`` and the like on an invalid document."""
    return {
        tuple(map(int, shape)): deque(((float(a), float(b)) for a, b in kept), maxlen=MAX_SAMPLES)
        for shape, kept in document
    }
