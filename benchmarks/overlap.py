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
from benchmarks.overlap_scenarios import MEMORY_CONTENDERS, Scenario, Timed, fitting, within
from benchmarks.record import RowRecord
from benchmarks.testbed import HostFailed, Testbed

ROOT = Path(__file__).resolve().parents[1]
START_RATE_BITS_PER_S = 1e9
SCENARIO_TIMEOUT_S = 1500.0
LATE = 0.03

# (rows done since the last call, current activity)
OnProgress = Callable[[int, str], None]


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
    # Estimates are rough: a row that would end a little late is not left out for it.
    late_s = end_s + LATE * 60 * (minutes or 0.0)
    while fit := fitting(left, late_s - time.monotonic()):
        scenario = within(fit, end_s - time.monotonic())
        left.remove(fit[0])
        with Testbed(scenario.num_hosts, START_RATE_BITS_PER_S, workers_per_host=scenario.workers_per_host) as bed:
            try:
                record.put(scenario.key, _measure(bed, scenario, on_progress, timeout_s))
            except HostFailed as failure:
                record.failures.append(f"{scenario.label}: {failure}")
                on_progress(0, f"{scenario.label} failed, continuing with the next row")
        keep(record)
        on_progress(1, scenario.label)
    if with_memory:
        _add_memory(scenarios, record, end_s, on_progress, timeout_s)
    return record


def _add_memory(
    scenarios: Sequence[Scenario], record: RowRecord, end_s: float, on_progress: OnProgress, timeout_s: float
) -> None:
    """Memory of the other rows, once per model and layout; last, and only as long as there is time."""
    for scenario in {one.layout: one for one in scenarios if one.shows_memory}.values():
        keys = [one.key for one in scenarios if one.layout == scenario.layout]
        rows = [row for row in record.rows if row["key"] in keys and record.measured(row["key"]) is not None]
        is_late = time.monotonic() + scenario.memory_s > end_s
        if not rows or is_late or any(row["peak_bytes"] for row in rows):
            continue
        try:
            workers = scenario.workers_per_host
            with Testbed(scenario.num_hosts, START_RATE_BITS_PER_S, workers_per_host=workers) as bed:
                found: dict[str, dict[str, int]] = _memory(bed, scenario, on_progress, timeout_s)
        except HostFailed as failure:
            record.failures.append(f"{scenario.label}, memory: {failure}")
            found = {}
        for row in rows:
            row |= found
        keep(record)


def _memory(bed: Testbed, scenario: Scenario, on_progress: OnProgress, timeout_s: float) -> dict[str, dict[str, int]]:
    """Bytes of one worker, by contender, each in processes of its own."""
    found: dict[str, dict[str, int]] = {"peak_bytes": {}, "settled_bytes": {}}
    for contender in MEMORY_CONTENDERS:
        on_progress(0, f"{scenario.label}: memory of {contender}")
        memory = _work(bed, "overlap_memory", scenario.memory(contender), None, timeout_s)
        for field, of_contender in found.items():
            of_contender[contender] = memory[field]
    return found


def _measure(bed: Testbed, scenario: Scenario, on_progress: OnProgress, timeout_s: float) -> dict[str, Any]:
    if scenario.timed is not None:
        shape = _nominal_shape(scenario.timed)
    else:  # right before each row: the speed of a shared machine changes
        on_progress(0, f"{scenario.label}: measuring compute")
        shape = StepShape(**_work(bed, "overlap_worker", scenario.calibration(), None, timeout_s)["shape"])
    bed.set_rate(rate_for_ratio(shape, scenario.num_hosts, scenario.ratio))
    result = _work(bed, "overlap_worker", scenario, on_progress, timeout_s)
    row = make_row(scenario, bed.rate_bits_per_s, result)
    return row | _memory(bed, scenario, on_progress, timeout_s) if scenario.needs_memory else row


def _nominal_shape(timed: Timed) -> StepShape:
    """What the timed device is set to; there is nothing to calibrate."""
    layers = timed.each_layer()
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
        raise HostFailed(f"{scenario.label}: host 0 finished without an error but reported no result")
    return answers[-1]
