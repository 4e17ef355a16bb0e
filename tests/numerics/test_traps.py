"""Traps of delayed updates and gathers: each has ruined a training run in another tool."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weft
from training import Run, Tangle, Tower, adamw, assert_same, made, sgd, with_ddp, with_weft
from weft.errors import OverlapError
from workers import gathered, on_workers


@on_workers(2)
def test_an_eval_forward_in_between_does_not_apply_the_update_twice() -> None:
    def train(run: Run) -> Run:
        for step in range(6):
            run.train(1, first=step)
            run.model.eval()
            with torch.no_grad():
                run.losses.append(run.model.loss(100 + step).item())
                run.losses.append(run.model.loss(200 + step).item())
            run.model.train()
        return run

    expected, found = train(with_ddp(made(Tower))), train(with_weft(made(Tower)))
    assert_same(found.state(), expected.state())
    assert found.losses == expected.losses


@on_workers(2)
def test_the_last_step_is_applied() -> None:
    one, two = with_weft(made(Tower)).train(1), with_weft(made(Tower)).train(2)
    assert_same(one.parameters(), with_ddp(made(Tower)).train(1).parameters())
    assert_same(two.parameters(), with_ddp(made(Tower)).train(2).parameters())
    assert not torch.equal(next(iter(one.parameters().values())), next(iter(two.parameters().values())))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("scheduler_first", [True, False])
@on_workers(2)
def test_the_learning_rate_is_that_of_this_step(scheduler_first: bool, eager: bool) -> None:
    """Warnings are errors here: a scheduler that complains about the order of calls fails the test."""

    def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def train(run: Run, scheduler: torch.optim.lr_scheduler.LRScheduler) -> Run:
        for step in range(6):
            run.train(1, first=step)
            scheduler.step()
        return run

    expected = with_ddp(made(Tower))
    train(expected, scheduler_of(expected.optimizer))
    model = made(Tower)
    optimizer = sgd(model)
    before = scheduler_of(optimizer) if scheduler_first else None
    handle = weft.overlap(model, optimizer, bucket_bytes=1024, eager=eager)
    found = train(Run(model, optimizer, handle=handle), before or scheduler_of(optimizer))
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_a_learning_rate_set_between_backward_and_step_counts() -> None:
    def train(run: Run) -> Run:
        for step in range(3):
            run.optimizer.zero_grad()
            run.backward(step)
            for group in run.optimizer.param_groups:
                group["lr"] = 0.1 / (step + 1)
            run.optimizer.step()
        return run

    assert_same(train(with_weft(made(Tower))).state(), train(with_ddp(made(Tower))).state())


@pytest.mark.parametrize("eager", [False, True])
@on_workers(1)
def test_one_worker_alone_trains(eager: bool) -> None:
    alone = made(lambda: Tangle(rare_ranks=lambda step: [0] if step % 2 else []))
    optimizer = adamw(alone)
    for step in range(6):
        optimizer.zero_grad()
        alone.loss(step).backward()
        optimizer.step()
    found = with_weft(made(lambda: Tangle(rare_ranks=lambda step: [0] if step % 2 else [])), adamw, eager=eager)
    found.train(6)
    assert_same(found.state(), alone.state_dict())
    assert found.optimizer.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()


@on_workers(2)
def test_another_module_order_on_one_worker_is_an_error_at_the_start() -> None:
    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("a", "b") if dist.get_rank() else ("b", "a"):
                self.add_module(name, nn.Linear(4, 4))

    model = Ordered()
    with pytest.raises(OverlapError, match=r"different models.*`[ab]\.weight.*same order"):
        weft.overlap(model, sgd(model))


@on_workers(2)
def test_a_parameter_no_worker_uses_keeps_value_and_momentum() -> None:
    run = with_weft(made(lambda: Tangle(rare_ranks=lambda step: [0, 1] if step < 2 else [])), adamw).train(2)
    value = run.model.rare.weight.detach().clone()
    number = [name for name, _ in run.model.named_parameters()].index("rare.weight")
    state = run.optimizer.state_dict()["state"][number]
    run.train(3, first=2)
    assert torch.equal(run.model.rare.weight, value)
    after = run.optimizer.state_dict()["state"][number]
    assert after["step"] == state["step"] == 2
    assert torch.equal(after["exp_avg"], state["exp_avg"])


@pytest.mark.parametrize("eager", [False, True])
@on_workers(2)
def test_a_parameter_only_one_worker_uses_counts_as_zero_on_the_other(eager: bool) -> None:
    def make() -> Tangle:
        return Tangle(rare_ranks=lambda step: [step % 2])

    found = with_weft(made(make), sgd, eager=eager).train(6)
    assert_same(found.state(), with_ddp(made(make), sgd).train(6).state())


@on_workers(2)
def test_a_worker_without_any_gradient_still_takes_part() -> None:
    """The other worker's gradients count, and this one does not leave it waiting."""

    def train(run: Run) -> Run:
        for step in range(4):
            run.optimizer.zero_grad()
            if step != 2 or dist.get_rank() == 0:
                run.backward(step)
            run.optimizer.step()
        return run

    found = train(with_weft(made(Tower)))
    states = gathered(found.parameters())
    assert_same(states[0], states[1])
