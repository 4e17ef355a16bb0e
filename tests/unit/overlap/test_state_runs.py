"""Optimizer state that moves between plans and numbers of workers arrives bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fake_transport import FakeTransport, VirtualClock
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weft.overlap.bucket import Bucket, exchange_shape
from weft.overlap.exchange_memory import ExchangeMemory
from weft.overlap.flat import FlatMemory
from weft.overlap.layout import make_buckets, snap
from weft.overlap.state_runs import (
    StateRun,
    decode,
    encode,
    export_runs,
    full_state,
    import_runs,
    overlapping,
    runs_of_full_state,
)
from weft.overlap.update import ShardUpdate
from weft.perf.link import Link

SHAPES = [(3, 5), (70,), (), (8, 9), (33, 2)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


class Worker:
    """One worker's shards, without a process group."""

    def __init__(self, rank: int, num_workers: int, wishes: Sequence[int], make: Any) -> None:
        torch.manual_seed(0)
        self.parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        self.optimizer = make(self.parameters)
        memory = FlatMemory(self.parameters, range(len(SHAPES))[::-1], num_workers)
        ready = {number: k for k, number in enumerate(memory.order)}
        plans = make_buckets(memory.lanes, [snap(wishes, memory.lanes[0], num_workers)], num_workers, ready)
        flat = memory.buffers[0]
        exchanges = ExchangeMemory(FakeTransport(VirtualClock(), Link(0.0, 0.0), num_workers, rank))
        shapes = [exchange_shape(plan, torch.float32) for plan in plans]
        exchanges.clear((shape, flat) for shape in shapes)
        buckets = [
            Bucket(plan, flat, rank, exchanges.make(plan.index, shape, flat[plan.start : plan.stop]))
            for plan, shape in zip(plans, shapes, strict=True)
        ]
        self.updates = [ShardUpdate(bucket, self.optimizer, [0] * len(SHAPES)) for bucket in buckets]
        self.pieces = [piece for bucket in buckets for piece in bucket.own]

    def step(self, seed: int) -> None:
        for update in self.updates:
            torch.manual_seed(seed)
            row = torch.randn(update.bucket.exchange.send.shape[1])
            row[update.bucket.shard :] = 1.0
            update.bucket.exchange.reduced = row
            update.apply([{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups], {})


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}

wishes = st.lists(st.integers(1, 400), max_size=5)


def assert_same_state(found: dict[int, Any], expected: dict[int, Any]) -> None:
    assert found.keys() == expected.keys()
    for number, state in expected.items():
        assert found[number].keys() == state.keys()
        for key, value in state.items():
            assert found[number][key].shape == value.shape
            assert torch.equal(found[number][key], value)


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), wishes, wishes)
def test_state_moves_to_any_plan_and_number_of_workers(
    name: str, before: int, after: int, old: list[int], new: list[int]
) -> None:
    givers = [Worker(rank, before, old, OPTIMIZERS[name]) for rank in range(before)]
    takers = [Worker(rank, after, new, OPTIMIZERS[name]) for rank in range(after)]
    for giver in givers:
        giver.step(1)
        giver.step(2)
    runs = [run for giver in givers for run in export_runs(giver.updates)]
    expected = full_state(givers[0].parameters, runs)
    assert len(expected) == len(SHAPES)
    for taker in takers:
        import_runs(taker.updates, decode(encode(overlapping(runs, taker.pieces))))
    moved = [run for taker in takers for run in export_runs(taker.updates)]
    assert_same_state(full_state(takers[0].parameters, moved), expected)
    # and through an ordinary optimizer's state
    parameters = givers[0].parameters
    ordinary = {parameters[number]: state for number, state in expected.items()}
    for taker in takers:
        import_runs(taker.updates, runs_of_full_state(parameters, ordinary))
    loaded = [run for taker in takers for run in export_runs(taker.updates)]
    assert_same_state(full_state(takers[0].parameters, loaded), expected)


@st.composite
def state_runs(draw: st.DrawFn) -> StateRun:
    dtype = draw(st.sampled_from(DTYPES))
    scalar = draw(st.booleans())
    count = 1 if scalar else draw(st.integers(0, 9))
    values = torch.tensor(draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))).to(dtype)
    key = draw(st.text(min_size=1, max_size=5))
    return StateRun(draw(st.integers(0, 99)), key, -1, values[0]) if scalar else StateRun(3, key, count, values)


@settings(deadline=None)
@given(st.lists(state_runs(), max_size=6))
def test_state_arrives_as_it_was_sent(runs: list[StateRun]) -> None:
    arrived = decode(encode(runs))
    assert len(arrived) == len(runs)
    for found, sent in zip(arrived, runs, strict=True):
        assert (found.parameter, found.key, found.start) == (sent.parameter, sent.key, sent.start)
        assert found.values.dtype == sent.values.dtype
        assert found.values.shape == sent.values.shape
        assert torch.equal(found.values, sent.values)


def test_step_counts_of_fused_optimizers_stay_beside_the_parameters() -> None:
    """What another worker sends arrives as bytes on the host; a fused kernel that finds a step there fails."""
    (run,) = decode(encode([StateRun(0, "step", -1, torch.tensor(3.0), on_device=True)]))
    away = torch.device("meta")
    assert run.scalar(away).device == away
    state = full_state([nn.Parameter(torch.empty(4, device=away))], [run])
    assert state[0]["step"].device == away
    (run,) = decode(encode([StateRun(0, "step", -1, torch.tensor(3.0))]))
    assert full_state([nn.Parameter(torch.empty(4, device=away))], [run])[0]["step"].item() == 3.0
