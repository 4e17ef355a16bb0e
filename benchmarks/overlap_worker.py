"""One rank of the overlap benchmark: all contenders in this process, in turn, round after round.

Interleaving is what makes the figures comparable: a machine that grows slow for a minute does so for all.
Rank 0 prints one JSON object a line: ``progress`` while it runs, ``result`` at the end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.contenders import DDP_BUCKETS_MB, StepTimes, Trainer, make_contender, make_ddp
from benchmarks.models import Batch, TimedSize, Workload, find_workload
from benchmarks.overlap_bounds import StepShape
from benchmarks.overlap_scenarios import Effort, Scenario, scenario_from_json
from benchmarks.testbed_plan import HOST_INTERFACE
from weft.overlap.transport.receive_window import tcp_connections

NUM_BATCHES = 4
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
        started_s = time.perf_counter()
        for _ in range(num_steps):
            self.step()
            self.step_times.append(self.trainer.last)
        self.round_s.append((time.perf_counter() - started_s) / num_steps)
        self.trainer.drain()
        dist.barrier()
        self.sent_bytes.append((_sent_bytes() - sent_bytes) / (num_steps + 1))

    def summary(self) -> dict[str, Any]:
        """Medians over rounds; of several ranks the slowest counts."""
        rounds = _max_over_ranks(self.round_s)
        return {
            "step_s": median(rounds),
            "round_s": rounds,
            "wire_bytes_per_step": median(_max_over_ranks(self.sent_bytes)),
            "state_bytes": sum(t.numel() * t.element_size() for t in self.trainer.state_tensors()),
            "num_tuning_steps": self.num_tuning_steps,
            "num_connections": self.num_connections,
            **self.trainer.details(),
        }


def run(scenario: Scenario) -> dict[str, Any]:
    """Measure every contender of the scenario in this rank."""
    timed = scenario.timed
    size = TimedSize(timed.num_parameters, timed.num_layers, timed.compute_s, timed.layers) if timed else None
    workload = find_workload(scenario.model, size)
    effort = scenario.effort
    batches = workload.batches(dist.get_rank(), NUM_BATCHES)
    lanes, details = [], {}
    for name in scenario.contenders:
        _say(progress=f"warming up {name}", steps=0)
        connections = tcp_connections()
        if name == "ddp_best":
            bucket_mb = _best_ddp_bucket(workload, batches, effort)
            details["ddp_bucket_mb"] = bucket_mb
            lane = Lane(name, make_ddp(workload, bucket_mb), batches)
        else:
            lane = Lane(name, make_contender(name, workload), batches)
        lane.warm_up(effort)
        lane.num_connections = len(tcp_connections() - connections)
        lanes.append(lane)
        _say(progress=f"warmed up {name}", steps=effort.num_warmup_steps)
    for round_index in range(effort.num_rounds):
        # Another one begins each round, so that nobody always runs after the same neighbour.
        turn = round_index % len(lanes)
        for lane in lanes[turn:] + lanes[:turn]:
            num_steps = effort.steps_per_round(lane.name)
            lane.run_round(num_steps)
            _say(progress=f"round {round_index + 1} of {effort.num_rounds}, {lane.name}", steps=num_steps + 1)
    summaries = {lane.name: lane.summary() for lane in lanes}
    for lane in lanes:
        summaries[lane.name]["loss_equal_to_ddp"] = _loss_equal(lane, lanes)
    shape = _shape(lanes[0], batches[0]) if lanes[0].name == "alone" else None
    for lane in lanes:
        lane.trainer.close()
    return {"contenders": summaries, "shape": _as_dict(shape), **details}


def _best_ddp_bucket(workload: Workload, batches: list[Batch], effort: Effort) -> float:
    """The bucket size with the shortest median step in a short sweep; the same answer on every rank."""
    step_s: dict[float, float] = {}
    for bucket_mb in DDP_BUCKETS_MB:
        lane = Lane("sweep", make_ddp(workload, bucket_mb), batches)
        # DDP orders its buckets anew after its first step: two untimed ones (one in the round itself).
        lane.step()
        lane.run_round(effort.num_sweep_steps)
        step_s[bucket_mb] = max(_max_over_ranks(lane.round_s))
    return min(step_s, key=lambda bucket_mb: step_s[bucket_mb])


def _loss_equal(lane: Lane, lanes: list[Lane]) -> bool | None:
    """Whether every loss so far is DDP's, bit for bit, on every rank; None without a DDP to compare with."""
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
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [float(value) for value in tensor]


def _sent_bytes() -> int:
    """What this host has sent so far; 0 where it has no interface of the testbed."""
    return int(SENT_BYTES.read_text()) if SENT_BYTES.exists() else 0


def _as_dict(shape: StepShape | None) -> dict[str, Any] | None:
    return None if shape is None else {name: getattr(shape, name) for name in StepShape.__slots__}


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
