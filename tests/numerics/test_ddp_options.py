"""Options that users know from DDP."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_buffers import Parts, Whole, buffers_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weft
from training import Tower, adamw, assert_differ, assert_same, made, sgd, with_weft
from weft.errors import OverlapError
from workers import gathered, on_workers


def ddp_and_weft(ddp_options: dict[str, Any], weft_options: dict[str, Any], ignored: tuple[str, ...] = ()) -> Any:
    """The same model trained by both; what each has in the end."""
    found = []
    for way in ("ddp", "weft"):
        model = made(Parts)
        with torch.no_grad():
            model.mean.fill_(dist.get_rank())
        wrapped = Whole(model)
        optimizer = adamw(model)
        if way == "ddp":
            names = [f"parts.{name}" for name in ignored]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(wrapped, names)
            with warnings.catch_warnings():  # DDP's own broadcast_buffers is deprecated
                warnings.simplefilter("ignore", FutureWarning)
                call: Any = DistributedDataParallel(wrapped, find_unused_parameters=True, **ddp_options)
        else:
            weft.overlap(model, optimizer, tune=False, **weft_options)
            call = wrapped
        for step in range(5):
            optimizer.zero_grad()
            call(step).backward()
            optimizer.step()
        found.append({**{n: p.detach().clone() for n, p in model.named_parameters()}, **buffers_of(model)})
    return found


@on_workers(2)
def test_buffers_stay_local_without_broadcast() -> None:
    expected, found = ddp_and_weft({"broadcast_buffers": False}, {"broadcast_buffers": False})
    assert_same(found, expected)
    shared, _ = ddp_and_weft({}, {})
    assert dist.get_rank() == 0 or any(not torch.equal(found[name], shared[name]) for name in ("mean", "mask"))


IGNORED = ("head.weight", "encoder.0.bias", "mean", "encoder.1.running_var")


@pytest.mark.parametrize("way", ["option", "attribute"])
@on_workers(2)
def test_ignored_parameters_and_buffers_are_each_workers_own(way: str) -> None:
    expected, found = ddp_and_weft({}, {"ignore": IGNORED}, IGNORED)
    if way == "attribute":
        Parts._ddp_params_and_buffers_to_ignore = [*IGNORED, "not.there"]  # type: ignore[attr-defined]
        try:
            _, found = ddp_and_weft({}, {}, IGNORED)
        finally:
            del Parts._ddp_params_and_buffers_to_ignore  # type: ignore[attr-defined]
    assert_same(found, expected)
    mine, theirs = gathered({name: found[name] for name in IGNORED})
    assert_differ(mine, theirs)


@on_workers(2)
def test_an_unknown_ignored_name_is_refused() -> None:
    model = made(Tower)
    with pytest.raises(OverlapError, match=r"ignore contains 'layers\.9\.weight'"):
        weft.overlap(model, sgd(model), ignore=["layers.9.weight"])


@on_workers(2)
def test_an_optimizer_of_ignored_parameters_only_is_left_alone() -> None:
    model = made(Tower)
    first, *rest = model.parameters()
    local = torch.optim.SGD([first], lr=0.1)
    shared = torch.optim.SGD(rest, lr=0.1)
    weft.overlap(model, [shared, local], ignore=["layers.0.weight"], tune=False)
    for step in range(3):
        model.loss(step).backward()
        for optimizer in (shared, local):
            optimizer.step()
            optimizer.zero_grad()
    mine, theirs = gathered({name: p.detach().clone() for name, p in model.named_parameters()})
    assert not torch.equal(mine.pop("layers.0.weight"), theirs.pop("layers.0.weight"))
    assert_same(mine, theirs)


@pytest.mark.parametrize("differs", ["seed", "sign of a zero", "a buffer"])
@on_workers(2)
def test_all_workers_begin_with_rank_0s_values_however_little_theirs_differ(differs: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(7)
    model: Any = Parts()
    with torch.no_grad():
        if differs == "seed" and rank:
            for parameter in model.parameters():
                parameter.add_(1.0)
        next(model.parameters()).view(-1)[0] = -0.0 if rank and differs == "sign of a zero" else 0.0
        model.mean.fill_(rank if differs == "a buffer" else 0)
    weft.overlap(model, sgd(model), tune=False)
    first, second = gathered({n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())})
    assert_same(first, second)
    assert not next(iter(first.values())).view(-1)[0].signbit()


@pytest.mark.parametrize("same", [True, False])
@on_workers(2)
def test_a_start_with_the_same_values_everywhere_does_not_send_the_model(same: bool) -> None:
    torch.manual_seed(7)
    model = Tower()
    with torch.no_grad():
        next(model.parameters()).add_(0 if same else dist.get_rank())
    sent: list[int] = []
    broadcast = dist.broadcast

    def counting(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        sent.append(tensor.numel())
        return broadcast(tensor, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "broadcast", counting)
        weft.overlap(model, sgd(model), tune=False)
    num_values = sum(parameter.numel() for parameter in model.parameters())
    assert sum(sent) < num_values if same else sum(sent) >= num_values


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@on_workers(2)
def test_a_state_dict_of_a_ddp_model_loads_and_is_mentioned_once() -> None:
    source = made(Tower)
    saved = DistributedDataParallel(source).state_dict()
    before = dict(saved)
    run = with_weft(made(Tower), sgd).train(1)
    records = Records()
    logging.getLogger("weft.overlap").addHandler(records)
    try:
        for _ in range(2):
            run.model.load_state_dict(saved)
    finally:
        logging.getLogger("weft.overlap").removeHandler(records)
    assert_same(run.state(), dict(source.state_dict()))
    assert saved.keys() == before.keys()
    assert len([m for m in records.messages if "DistributedDataParallel" in m]) == 1


@on_workers(2)
def test_keys_that_really_begin_with_module_are_left_alone() -> None:
    model: Any = made(lambda: nn.ModuleDict({"module": nn.Linear(3, 3)}))
    weft.overlap(model, sgd(model), tune=False)
    model.load_state_dict({"module.weight": torch.ones(3, 3), "module.bias": torch.zeros(3)})
    assert torch.equal(model["module"].weight, torch.ones(3, 3))
