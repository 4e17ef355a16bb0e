"""The learning rate follows the number of workers, whatever schedule the script uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.worker.scaling import RateScaling

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "chained": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "closed form": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
}


def rates(target: float, schedule: str, num_steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = SCHEDULES[schedule](optimizer)
    scaling = RateScaling(target, warmup_steps=4)
    found = []
    for step in range(num_steps):
        scaling.before_step(step, [optimizer], [scheduler])
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_after_the_warm_up_every_rate_is_the_schedules_own_times_the_workers(schedule: str) -> None:
    assert rates(4.0, schedule, 12)[4:] == pytest.approx([4.0 * rate for rate in rates(1.0, schedule, 12)[4:]])


def test_the_warm_up_starts_at_the_scripts_own_rate() -> None:
    assert rates(4.0, "chained", 1) == [0.1]


def test_a_resize_starts_a_new_warm_up_from_the_current_learning_rate() -> None:
    first = RateScaling(4.0, warmup_steps=4)
    first.before_step(10, [], [])
    second = RateScaling(2.0, warmup_steps=4)
    second.load_state_dict(first.state_dict(), step=10)
    factors = []
    for step in range(10, 16):
        second.before_step(step, [], [])
        factors.append(second.factor)
    assert factors == [4.0, 3.5, 3.0, 2.5, 2.0, 2.0]


def test_an_optimizer_and_a_scheduler_given_under_two_names_are_scaled_once() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    inner = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    chained = torch.optim.lr_scheduler.ChainedScheduler([inner])
    RateScaling(4.0, warmup_steps=0).before_step(0, [optimizer, optimizer], [inner, chained, chained])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)
    assert inner.base_lrs == pytest.approx([0.4])
