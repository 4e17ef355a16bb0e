"""The flat memory behind parameters does not show: files have their usual size, other tools accept the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.integrations import environment
from torch import nn

import weft
from training import Tower, adafactor, adamw, assert_equal_states, assert_same, made, sgd, with_ddp, with_weft
from workers import on_workers


def size_of(value: Any, path: Path) -> int:
    torch.save(value, path)
    return path.stat().st_size


@pytest.mark.parametrize("optimizer", [adamw, adafactor])
@on_workers(2)
def test_saving_a_submodule_does_not_save_the_whole_model(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer], tmp_path: Path
) -> None:
    path = tmp_path / f"{dist.get_rank()}.pt"
    plain = made(Tower)
    expected = size_of(plain.layers[0].state_dict(), path)
    run = with_weft(made(Tower), optimizer).train(2)
    assert size_of(run.model.layers[0].state_dict(), path) == expected
    run.backward(2)
    if optimizer is adafactor:  # gradients are ordinary tensors there
        gradients = {name: p.grad for name, p in run.model.layers[0].named_parameters()}
        assert size_of(gradients, path) < 1.2 * expected
    run.optimizer.step()
    for parameter in run.model.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()


@on_workers(2)
def test_safetensors_saves_and_loads_an_overlapped_model(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    expected, run = with_ddp(made(Tower)).train(2), with_weft(made(Tower)).train(2)
    path = str(tmp_path / f"{dist.get_rank()}.safetensors")
    safetensors.save_model(run.model, path)
    assert_same(safetensors.load_file(path), expected.state())
    run.train(1, first=2)
    safetensors.load_model(run.model, path)
    assert_same(run.state(), expected.state())


@on_workers(2)
def test_two_dtypes_and_channels_last_keep_their_layout_and_train_as_with_ddp() -> None:
    class Pictures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
            self.second = nn.Conv2d(8, 4, 3).to(torch.float64).to(memory_format=torch.channels_last)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).double())

        def loss(self, step: int) -> torch.Tensor:
            torch.manual_seed(10 * step + dist.get_rank())
            return self(torch.randn(2, 3, 8, 8)).square().mean()

    expected, run = with_ddp(made(Pictures)), with_weft(made(Pictures))
    for other in (expected, run):
        other.train(3)
    assert_same(run.state(), expected.state())
    assert run.model.second.weight.dtype == torch.float64
    assert run.model.first.weight.is_contiguous(memory_format=torch.channels_last)
    twin = copy.deepcopy(run.model)
    assert_same(twin.state_dict(), expected.state())
    assert twin.first.weight.data_ptr() != run.model.first.weight.data_ptr()


@on_workers(2)
def test_an_accelerate_checkpoint_is_loaded_into_an_overlapped_model(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    try:
        accelerator = accelerate.Accelerator(cpu=True)
        run = with_weft(made(Tower), sgd).train(2)
        accelerator._models.append(run.model)
        accelerator._optimizers.append(run.optimizer)
        # Without torchrun's variables each worker's accelerator takes itself for the only one and writes everything.
        folder = str(tmp_path / f"checkpoint-{dist.get_rank()}")
        accelerator.save_state(folder)
        saved = run.state()
        run.train(2, first=2)
        after = run.state()
        accelerator.load_state(folder)
        assert_same(run.state(), saved)
        assert_same(run.train(2, first=2).state(), after)
    finally:
        environment.forget_accelerate()


class WithAnEmptyParameter(Tower):
    """A table that pruning left empty, and one that was never filled."""

    def __init__(self) -> None:
        super().__init__()
        self.pruned = nn.Parameter(torch.zeros(0, 7))
        self.empty_bias = nn.Parameter(torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (x @ self.pruned.t()).sum()


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@on_workers(2)
def test_a_parameter_without_elements_trains_as_with_ddp(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
) -> None:
    expected = with_ddp(made(WithAnEmptyParameter), optimizer)
    run = with_weft(made(WithAnEmptyParameter), optimizer, tune=True)
    for other in (expected, run):
        other.train(8)
    assert_same(run.state(), expected.state())
    assert_equal_states(run.optimizer.state_dict(), expected.optimizer.state_dict())
    assert run.handle is not None
    run.handle.detach()
    assert_equal_states(run.optimizer.state_dict(), expected.optimizer.state_dict())
    assert weft.overlap(run.model, run.optimizer)
    for other in (expected, run):
        other.train(2, first=8)
    assert_same(run.state(), expected.state())
