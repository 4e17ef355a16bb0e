"""A stop is seen soon, at negligible cost, and never in the middle of an accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.worker.agreement import NOTHING, Alone, AtUpdates, ByTurns, Wishes, turn_steps
from weft.worker.weighting import UpdateCount


class SlowPeers:
    """All workers want the same; each all-reduce takes ``cost_s`` on a clock that only the test moves."""

    rank, world_size, group = 0, 2, None

    def __init__(self, cost_s: float) -> None:
        self.now_s = 0.0
        self._cost_s = cost_s
        self.num_asked = 0

    def maximum_later(self, values: torch.Tensor) -> Any:
        self.num_asked += 1
        return self

    def wait(self) -> None:
        self.now_s += self._cost_s


def steps_until_stop(step_s: float, cost_s: float) -> int:
    """How many steps a job makes after a stop request that came when everything had settled."""
    peers: Any = SlowPeers(cost_s)
    agreement = ByTurns(peers, now=lambda: peers.now_s)
    for _ in range(3000):
        peers.now_s += step_s
        assert agreement.after_step(NOTHING) == NOTHING
    for number in range(1, 3000):
        peers.now_s += step_s
        if agreement.after_step(Wishes(stop=True)).stop:
            return number
    raise AssertionError("the request was never seen")


@pytest.mark.parametrize(("step_s", "cost_s"), [(0.01, 5e-3), (0.2, 0.1), (3.0, 0.5), (30.0, 1.0)])
def test_a_stop_is_seen_within_a_second_and_a_step_or_two(step_s: float, cost_s: float) -> None:
    assert steps_until_stop(step_s, cost_s) * step_s <= 1.0 + 2 * step_s


@pytest.mark.parametrize(("cost_s", "step_s"), [(1e-4, 1e-2), (1e-3, 1e-2), (5e-4, 0.2), (2e-3, 1e-2)])
def test_agreeing_costs_less_than_half_a_percent(cost_s: float, step_s: float) -> None:
    assert cost_s / (turn_steps(cost_s, step_s, step_s) * step_s) < 0.005


def test_a_pause_between_fast_steps_does_not_postpone_a_stop() -> None:
    assert turn_steps(cost_s=5e-3, step_s=1e-2, mean_step_s=1.0) == 1


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_a_stop_waits_for_the_end_of_an_accumulation() -> None:
    sgd = optimizer()
    updates = UpdateCount([sgd])
    agreement = AtUpdates(Alone(), updates)
    assert agreement.after_step(Wishes(stop=True)) == NOTHING
    assert agreement.after_step(NOTHING) == NOTHING
    sgd.step()
    assert agreement.after_step(NOTHING) == Wishes(stop=True)
    assert agreement.after_step(NOTHING) == NOTHING
    updates.close()
    sgd.step()
    assert updates.num_updates == 1


def test_a_script_that_never_steps_its_optimizer_can_be_stopped() -> None:
    agreement = AtUpdates(Alone(), UpdateCount([optimizer()]))
    assert any(agreement.after_step(Wishes(stop=True)).stop for _ in range(1000))
    assert AtUpdates(Alone(), UpdateCount([])).after_step(Wishes(stop=True)).stop
