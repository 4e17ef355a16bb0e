"""Every worker has rank 0's buffers, as with DDP, no matter how the model is called or how they change."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weft
from gates import NotedGate, behind
from training import Parameters, adamw, assert_differ, assert_same, batch_generator, made, replicated_sgd, sgd
from weft.errors import OverlapError
from workers import gathered, on_workers


class Parts(nn.Module):
    """Its loss calls the parts, never the whole model, and depends on the running averages."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh())
        self.head = nn.Linear(12, 2)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("mask", torch.ones(12, dtype=torch.bool))
        self.register_buffer("nothing", torch.zeros(0, 3))

    def training_step(self, step: int) -> torch.Tensor:
        x = self.encoder(torch.randn(4, 6, generator=batch_generator(step)))
        with torch.no_grad():
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            self.num_seen += int(x[0, 0] > 0)
            self.mask = x[0] > -0.2
            if hasattr(self, "late"):
                self.late += x.mean()
        return self.head((x - self.mean) * self.mask).square().mean() + 0.01 * self.num_seen * x.mean()


class Whole(nn.Module):
    """DDP requires its own forward to be called."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, step: int) -> torch.Tensor:
        return self.parts.training_step(step)


def buffers_of(model: nn.Module) -> Parameters:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


class Pair:
    """The same model under DDP and under weft, called by its parts."""

    def __init__(self, make: Callable[[], Any] = Parts, optimizer: Any = adamw, **options: Any) -> None:
        options.setdefault("tune", False)
        self.plain, self.model = made(make), made(make)
        self.ddp = DistributedDataParallel(Whole(self.plain), find_unused_parameters=True)
        self.expected, self.optimizer = optimizer(self.plain), optimizer(self.model)
        self.handle = weft.overlap(self.model, self.optimizer, **options)

    def step(self, step: int, accumulate: int = 1, skip: bool = False) -> None:
        for part in range(accumulate):
            self.ddp(step * accumulate + part).backward()
            self.model.training_step(step * accumulate + part).backward()
        if not skip:
            self.expected.step()
            self.optimizer.step()
        self.expected.zero_grad()
        self.optimizer.zero_grad()

    def assert_same(self) -> None:
        assert_same(buffers_of(self.model), buffers_of(self.plain))
        assert_same(dict(self.model.state_dict()), dict(self.plain.state_dict()))


@pytest.mark.parametrize("optimizer", [adamw, replicated_sgd])
@on_workers(2)
def test_running_averages_are_shared_when_only_parts_of_the_model_are_called(optimizer: Any) -> None:
    pair = Pair(optimizer=optimizer)
    for step in range(6):
        pair.step(step)
        pair.assert_same()
    assert_differ(*gathered(buffers_of(pair.model)))  # after a step each worker has its own, as with DDP


@on_workers(2)
def test_buffers_are_shared_before_each_forward_of_an_accumulation_and_after_a_skipped_step() -> None:
    pair = Pair(optimizer=sgd)
    for step in range(6):
        pair.step(step, accumulate=2 if step % 2 else 1, skip=step == 3)
    # Whole sums of two rounds differ in rounding from DDP's; what buffers do does not depend on that here.
    for name, value in buffers_of(pair.model).items():
        torch.testing.assert_close(value, buffers_of(pair.plain)[name])


@on_workers(2)
def test_evaluating_a_part_sees_rank_0s_averages() -> None:
    pair = Pair()
    for step in range(3):
        pair.step(step)
    own = gathered(buffers_of(pair.model))
    with torch.no_grad():
        pair.model.eval().encoder(torch.zeros(2, 6))
    assert_same(buffers_of(pair.model), own[0])


@on_workers(2)
def test_memory_does_not_grow_over_300_steps_without_a_forward_of_the_whole_model() -> None:
    def num_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    pair = Pair(optimizer=sgd)
    for step in range(20):
        pair.step(step)
    before = num_tensors()
    for step in range(20, 320):
        pair.model.training_step(step).backward()
        pair.optimizer.step()
        pair.optimizer.zero_grad()
    assert num_tensors() <= before


@on_workers(2)
def test_a_model_called_by_its_parts_is_timed_and_tuned() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"first": nn.Linear(256, 256), "second": nn.Linear(256, 256)})
    optimizer = adamw(model)
    handle = weft.overlap(model, optimizer)
    for _ in range(70):
        model["second"](model["first"](torch.randn(64, 256))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    report = handle.report()
    assert report.tuned
    assert 0 < report.forward_s < report.step_s
    assert 0 < report.backward_s < report.step_s
    for step in list(handle.schedule.clock.steps)[1:]:
        assert step.begin_s <= step.forward_begin_s < step.forward_end_s < step.backward_end_s
    assert not handle.schedule.round.is_armed
    model["first"](torch.randn(64, 256))
    assert handle.schedule.round.is_armed  # the others may send early, as when the whole model is called


@on_workers(2)
def test_values_loaded_or_reset_between_step_and_forward_are_kept() -> None:
    pair = Pair()
    pair.step(0)
    saved = {name: torch.full_like(value, 1) for name, value in pair.model.state_dict().items()}
    for model in (pair.plain, pair.model):
        model.load_state_dict(saved)
    pair.step(1)
    pair.assert_same()
    for model in (pair.plain, pair.model):
        model.encoder[1].reset_running_stats()
    pair.step(2)
    pair.assert_same()


def grow(model: Any, size: int) -> None:
    model.mean = torch.zeros((1,) * size + (12,))


def other_dtype(model: Any, size: int) -> None:
    model.num_seen = model.num_seen.double()


def added(model: Any, size: int) -> None:
    model.register_buffer("late", torch.zeros(3))


def removed(model: Any, size: int) -> None:
    if "nothing" in model._buffers:
        del model.nothing


CHANGES = {change.__name__: change for change in (grow, other_dtype, added, removed)}


@pytest.mark.parametrize("optimizer", [adamw, replicated_sgd])
@pytest.mark.parametrize("change", sorted(CHANGES))
@on_workers(2)
def test_buffers_that_change_on_every_worker_are_broadcast_with_current_values(change: str, optimizer: Any) -> None:
    pair = Pair(optimizer=optimizer)
    for step in range(5):
        if step in (1, 3):
            for model in (pair.plain, pair.model):
                CHANGES[change](model, step)
        pair.step(step)
        pair.assert_same()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("change", sorted(CHANGES))
@on_workers(2)
def test_buffers_that_change_on_one_worker_are_an_error_on_all(change: str, rank: int) -> None:
    model = made(Parts)
    optimizer = adamw(model)
    weft.overlap(model, optimizer, tune=False)
    for step in range(3):
        if step == 1 and dist.get_rank() == rank:
            CHANGES[change](model, 2)
        model.training_step(step).backward()
        wrong = pytest.raises(OverlapError, match="worker 1 has") if step else contextlib.nullcontext()
        with wrong:
            optimizer.step()
        optimizer.zero_grad()


@on_workers(2)
def test_a_worker_that_has_lost_its_only_buffer_is_an_error_on_all() -> None:
    model = made(lambda: nn.Linear(6, 2))
    model.register_buffer("scale", torch.ones(()))
    optimizer = sgd(model)
    weft.overlap(model, optimizer)
    if dist.get_rank() == 1:
        del model.scale
    model(torch.ones(3, 6)).sum().backward()
    with pytest.raises(OverlapError, match="different models"):
        optimizer.step()


@pytest.mark.parametrize("optimizer", [adamw, replicated_sgd])
@on_workers(2)
def test_submodules_take_the_device_before_they_compute_when_another_job_shares_it(optimizer: Any) -> None:
    model = made(lambda: nn.ModuleDict({"first": nn.Linear(7, 9), "second": nn.Linear(9, 3)}))
    step = optimizer(model)
    handle = weft.overlap(model, step, tune=False)
    noted = NotedGate(contended=True)
    with behind(noted):
        for number in range(4):
            hidden = model["first"](torch.randn(5, 7))
            # Only after the first backward is it known that the model itself is never called.
            assert number == 0 or noted.holds
            model["second"](hidden).sum().backward()
            step.step()
            step.zero_grad()
    handle.detach()


@on_workers(2)
def test_buffers_that_are_views_with_gaps_follow_rank_0() -> None:
    model: Any = made(Parts)
    spread = torch.randn(4, 6)
    model.register_buffer("column", spread[:, 1])
    model.register_buffer("conjugate", torch.randn(3, dtype=torch.complex64).conj())
    handle = weft.overlap(model, sgd(model))
    for step in range(2):
        model.training_step(step).backward()
        handle.parts[0].optimizer.step()
        model.column += dist.get_rank() + 1
    model.training_step(2).backward()
    handle.detach()
    mine, other = gathered(buffers_of(model))
    assert_same(mine, other)
    assert model.column.stride() == (6,)
    assert torch.equal(spread[:, 1], model.column)
