"""``weft bench overlap``: run every scenario on the testbed and save the results.

Data flow: scenario -> (how long is the compute?) -> link rate -> workers -> row -> files.
This side never imports torch; the workers do, each in its own network namespace.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.overlap_bounds import StepShape, rate_for_ratio
from benchmarks.overlap_results import NAME, keep, open_record
from benchmarks.overlap_rows import make_row
from benchmarks.overlap_scenarios import Scenario, Timed, within
from benchmarks.record import RowRecord
from benchmarks.testbed import HostFailed, Testbed

ROOT = Path(__file__).resolve().parents[1]
START_RATE_BITS_PER_S = 1e9
SCENARIO_TIMEOUT_S = 1500.0
MEMORY_CONTENDERS = ("ddp", "weft")

# (rows done since the last call, current activity)
OnProgress = Callable[[int, str], None]
Peaks = dict[str, dict[str, int]]


def run_scenarios(
    scenarios: Sequence[Scenario],
    *,
    command: str,
    on_progress: OnProgress,
    folder: Path,
    name: str = NAME,
    minutes: float | None = None,
    with_memory: bool = True,
    fresh: bool = False,
    timeout_s: float = SCENARIO_TIMEOUT_S,
) -> RowRecord:
    """Measure the rows that this code has not measured yet; a row that fails is noted and the others follow.

    ``timeout_s``: for one command on all hosts, of which a scenario has up to four.
    """
    record = open_record(folder, command, name)
    end_s = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    left = [scenario for scenario in scenarios if fresh or record.measured(scenario.key) is None]
    on_progress(len(scenarios) - len(left), "starting")
    peaks: Peaks = {}
    # Many hosts first: a broken machine fails there, and these rows are the shortest.
    left.sort(key=_layout, reverse=True)
    while left:
        layout = num_hosts, workers_per_host = _layout(left[0])
        with Testbed(num_hosts, START_RATE_BITS_PER_S, workers_per_host=workers_per_host) as bed:
            while left and _layout(left[0]) == layout:
                scenario = within(left, end_s - time.monotonic())
                left.pop(0)
                try:
                    found = _peaks_of(scenario, record, peaks, bed, on_progress, timeout_s) if with_memory else {}
                    record.put(scenario.key, _measure(bed, scenario, found, on_progress, timeout_s))
                except HostFailed as failure:
                    record.failures.append(f"{scenario.label}: {failure}")
                    on_progress(0, f"{scenario.label} failed, continuing with the next row")
                keep(record)
                on_progress(1, scenario.label)
    return record


def _layout(scenario: Scenario) -> tuple[int, int]:
    return scenario.num_hosts, scenario.workers_per_host


def _peaks_of(
    scenario: Scenario, record: RowRecord, peaks: Peaks, bed: Testbed, on_progress: OnProgress, timeout_s: float
) -> dict[str, int]:
    """Peak memory, once per model; an interrupted run takes it from the rows it has."""
    if scenario.timed is not None:
        return {}
    if scenario.model not in peaks:
        own = (row for row in record.rows if row["model"] == scenario.model and record.measured(row["key"]) is not None)
        known = (row["peak_bytes"] for row in own if row["peak_bytes"])
        peaks[scenario.model] = next(known, {})
        for contender in () if peaks[scenario.model] else MEMORY_CONTENDERS:
            if contender in scenario.contenders:
                on_progress(0, f"{scenario.model}: memory of {contender}")
                memory = _work(bed, "overlap_memory", scenario.memory(contender), None, timeout_s)
                peaks[scenario.model][contender] = memory["peak_bytes"]
    return peaks[scenario.model]


def _measure(
    bed: Testbed, scenario: Scenario, peaks: dict[str, int], on_progress: OnProgress, timeout_s: float
) -> dict[str, Any]:
    if scenario.timed is not None:
        shape = _nominal_shape(scenario.timed)
    else:  # right before each row: the speed of a shared machine changes
        on_progress(0, f"{scenario.label}: how long is the compute?")
        shape = StepShape(**_work(bed, "overlap_worker", scenario.calibration(), None, timeout_s)["shape"])
    bed.set_rate(rate_for_ratio(shape, scenario.num_hosts, scenario.ratio))
    result = _work(bed, "overlap_worker", scenario, on_progress, timeout_s)
    return make_row(scenario, bed.rate_bits_per_s, result, peaks)


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
            on_progress(0, f"{scenario.label}: {message['progress']}")

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
