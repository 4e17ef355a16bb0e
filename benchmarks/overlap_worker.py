"""One rank of the overlap benchmark: all contenders in this process, in turn, round after round.

Interleaving is what makes the figures comparable: a machine that is slow for a minute is slow for all.
Rank 0 prints one JSON object a line: ``progress`` while it runs, ``result`` at the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.contenders import Findings, StepTimes, Trainer, WeftTrainer, make_contender
from benchmarks.models import Batch, Workload, find_workload
from benchmarks.overlap_bounds import StepShape
from benchmarks.overlap_scenarios import Effort, Scenario, scenario_from_json
from benchmarks.testbed_plan import HOST_INTERFACE
from weft.overlap.transport.receive_window import tcp_connections

NUM_BATCHES = 4
CHUNK_BYTES = 1 << 20
NUM_PINGS = 20
SENT_BYTES = Path(f"/sys/class/net/{HOST_INTERFACE}/statistics/tx_bytes")


class Lane:
    """One contender with its own clock, losses and byte counter."""

    def __init__(self, name: str, trainer: Trainer, batches: list[Batch]) -> None:
        self.name = name
        self.trainer = trainer
        self.batches = batches
        self.losses: list[float] = []
        self.step_times: list[StepTimes] = []
        self.round_s: list[float] = []
        self.sent_bytes: list[float] = []
        self.core_s: list[float] = []
        self.num_tuning_steps = 0
        self.num_connections = 0

    def step(self) -> None:
        loss = self.trainer.step(self.batches[len(self.losses) % len(self.batches)])
        self.losses.append(float(loss))

    def warm_up(self, effort: Effort) -> None:
        for _ in range(effort.num_warmup_steps):
            self.step()
        while self.num_tuning_steps < effort.num_tuning_steps and not self.trainer.is_tuned():
            self.step()
            self.num_tuning_steps += 1
        self.trainer.drain()

    def run_round(self, num_steps: int) -> None:
        """Time ``num_steps`` steps from the end of one step to the end of another.

        The untimed first step fills the pipeline, so that both ends have the same communication in flight:
        a schedule that leaves work to the next step neither gains nor loses by where the clock is read.
        """
        dist.barrier()
        sent_bytes = _sent_bytes()
        self.step()
        started_s, core_s = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            self.step()
            self.step_times.append(self.trainer.last)
        self.round_s.append((time.perf_counter() - started_s) / num_steps)
        self.core_s.append((time.process_time() - core_s) / num_steps)
        self.trainer.drain()
        dist.barrier()
        self.sent_bytes.append((_sent_bytes() - sent_bytes) / (num_steps + 1))

    def summary(self) -> dict[str, Any]:
        """Medians over rounds; of several ranks the slowest counts."""
        rounds = _max_over_ranks(self.round_s)
        return {
            "step_s": median(rounds),
            "round_s": rounds,
            "core_s_per_step": median(_over_ranks(self.core_s, dist.ReduceOp.SUM)),
            "wire_bytes_per_step": median(_max_over_ranks(self.sent_bytes)),
            "state_bytes": sum(t.numel() * t.element_size() for t in self.trainer.state_tensors()),
            "num_tuning_steps": self.num_tuning_steps,
            "is_tuned": self.trainer.is_tuned(),
            "num_connections": self.num_connections,
            **self.trainer.details(),
        }


def run(scenario: Scenario) -> dict[str, Any]:
    """Measure every contender of the scenario in this rank."""
    timed = scenario.timed
    workload = find_workload(scenario.model, timed)
    effort = scenario.effort
    batches = workload.batches(dist.get_rank(), NUM_BATCHES)
    findings = Findings(bucket_scale=timed.bucket_scale if timed else 1.0)
    made: dict[str, Lane] = {}
    dist.barrier()  # everybody is connected
    # The fewest of any worker: rank 0 also serves the process group's store.
    (group_connections,) = _over_ranks([len(tcp_connections())], dist.ReduceOp.MIN)
    # Contenders that use another's plan come last.
    for name in sorted(scenario.contenders, key=lambda name: name == "ddp_plan"):
        _say(progress=f"warming up {name}")
        if name == "ddp_best":
            choices = [Findings(ddp_bucket_mb=size_mb) for size_mb in effort.ddp_sweep_mb]
            findings.ddp_bucket_mb = _fastest(name, choices, workload, batches, effort).ddp_bucket_mb
        if name == "dear":
            choices = [Findings(dear_bucket_mb=size_mb) for size_mb in effort.dear_sweep_mb]
            findings.dear_bucket_mb = _fastest(name, choices, workload, batches, effort).dear_bucket_mb
        connections = tcp_connections()
        made[name] = lane = Lane(name, make_contender(name, workload, findings), batches)
        lane.warm_up(effort)
        lane.num_connections = len(tcp_connections() - connections)
        if name == "weft" and isinstance(lane.trainer, WeftTrainer):
            findings.weft_buckets = lane.trainer.bucket_bytes()
    lanes = [made[name] for name in scenario.contenders]
    network_s = _rounds(lanes, effort)
    summaries = {lane.name: lane.summary() for lane in lanes}
    for lane in lanes:
        summaries[lane.name]["loss_equal_to_ddp"] = _loss_equal(lane, lanes)
    shape = None
    if lanes[0].name == "alone":
        shape = _shape(lanes[0], batches[0]).scaled_to(summaries["alone"]["step_s"])
    for lane in lanes:
        lane.trainer.close()
    return {
        "contenders": summaries,
        "shape": None if shape is None else asdict(shape),
        "network_s": network_s,
        "latency_s": _latency_s(),
        "group_connections": round(group_connections),
        "ddp_bucket_mb": findings.ddp_bucket_mb,
        "dear_bucket_mb": findings.dear_bucket_mb,
    }


def _rounds(lanes: list[Lane], effort: Effort) -> list[float]:
    """As many rounds as fit; how long the gradients took to travel with nothing else running, once a round."""
    num_bytes = sum(p.numel() * p.element_size() for p in lanes[0].trainer.module.parameters() if p.requires_grad)
    network_s: list[float] = []
    num_rounds, number = effort.min_rounds, 0
    while number < num_rounds:
        began_s = time.perf_counter()
        # Another one begins each round, and every second round goes backward: nobody always runs after the same
        # neighbor, and a machine that grows slower at a steady pace does so for all alike.
        turn = number % len(lanes)
        order = lanes[turn:] + lanes[:turn]
        for lane in order if number % 2 == 0 else reversed(order):
            lane.run_round(effort.steps_per_round(lane.name))
            _say(progress=f"round {number + 1} of {num_rounds}, {lane.name}")
        network_s.append(_travel_s(num_bytes))
        if number == 0:
            (round_s,) = _max_over_ranks([time.perf_counter() - began_s])
            num_rounds = effort.rounds_in_budget(round_s)
        number += 1
    return _max_over_ranks(network_s)


def _travel_s(num_bytes: int) -> float:
    """Reduce-scatter and all-gather as fast as gloo moves them: twice an all-gather, in chunks, all at once."""
    num_workers = dist.get_world_size()
    gathered = torch.zeros(max(num_bytes // 4 // num_workers, 1) * num_workers)
    chunks = torch.split(gathered, max(CHUNK_BYTES // 4 // num_workers, 1) * num_workers)
    own = [torch.zeros(chunk.numel() // num_workers) for chunk in chunks]
    dist.barrier()
    began_s = time.perf_counter()
    works = [dist.all_gather_into_tensor(chunk, mine, async_op=True) for chunk, mine in zip(chunks, own, strict=True)]
    for work in works:
        work.wait()
    return 2 * (time.perf_counter() - began_s)


def _latency_s() -> float:
    """From one worker to the next: a number that goes twice around a ring of all of them, with nothing else running."""
    times_s: list[float] = []
    for _ in range(NUM_PINGS):
        began_s = time.perf_counter()
        dist.all_reduce(torch.zeros(1))
        times_s.append(time.perf_counter() - began_s)
    num_hops = 2 * max(1, dist.get_world_size() - 1)
    return _max_over_ranks([median(times_s) / num_hops])[0]


def _fastest(
    name: str, choices: Sequence[Findings], workload: Workload, batches: list[Batch], effort: Effort
) -> Findings:
    """With which of the choices a contender has the shortest step, in a short sweep; the same answer on every rank."""
    step_s: list[float] = []
    if len(choices) == 1:
        return choices[0]
    for findings in choices:
        lane = Lane("sweep", make_contender(name, workload, findings), batches)
        # DDP orders its buckets anew after its first step: two untimed ones (one in the round itself).
        lane.step()
        lane.run_round(effort.num_sweep_steps)
        step_s.append(max(_max_over_ranks(lane.round_s)))
        lane.trainer.close()
    return choices[step_s.index(min(step_s))]


def _loss_equal(lane: Lane, lanes: list[Lane]) -> bool | None:
    """Whether every loss so far equals DDP's bit for bit on every rank; None without DDP."""
    ddp = next((other for other in lanes if other.name == "ddp"), None)
    if ddp is None:
        return None
    num_common = min(len(lane.losses), len(ddp.losses))
    is_different = lane.losses[:num_common] != ddp.losses[:num_common]
    return _max_over_ranks([float(is_different)]) == [0.0]


def _shape(alone: Lane, batch: Batch) -> StepShape:
    """How one step without communication divides, the slowest rank counting for each phase."""
    probe = _LayerProbe(alone.trainer.module)
    alone.trainer.step(batch)
    forward_s, backward_s, update_s, last_forward_s, last_backward_s = _max_over_ranks(
        [
            median(times.forward_s for times in alone.step_times),
            median(times.backward_s for times in alone.step_times),
            median(times.update_s for times in alone.step_times),
            probe.last_forward_s(alone.trainer.last),
            probe.last_backward_s(alone.trainer.last),
        ]
    )
    parameters = [p for p in alone.trainer.module.parameters() if p.requires_grad]
    return StepShape(
        forward_s,
        backward_s,
        update_s,
        last_forward_s,
        last_backward_s,
        gradient_bytes=sum(p.numel() * p.element_size() for p in parameters),
        first_layer_bytes=probe.first_layer_bytes,
    )


class _LayerProbe:
    """Finds the first and the last layer of a model and when they run, with hooks, in one step."""

    def __init__(self, model: nn.Module) -> None:
        self._entered_s: list[tuple[nn.Module, float]] = []
        self._first_gradient_s: float | None = None
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._entered)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient)  # type: ignore[no-untyped-call]
        self._started_s = time.perf_counter()

    def _entered(self, module: nn.Module, args: object) -> None:
        self._entered_s.append((module, time.perf_counter()))

    def _gradient(self, parameter: Tensor) -> None:
        if self._first_gradient_s is None:
            self._first_gradient_s = time.perf_counter()

    @property
    def first_layer_bytes(self) -> int:
        first = self._entered_s[0][0]
        return sum(p.numel() * p.element_size() for p in first.parameters(recurse=False))

    def last_forward_s(self, times: StepTimes) -> float:
        return max(0.0, self._started_s + times.forward_s - self._entered_s[-1][1])

    def last_backward_s(self, times: StepTimes) -> float:
        ready_s = self._started_s if self._first_gradient_s is None else self._first_gradient_s
        return max(0.0, ready_s - self._started_s - times.forward_s)


def _max_over_ranks(values: list[float]) -> list[float]:
    return _over_ranks(values, dist.ReduceOp.MAX)


def _over_ranks(values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=operation)
    return [float(value) for value in tensor]


def _sent_bytes() -> int:
    """What this host has sent so far; 0 where it has no interface of the testbed."""
    return int(SENT_BYTES.read_text()) if SENT_BYTES.exists() else 0


def _say(**words: Any) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(words), flush=True)


def main(argument: str) -> None:
    scenario = scenario_from_json(json.loads(argument))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        result = run(scenario)
        dist.barrier()
        _say(result=result)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
