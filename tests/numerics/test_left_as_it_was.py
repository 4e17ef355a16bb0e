"""A refusal leaves model and optimizer unchanged: a correct weft.overlap and DDP both work on them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import weft
from training import Run, Tower, adamw, assert_same, left_as_it_was, made, sgd, with_ddp, with_weft
from weft.errors import OverlapError
from workers import on_workers


class Lookahead(torch.optim.Optimizer):
    """Like some of timm's: an optimizer that never calls ``Optimizer.__init__``."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self._base_optimizer = base
        self.param_groups = base.param_groups
        self.defaults = base.defaults


class Unfinished(torch.optim.Optimizer):
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters}]


class ByHand(torch.optim.Optimizer):
    """Has everything that ``Optimizer.__init__`` creates, but its step() does not run hooks."""

    def __init__(self, base: torch.optim.Optimizer, *, keep: bool) -> None:
        self.__dict__.update(vars(base))
        if keep:
            self.base = base

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


def accelerated(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True)
    wrapped: torch.optim.Optimizer = accelerate.optimizer.AcceleratedOptimizer(optimizer)
    return wrapped


def misses_a_key(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Broken on one worker only; the other must not wait for it."""
    if dist.get_rank() == 1:
        del optimizer.param_groups[0]["params"]
    return optimizer


def own_rate(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An option that the optimizer's class refuses, when parts of it are made for the shards, on one worker."""
    if dist.get_rank() == 1:
        optimizer.defaults["lr"] = -1.0
    return optimizer


Refusal = tuple[Callable[[nn.Module, torch.optim.Optimizer], Any], str, dict[str, Any]]

REFUSED: dict[str, Refusal] = {
    "lookahead": (lambda m, o: Lookahead(o), r"Lookahead that wraps a SGD.*optimizer\._base_optimizer", {}),
    "accelerated": (lambda m, o: accelerated(o), r"AcceleratedOptimizer that wraps a SGD.*optimizer\.optimizer", {}),
    "hooks by hand": (lambda m, o: ByHand(o, keep=True), r"ByHand that wraps a SGD.*optimizer\.base", {}),
    "hooks that never run": (lambda m, o: ByHand(o, keep=False), r"its step\(\) runs no hooks", {}),
    "unfinished": (lambda m, o: Unfinished(list(m.parameters())), r"Optimizer\.__init__", {}),
    "not an optimizer": (lambda m, o: m.parameters, "expected a torch", {}),
    "no optimizer": (lambda m, o: [], "is empty", {}),
    "two for one parameter": (lambda m, o: [o, sgd(m)], "is in two optimizers", {}),
    "another model's": (lambda m, o: sgd(Tower()), "not in the model", {}),
    "another class on one worker": (lambda m, o: o if dist.get_rank() else adamw(m), "AdamW.*SGD", {}),
    "eager": (lambda m, o: torch.optim.Adafactor(m.parameters()), "element by element", {"eager": True}),
    "bucket bytes": (lambda m, o: o, "positive number of bytes", {"bucket_bytes": -1}),
    "comm dtype": (lambda m, o: o, "floating-point", {"comm_dtype": torch.int32}),
}


def trains_on(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """With weft, after that without, as a model that was never refused with DDP."""
    expected = with_ddp(made(Tower), sgd)
    found = Run(model, optimizer, handle=weft.overlap(model, optimizer, bucket_bytes=1024))
    for run in (expected, found):
        run.train(2)
    assert_same(found.state(), expected.state())
    assert found.handle is not None
    found.handle.detach()
    again = with_ddp(model, lambda m: optimizer)
    for run in (expected, again):
        run.train(2, first=2)
    assert_same(again.state(), expected.state())


@pytest.mark.parametrize("case", REFUSED)
@on_workers(2)
def test_a_refused_model_can_be_trained_afterwards(case: str) -> None:
    spoil, message, options = REFUSED[case]
    model = made(Tower)
    optimizer = sgd(model)
    spoiled = spoil(model, optimizer)
    seen = spoiled if isinstance(spoiled, torch.optim.Optimizer) else optimizer
    with left_as_it_was(model, optimizer), left_as_it_was(model, seen), pytest.raises(OverlapError, match=message):
        weft.overlap(model, spoiled, **options)
    trains_on(model, optimizer)


@on_workers(2)
def test_an_unexpected_error_on_one_worker_reaches_all_before_anything_changes() -> None:
    model = made(Tower)
    optimizer = sgd(model)
    parameters = optimizer.param_groups[0]["params"]
    misses_a_key(optimizer)
    message = "KeyError" if dist.get_rank() == 1 else "worker 1 refused"
    values = [p.detach().clone() for p in parameters]
    with pytest.raises(OverlapError, match=message):
        weft.overlap(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(values, parameters, strict=True))
    optimizer.param_groups[0]["params"] = parameters
    trains_on(model, optimizer)


@on_workers(2)
def test_an_error_while_shards_are_made_on_one_worker_is_undone_on_all_of_them() -> None:
    model = made(Tower)
    alone = sgd(model)
    model(torch.ones(2, 7)).sum().backward()
    alone.step()  # there is state to restore
    alone.zero_grad()
    state = alone.state
    own_rate(alone)
    message = "ValueError: Invalid learning rate" if dist.get_rank() == 1 else "worker 1 refused"
    before = dict(state)
    kinds = [type(p) for p in model.parameters()]
    with pytest.raises(OverlapError, match=message):
        weft.overlap(model, alone)
    assert alone.state is state
    assert dict(alone.state) == before
    assert [type(p) for p in model.parameters()] == kinds
    assert len(dist.distributed_c10d._world.pg_map) == 1
    assert not model._forward_pre_hooks
    assert not alone._optimizer_step_pre_hooks
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storages) == len(list(model.parameters()))
    alone.defaults["lr"] = 0.05
    weft.overlap(model, alone).detach()


@on_workers(2)
def test_a_group_without_this_worker_is_refused() -> None:
    alone = dist.new_group([0])
    model = made(Tower)
    optimizer = sgd(model)
    if dist.get_rank() == 1:
        with left_as_it_was(model, optimizer), pytest.raises(OverlapError, match="a group that this worker is in"):
            weft.overlap(model, optimizer, process_group=alone)
    else:
        weft.overlap(model, optimizer, process_group=alone).detach()
    dist.barrier()


def clip(run: Run) -> None:
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)


def scale(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(run.optimizer)


def other_rate(run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = 1.0
    try:
        run.optimizer.step()
    finally:
        run.optimizer.param_groups[0]["lr"] = 0.05


def read(run: Run) -> None:
    run.model.state_dict()


@pytest.mark.parametrize("refuse", [clip, scale, other_rate, read])
@on_workers(2)
def test_detach_works_after_something_was_refused_while_eager(refuse: Any) -> None:
    """The current step ends as if step() had been called; the model is ordinary again, and the same on all workers."""
    expected, found = with_ddp(made(Tower)), with_weft(made(Tower), eager=True)
    for run in (expected, found):
        run.train(4)
    found.optimizer.zero_grad()
    found.backward(4)
    with pytest.raises(OverlapError, match="eager"):
        refuse(found)
    assert found.handle is not None
    found.handle.detach()
    expected.train(1, first=4)
    assert_same(found.state(), expected.state())
    again = with_ddp(found.model, lambda model: found.optimizer)
    for run in (expected, again):
        run.train(2, first=5)
    assert_same(again.state(), expected.state())
