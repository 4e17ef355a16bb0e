"""One worker of one job of a pair, which reads from standard input what to run next.

It lives for the whole benchmark, so that torch is loaded once; each cell gets a fresh model, so that losses can be
compared from the first step on.  Answers are one JSON object per line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.crossover_jobs import JOBS, Job
from benchmarks.crossover_scenarios import JobSize
from weft.core.worker_environment import LEASE, LEASE_ROLE
from weft.crossover.hooks import install_gate
from weft.overlap.transport.network_threads import core_is_shared
from weft.process import gate
from weft.process.turns import TURNS

Message = dict[str, Any]


class Worker:
    """Carries out one order after another."""

    def __init__(self) -> None:
        self._job: Job | None = None

    def prepare(self, order: Message) -> Message:
        """A fresh model, warmed up; the device is free afterwards."""
        self._leave()
        if order["role"]:
            _share(order["role"])
        self._job = _warmed_up(order)
        return {"gradient_bytes": sum(p.numel() * p.element_size() for p in self._job.net.parameters())}

    def run(self, order: Message) -> Message:
        """Steps from a set moment on: when each ended, and its loss."""
        job = self._job
        if job is None:
            raise RuntimeError("run came before prepare")
        job.spans.clear()
        time.sleep(max(0.0, order["start_s"] - time.monotonic()))
        began_s, ends_s = time.monotonic(), []
        network_wait_s = TURNS.network_wait_s
        for _ in range(order["num_steps"]):
            job.step()
            ends_s.append(time.monotonic())
        is_shared = getattr(gate.current(), "is_shared", False)
        # A job that still runs must not wait for an unused device.
        TURNS.rest()
        answer: Message = {"began_s": began_s, "ends_s": ends_s, "losses": job.losses}
        answer["is_shared"] = is_shared
        answer["waited_s"] = (TURNS.network_wait_s - network_wait_s) / order["num_steps"]
        if order["with_spans"]:
            answer["spans"] = job.spans
        return answer

    def lone(self, order: Message) -> Message:
        """Two equal jobs, one with sharing on but no partner and one with sharing off: alternating blocks of steps.

        How long a step took in each block; whichever comes first in one pair of blocks comes second in the next.
        """
        self._leave()
        apart = _warmed_up(order)
        _share("fair")
        shared_gate = gate.current()
        shared = _warmed_up(order)
        blocks_s: dict[str, list[float]] = {"off": [], "on": []}
        began_turns_s = TURNS.turn_wait_s
        for block in range(order["num_blocks"]):
            for name in ("off", "on") if block % 2 else ("on", "off"):
                gate.install(shared_gate if name == "on" else gate.OPEN)
                blocks_s[name].append(_time_block(shared if name == "on" else apart, order["num_steps"]))
        num_shared_steps = order["num_blocks"] * order["num_steps"]
        answer: Message = {
            "blocks_s": blocks_s,
            "turn_s": (TURNS.turn_wait_s - began_turns_s) / num_shared_steps,
            "is_shared": getattr(shared_gate, "is_shared", False),
            "loss_equal": apart.losses == shared.losses,
        }
        apart.close()
        gate.install(shared_gate)
        self._job = shared
        self._leave()
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


def _share(role: str) -> None:
    lease = {LEASE: os.environ["WEFT_BENCH_LEASE"], LEASE_ROLE: role}
    install_gate({**os.environ, **lease})


def _warmed_up(order: Message) -> Job:
    job = JOBS[order["kind"]](JobSize(**order["size"]), dist.get_rank())
    for _ in range(order["num_warmup_steps"]):
        job.step()
    TURNS.rest()
    dist.barrier()
    return job


def _time_block(job: Job, num_steps: int) -> float:
    """Seconds per step, without the first, which starts with nothing in flight."""
    dist.barrier()
    job.step()
    began_s = time.monotonic()
    for _ in range(num_steps - 1):
        job.step()
    took_s = time.monotonic() - began_s
    job.settle()
    TURNS.rest()
    return took_s / (num_steps - 1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker = Worker()
    for line in sys.stdin:
        order = json.loads(line)
        handlers: dict[str, Callable[[Message], Message]] = {
            "prepare": worker.prepare,
            "run": worker.run,
            "lone": worker.lone,
        }
        answer = handlers[order["do"]](order)
        print(json.dumps(answer), flush=True)
    # The others may be gone already; there is nothing to keep.
    os._exit(0)


if __name__ == "__main__":
    main()
