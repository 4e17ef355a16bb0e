"""``weft bench overlap``: run every scenario on the testbed and keep what came out.

The way of the data: scenario -> (how long is the compute?) -> link rate -> workers -> row -> files.
This side never imports torch; the workers do, each in its own network namespace.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.overlap_bounds import StepShape, rate_for_ratio
from benchmarks.overlap_results import Results
from benchmarks.overlap_rows import make_row
from benchmarks.overlap_scenarios import MODELS, Scenario, Timed
from benchmarks.testbed import HostFailed, Testbed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
START_RATE_BITS_PER_S = 1e9
SCENARIO_TIMEOUT_S = 1500.0
MEMORY_CONTENDERS = ("ddp", "weft")

# (steps made since the last call, what is going on)
OnProgress = Callable[[int, str], None]


def run_scenarios(
    scenarios: Sequence[Scenario],
    *,
    command: str,
    on_progress: OnProgress,
    folder: Path = RESULTS,
    started: datetime | None = None,
    timeout_s: float = SCENARIO_TIMEOUT_S,
) -> Results:
    """Measure everything; a scenario that fails is noted and the rest goes on.

    ``timeout_s``: for one command on all hosts, of which a scenario has up to four.
    """
    results = Results(folder, started or datetime.now(), command)
    peaks: dict[str, dict[str, int]] = {}
    # Many hosts first: they are what a broken machine fails at, and they take the shortest.
    shapes = {(scenario.num_hosts, scenario.workers_per_host) for scenario in scenarios}
    for num_hosts, per_host in sorted(shapes, reverse=True):
        with Testbed(num_hosts, START_RATE_BITS_PER_S, workers_per_host=per_host) as bed:
            for scenario in (s for s in scenarios if (s.num_hosts, s.workers_per_host) == (num_hosts, per_host)):
                try:
                    _measure(bed, scenario, results, peaks, on_progress, timeout_s)
                except HostFailed as failure:
                    results.failures.append(f"{scenario.label}: {failure}")
                    on_progress(0, f"{scenario.label} failed, going on")
                results.rows.sort(key=_reading_order)
                results.save()
    return results


def _reading_order(row: dict[str, Any]) -> tuple[bool, int, int, int, float]:
    model = MODELS.index(row["model"]) if row["model"] in MODELS else len(MODELS)
    return row["emulated_compute"], model, row["workers_per_host"], row["hosts"], row["ratio_wanted"]


def _measure(
    bed: Testbed,
    scenario: Scenario,
    results: Results,
    peaks: dict[str, dict[str, int]],
    on_progress: OnProgress,
    timeout_s: float,
) -> None:
    if scenario.model not in peaks and scenario.timed is None:
        peaks[scenario.model] = {}
        for contender in MEMORY_CONTENDERS:
            if contender in scenario.contenders:
                on_progress(0, f"{scenario.model}: memory of {contender}")
                memory = _work(bed, "overlap_memory", scenario.memory(contender), None, timeout_s)
                peaks[scenario.model][contender] = memory["peak_bytes"]
    if scenario.timed is not None:
        shape = _nominal_shape(scenario.timed)
    else:  # right before each row: a shared machine is not equally fast for long
        on_progress(0, f"{scenario.label}: how long is the compute?")
        shape = StepShape(**_work(bed, "overlap_worker", scenario.calibration(), None, timeout_s)["shape"])
    bed.set_rate(rate_for_ratio(shape, scenario.num_hosts, scenario.ratio))
    result = _work(bed, "overlap_worker", scenario, on_progress, timeout_s)
    results.rows.append(make_row(scenario, bed.rate_bits_per_s, result, peaks.get(scenario.model, {})))


def _nominal_shape(timed: Timed) -> StepShape:
    """What the timed device is set to; there is nothing to calibrate."""
    layer_s = timed.compute_s / 3 / timed.num_layers
    equal = [(timed.num_parameters // timed.num_layers, layer_s, 2 * layer_s)] * timed.num_layers
    layers = timed.layers or equal
    first, last = layers[0], layers[-1]
    return StepShape(
        forward_s=sum(forward for _, forward, _ in layers),
        backward_s=sum(backward for _, _, backward in layers),
        update_s=0.0,
        last_forward_s=last[1],
        last_backward_s=last[2],
        gradient_bytes=timed.num_parameters * 4,
        first_layer_bytes=first[0] * 4,
    )


def _work(
    bed: Testbed, module: str, scenario: Scenario, on_progress: OnProgress | None, timeout_s: float
) -> dict[str, Any]:
    """Run one kind of worker on every host; what rank 0 reports at the end."""
    answers: list[dict[str, Any]] = []

    def listen(rank: int, line: str) -> None:
        if rank != 0 or not line.startswith("{"):
            return
        message = json.loads(line)
        if "result" in message:
            answers.append(message["result"])
        elif on_progress is not None:
            on_progress(message["steps"], f"{scenario.label}: {message['progress']}")

    bed.run(
        (sys.executable, "-m", f"benchmarks.{module}", json.dumps(scenario.as_json())),
        cwd=ROOT,
        env={"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))},
        timeout_s=timeout_s,
        on_line=listen,
    )
    if not answers:
        raise HostFailed(f"{scenario.label}: host 0 ended well but reported no result")
    return answers[-1]
