"""A parameter replaced after weft.overlap would not be trained: every worker reports it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.compat.tasks import declare_missing_operators
from torch import nn
from torch.nn.utils import parametrize

import weft
from training import Run, Tower, adafactor, adamw, assert_same, made, sgd, with_weft
from weft.errors import OverlapError
from workers import on_workers


def assign_loaded(model: Any) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def new_weight(model: Any) -> None:
    model.layers[2].weight = nn.Parameter(model.layers[2].weight.detach().clone())


def new_module(model: Any) -> None:
    model.layers[0] = nn.Linear(7, 33)


def removed(model: Any) -> None:
    model.layers[2].bias = None


REPLACE: list[Callable[[Any], None]] = [assign_loaded, new_weight, new_module, removed]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("replace", REPLACE)
@on_workers(2)
def test_a_replaced_parameter_is_detected_at_the_next_forward_and_training_can_continue(
    replace: Any, eager: bool
) -> None:
    run = with_weft(made(Tower), sgd, eager=eager).train(3)
    run.optimizer.zero_grad()
    replace(run.model)
    with pytest.raises(OverlapError, match=r"layers\.\d\.\w+ was replaced.*detach\(\)"):
        run.backward(3)
    assert run.handle is not None
    run.handle.detach()
    again = with_weft(run.model, sgd).train(2, first=3)
    assert again.handle is not None


@on_workers(2)
def test_a_parameter_replaced_between_backward_and_step_is_detected_at_the_step() -> None:
    run = with_weft(made(Tower), adafactor).train(2)
    run.backward(2)
    new_weight(run.model)
    with pytest.raises(OverlapError, match=r"layers\.2\.weight was replaced"):
        run.optimizer.step()
    assert run.handle is not None
    run.handle.detach()


@on_workers(2)
def test_resized_token_embeddings_are_detected_and_train_after_a_new_overlap() -> None:
    pytest.importorskip("transformers")
    declare_missing_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import GPT2Config, GPT2LMHeadModel

    def make() -> Any:
        return made(lambda: GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=24, n_positions=8)))

    def step(run: Run, number: int) -> None:
        tokens = torch.full((2, 6), number + dist.get_rank())
        run.optimizer.zero_grad()
        run.model(input_ids=tokens, labels=tokens).loss.backward()
        run.optimizer.step()

    model = make()
    optimizer = adamw(model)
    handle = weft.overlap(model, optimizer)
    run = Run(model, optimizer, handle=handle)
    step(run, 1)
    model.resize_token_embeddings(28)
    with pytest.raises(OverlapError, match=r"wte\.weight was replaced.*resize_token_embeddings.*detach"):
        step(run, 2)
    handle.detach()
    run.optimizer = adamw(model)
    weft.overlap(model, run.optimizer)
    step(run, 2)
    step(run, 3)


class AveragedByHand(Run):
    """DDP does not average the gradient of a parameter that was parametrized after it was wrapped."""

    def backward(self, step: int, scale: Any = None) -> torch.Tensor:
        loss = self.model.loss(step)
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad.div_(2))
        return loss


@on_workers(2)
def test_a_parametrization_keeps_the_parameter_and_is_accepted() -> None:
    class Double(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    found = with_weft(made(Tower))
    model = made(Tower)
    model.load_state_dict(found.state())
    expected = AveragedByHand(model, sgd(model))
    for run in (expected, found):
        run.train(2)
        parametrize.register_parametrization(run.model.layers[2], "weight", Double())
        run.train(2, first=2)
    assert_same(found.state(), expected.state())
