"""One rank of the memory measurement: a single contender in a process of its own.

Peak resident memory is a property of a process, so contenders that share one cannot be told apart by it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.contenders import Findings, make_contender
from benchmarks.models import find_workload
from benchmarks.overlap_scenarios import scenario_from_json
from benchmarks.overlap_worker import NUM_BATCHES, Lane


def resident_bytes(field: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (peak) of this process."""
    return _field_bytes("/proc/self/status", field)


def proportional_bytes() -> int:
    """Memory of this process; what it shares with others is divided among them."""
    return _field_bytes("/proc/self/smaps_rollup", "Pss")


def _field_bytes(file: str, field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path(file).read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{file} has no field {field}: memory can only be measured on Linux")
    return int(match[1]) * 1024


def main(argument: str) -> None:
    scenario = scenario_from_json(json.loads(argument))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        workload = find_workload(scenario.model, scenario.timed)
        batches = workload.batches(dist.get_rank(), NUM_BATCHES)
        dist.barrier()
        before_bytes, before_share = resident_bytes("VmRSS"), proportional_bytes()
        lane = Lane(scenario.contenders[0], make_contender(scenario.contenders[0], workload, Findings()), batches)
        lane.warm_up(scenario.effort)
        peak_bytes = resident_bytes("VmHWM") - before_bytes
        settled_bytes = proportional_bytes() - before_share
        dist.barrier()
        lane.trainer.close()
        if dist.get_rank() == 0:
            print(json.dumps({"result": {"peak_bytes": peak_bytes, "settled_bytes": settled_bytes}}), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
