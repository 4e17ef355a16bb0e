"""Every way to train, run with the CUDA path's own code: nothing is read or written that no event orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded_nccl import recorded
from torch import nn

from training import (
    MakeOptimizer,
    Run,
    Tangle,
    Tower,
    adamw,
    assert_equal_states,
    assert_same,
    made,
    sgd,
    two_backwards,
    with_ddp,
    with_weft,
)
from workers import on_workers


class OwnAdamW(torch.optim.AdamW):
    """A subclass may do anything: it gets whole gradients."""


def replicated(model: nn.Module) -> torch.optim.Optimizer:
    return OwnAdamW(model.parameters(), lr=3e-3)


SCHEDULES: dict[str, tuple[dict[str, Any], MakeOptimizer]] = {
    "sharded": ({}, adamw),
    "sgd": ({}, sgd),
    "fused": ({}, lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)),
    "disabled": ({"enabled": False}, adamw),
    "eager": ({"eager": True}, adamw),
    "replicated": ({}, replicated),
    "tuned": ({"tune": True}, adamw),
}


@pytest.mark.parametrize("over_at_once", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@on_workers(2)
def test_training_is_synchronized_and_equal_to_ddp(schedule: str, over_at_once: bool) -> None:
    options, optimizer = SCHEDULES[schedule]
    expected = with_ddp(made(Tangle), optimizer).train(8)
    with recorded(over_at_once) as record:
        found = with_weft(record.made(Tangle), optimizer, **options).train(8)
        state, saved = found.state(), found.optimizer.state_dict()
    record.check()
    assert_same(state, expected.state())
    assert_equal_states(saved, expected.optimizer.state_dict())


def clipped(run: Run) -> None:
    run.train(4, clip="handle")
    run.train(4, first=4, clip="torch")


def accumulated(run: Run) -> None:
    run.train(3, accumulate=3)


def scaled(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for step in range(5):
        run.optimizer.zero_grad()
        infinite = float("inf") if step == 2 else 1.0
        run.backward(step, lambda loss, factor=infinite: scaler.scale(loss) * factor)
        scaler.unscale_(run.optimizer)
        scaler.step(run.optimizer)
        scaler.update()


def saved_and_loaded(run: Run) -> None:
    run.train(2)
    state = run.optimizer.state_dict()
    run.train(2, first=2)
    run.optimizer.load_state_dict(state)
    run.train(2, first=4)


def failed_backward(run: Run) -> None:
    run.train(2)
    hook = run.model.layers[0].weight.register_hook(_fail)
    with pytest.raises(ArithmeticError):
        run.backward(9)
    hook.remove()
    run.optimizer.zero_grad()
    run.train(2, first=2)


def _fail(gradient: torch.Tensor) -> torch.Tensor:
    raise ArithmeticError("no gradient today")


@pytest.mark.parametrize("optimizer", [adamw, replicated], ids=["sharded", "replicated"])
@pytest.mark.parametrize("loop", [clipped, accumulated, two_backwards, scaled, saved_and_loaded, failed_backward])
@on_workers(2)
def test_operations_between_backward_and_step_are_synchronized(
    loop: Callable[[Run], Any], optimizer: MakeOptimizer
) -> None:
    with recorded() as record:
        run = with_weft(record.made(Tower), optimizer)
        loop(run)
        run.state()
        assert run.handle is not None
        run.handle.detach()
        run.optimizer.zero_grad()
        run.backward(99)
    record.check()
