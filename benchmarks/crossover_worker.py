"""One worker of one job of a pair, told by lines on its standard input what to run next.

It stays for the whole benchmark, so that torch is loaded once; each cell gets a fresh model, so that losses can be
compared from the first step on.  Answers are one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.crossover_jobs import JOBS, Job, describe
from benchmarks.crossover_scenarios import JobSize
from weft.core import gate
from weft.core.turns import TURNS
from weft.core.worker_environment import LEASE, LEASE_ROLE
from weft.crossover.hooks import install_gate
from weft.overlap.transport.network_threads import core_is_shared

Message = dict[str, Any]


class Worker:
    """Obeys one order after the other."""

    def __init__(self) -> None:
        self._job: Job | None = None

    def prepare(self, order: Message) -> Message:
        """A fresh model, warmed up; the device is free afterwards."""
        self._leave()
        if order["role"]:
            lease = {LEASE: os.environ["WEFT_BENCH_LEASE"], LEASE_ROLE: order["role"]}
            install_gate({**os.environ, **lease})
        job = JOBS[order["kind"]](JobSize(**order["size"]), dist.get_rank())
        for _ in range(order["num_warmup_steps"]):
            job.step()
        TURNS.rest()
        dist.barrier()
        self._job = job
        return describe(job)

    def run(self, order: Message) -> Message:
        """Steps from a set moment on: when each ended, and its loss."""
        job = self._job
        if job is None:
            raise RuntimeError("run came before prepare")
        job.spans.clear()
        time.sleep(max(0.0, order["start_s"] - time.monotonic()))
        began_s, ends_s = time.monotonic(), []
        turn_wait_s, network_wait_s = TURNS.turn_wait_s, TURNS.network_wait_s
        for _ in range(order["num_steps"]):
            job.step()
            ends_s.append(time.monotonic())
        is_shared = getattr(gate.current(), "is_shared", False)
        # Whoever is still at it must not wait for a device nobody uses.
        TURNS.rest()
        answer: Message = {"began_s": began_s, "ends_s": ends_s, "losses": job.losses}
        answer["is_shared"] = is_shared
        answer["turn_s"] = (TURNS.turn_wait_s - turn_wait_s) / order["num_steps"]
        answer["waited_s"] = (TURNS.network_wait_s - network_wait_s) / order["num_steps"]
        if order["with_spans"]:
            answer["spans"] = job.spans
        return answer

    def _leave(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None
        TURNS.rest()
        core_is_shared(False)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 0)  # sharing has lowered it; the testbed needs root
        shared = gate.current()
        gate.install(gate.OPEN)
        close = getattr(shared, "close", None)
        if close is not None:
            close()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker = Worker()
    for line in sys.stdin:
        order = json.loads(line)
        answer = worker.prepare(order) if order["do"] == "prepare" else worker.run(order)
        print(json.dumps(answer), flush=True)
    # The others may be gone already; there is nothing to keep.
    os._exit(0)


if __name__ == "__main__":
    main()
