"""Another plan after every step: the numbers stay those of DDP, or of overlap switched off.

Worker 1 is slow: it finishes a gather only when worker 0, its neighbor on a host of several workers, waits for all
workers or has collected the gradients of the next step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from training import (
    Run,
    Tangle,
    Tower,
    adamw,
    assert_differ,
    assert_same,
    made,
    replicated_sgd,
    same_as_ddp,
    with_ddp,
    with_weft,
)
from weft.overlap.layout import uniform_cuts
from weft.overlap.transport import Exchange
from workers import gathered, on_workers

STEPS = 6
# Several buckets, then one: what each neighbor sends next lies where the first bucket's gathered values were.
SIZES = (2000, 1 << 20, 700, 1 << 20)

LAYOUTS: dict[str, Sequence[int]] = {
    "2": (0, 1),
    "3": (0, 1, 2),
    "2+1": (0, 0, 1),
    "4": (0, 1, 2, 3),
    "2x2": (0, 0, 1, 1),
    "3+1": (0, 0, 0, 1),
}


def some_tangle() -> Tangle:
    return Tangle(lambda step: [[1], [0, 2], []][step % 3])


@dataclass(frozen=True)
class Way:
    """A training loop that must not notice plans."""

    make: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)


WAYS = {
    "replicated": Way(Tower, replicated_sgd),
    "replicated, unused parameters": Way(some_tangle, replicated_sgd),
    "replicated, accumulation": Way(Tower, replicated_sgd, loop={"accumulate": 2}),
    "replicated, clipping": Way(Tower, replicated_sgd, loop={"clip": "torch"}),
    "sharded": Way(some_tangle, adamw),
    "sharded, accumulation": Way(Tower, adamw, loop={"accumulate": 2}),
    "sharded, clipping": Way(Tower, adamw, {"exact_clipping": True}, {"clip": "torch"}),
    "eager": Way(some_tangle, adamw, {"eager": True}),
}


class SlowWorker:
    """Worker 1 finishes the first bucket's gather only when worker 0 has moved on from the step."""

    def __init__(self, run: Run) -> None:
        assert run.handle is not None
        transport: Any = run.handle.schedule.transport
        self._store = dist.distributed_c10d._get_default_store()
        self._step = 0
        self._has_stepped = False
        self._num_left = 0
        if dist.get_rank() == 0:
            transport.all_reduce = self._moving_on(transport.all_reduce)
            transport.launch_reduce = self._moving_on(transport.launch_reduce)
        if dist.get_rank() == 1:
            self._finish_gather = transport.finish_gather
            transport.finish_gather = self._finish_late

    def stepped(self) -> None:
        self._has_stepped = True

    def plan_changed(self) -> None:
        self._step += 1

    def move_on(self) -> None:
        if self._has_stepped:
            self._has_stepped = False
            self._store.set(f"moved on {self._num_left}", "")
            self._num_left += 1

    def _moving_on(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def moving_on(*args: Any, **options: Any) -> Any:
            self.move_on()
            return call(*args, **options)

        return moving_on

    def _finish_late(self, exchange: Exchange) -> None:
        if exchange.index == 0:
            self._store.wait([f"moved on {self._step}"])
        self._finish_gather(exchange)


def change_plan(run: Run, number: int) -> None:
    """Other buckets, and parameters in another order."""
    assert run.handle is not None
    part = run.handle.parts[0]
    memory, num_workers = part.schedule.memory, part.schedule.transport.num_workers
    order = [*memory.order[1:], memory.order[0]]
    size = SIZES[number % len(SIZES)]
    part.move_to(order, [uniform_cuts(lane, size, num_workers) for lane in memory.lanes])


def trained(layout: str, way: Way) -> dict[str, torch.Tensor]:
    """Values after a few steps and plans, the same on every worker."""
    with patch.dict(os.environ, WEFT_HOST=f"host-{LAYOUTS[layout][dist.get_rank()]}"):
        run = with_weft(made(way.make), way.optimizer, **way.options, bucket_bytes=SIZES[-1])
    assert run.handle is not None
    run.train(1, **way.loop)  # the first step is followed by collectives of its own
    change_plan(run, 0)
    slow = SlowWorker(run)
    for step in range(1, STEPS):
        run.train(1, first=step, **way.loop)
        slow.stepped()
        change_plan(run, step)
        slow.plan_changed()
    slow.move_on()
    found = run.state()
    own = gathered([value.double().sum().item() for value in run.parameters().values()])
    run.handle.detach()
    assert all(other == own[0] for other in own), "workers have different parameters"
    return found


def without_overlap(layout: str, way: Way) -> dict[str, torch.Tensor]:
    with patch.dict(os.environ, WEFT_HOST=f"host-{LAYOUTS[layout][dist.get_rank()]}"):
        run = with_weft(made(way.make), way.optimizer, enabled=False, **way.options)
    assert run.handle is not None
    found = run.train(STEPS, **way.loop).state()
    run.handle.detach()
    return found


def same_under_every_plan(layout: str, name: str) -> None:
    way = WAYS[name]
    if dist.get_world_size() == 2:
        expected = with_ddp(made(way.make), way.optimizer).train(STEPS, **way.loop).state()
    else:
        expected = without_overlap(layout, way)
    assert_differ(expected, made(way.make).state_dict())
    assert_same(trained(layout, way), expected)


@pytest.mark.parametrize("name", WAYS)
@on_workers(2)
def test_two_workers_get_ddp_numbers_with_another_plan_after_every_step(name: str) -> None:
    same_under_every_plan("2", name)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("layout", ["3", "2+1"])
@on_workers(3)
def test_three_workers_get_the_same_numbers_with_another_plan_after_every_step(layout: str, name: str) -> None:
    same_under_every_plan(layout, name)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("layout", ["4", "2x2", "3+1"])
@on_workers(4)
def test_four_workers_get_the_same_numbers_with_another_plan_after_every_step(layout: str, name: str) -> None:
    same_under_every_plan(layout, name)


def _gradients_not_zeroed(run: Run) -> dict[str, torch.Tensor]:
    for step in range(STEPS):
        run.backward(step)
        run.optimizer.step()
        if run.handle is not None:
            change_plan(run, step)
        if step == 3:
            run.optimizer.zero_grad()
    return {}


def _gradients_read_after_the_step(run: Run) -> dict[str, torch.Tensor]:
    found = {}
    for step in range(STEPS):
        run.train(1, first=step)
        if run.handle is not None:
            change_plan(run, step)
        for number, (name, parameter) in enumerate(run.model.named_parameters()):
            assert parameter.grad is not None
            whole = parameter.grad if run.handle is None else run.handle.full_gradient(parameter)
            found[f"{step} {name}"] = whole.clone()
            if number == 0:
                torch.testing.assert_close(parameter.grad.norm(), whole.norm())
    return found


LEFT: dict[str, Callable[[Run], dict[str, torch.Tensor]]] = {
    "not zeroed": _gradients_not_zeroed,
    "read": _gradients_read_after_the_step,
}


@pytest.mark.parametrize("optimizer", [adamw, replicated_sgd], ids=["sharded", "replicated"])
@pytest.mark.parametrize("loop", LEFT)
@on_workers(2)
def test_gradients_of_the_last_step_are_those_of_ddp_under_another_plan(loop: str, optimizer: Any) -> None:
    same_as_ddp(LEFT[loop], Tower, optimizer)


@pytest.mark.parametrize("eager", [False, True])
@on_workers(4)
def test_four_workers_add_to_gradients_of_the_last_step_under_another_plan(eager: bool) -> None:
    with patch.dict(os.environ, WEFT_HOST=f"host-{dist.get_rank() // 2}"):
        expected = with_weft(made(some_tangle), adamw, enabled=False)
        found = with_weft(made(some_tangle), adamw, eager=eager)
    _add_up(expected, is_changing=False)
    _add_up(found, is_changing=True)
    assert_same(found.parameters(), expected.parameters())


def _add_up(run: Run, is_changing: bool) -> None:
    for step in range(STEPS):
        run.backward(step)
        run.optimizer.step()
        if is_changing:
            change_plan(run, step)
