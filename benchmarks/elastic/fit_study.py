"""How well the speed model predicts sizes it was not shown, on the public measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from weft.core.cluster import Cluster
from weft.perf.fitting import MAX_EXTRAPOLATION, SpeedSample, fit_speed
from weft.sim.readers.application_profiles import ApplicationFolder

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
# Source -> where it is, and the devices of a node there (T4 nodes of four, A100 servers of eight).
SOURCES = {"elasticflow": ("elasticflow/A100", 8), "pollux": ("pollux/profiles", 4)}


def fit_rows(data: Path) -> list[dict[str, Any]]:
    """One row per source: median and worst relative error over all sizes left out, one at a time."""
    rows = []
    for source, (folder, devices_per_node) in SOURCES.items():
        if not (data / folder).is_dir():
            continue
        cluster = Cluster.uniform(max(SIZES) // devices_per_node, devices_per_node)
        tables = list(sample_tables(ApplicationFolder(data / folder), cluster))
        errors = [error for table in tables for error in left_out_errors(table)]
        rows.append(
            {
                "source": source,
                "curves": len(tables),
                "sizes_left_out": len(errors),
                "median_error": round(statistics.median(errors), 4),
                "worst_error": round(max(errors), 4),
            }
        )
    return rows


def left_out_errors(samples: Sequence[SpeedSample]) -> Iterator[float]:
    """Relative errors when each size is predicted from the others; sizes out of reach of the rest are skipped."""
    for size in sorted({sample.workers for sample in samples}):
        rest = [sample for sample in samples if sample.workers != size]
        if rest and size <= MAX_EXTRAPOLATION * max(sample.workers for sample in rest):
            model = fit_speed(rest)
            for sample in samples:
                if sample.workers == size:
                    yield abs(model.predict_s(sample.shape) / sample.step_s - 1)


def sample_tables(applications: ApplicationFolder, cluster: Cluster) -> Iterator[list[SpeedSample]]:
    """The measured curve of every application and batch size, workers packed on as few nodes as possible."""
    for name in applications.names():
        application = applications.application(name)
        for batch_size in application.batch_sizes:
            profile = application.profile(batch_size)
            samples = []
            for size in SIZES:
                if size in profile.sizes:
                    shape = cluster.packed_shape(size)
                    time = profile.step_time(shape)
                    samples.append(SpeedSample(shape, time.step_s, time.exposed_s))
            # With fewer than three sizes, too little is left to fit once one is left out.
            if len(samples) >= 3:
                yield samples
