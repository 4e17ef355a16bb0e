"""Which gradients can be weighted when a batch does not divide evenly; the numbers are checked in tests/numerics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import weft
from gates import NotedGate, behind
from weft.errors import SessionError
from weft.worker.sampling import Share
from weft.worker.shards import Registered, register
from weft.worker.weighting import UpdateCount, choose_weightings


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def choose(registered: Registered, may_be_uneven: bool = True) -> int:
    return len(choose_weightings(registered, may_be_uneven, 3, UpdateCount([])))


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for model in models for parameter in model.parameters()], lr=0.1)


def test_a_model_that_cannot_be_weighted_is_refused_by_name(process_group: None) -> None:
    model = nn.Linear(2, 2)
    DistributedDataParallel(model)
    registered = register({"classifier": model, "optimizer": sgd(model)})
    assert choose(registered, may_be_uneven=False) == 0
    with pytest.raises(SessionError, match=r"3 workers.* classifier= .*the wrapped model"):
        choose(registered)


def test_a_second_model_that_cannot_be_weighted_is_refused_too(process_group: None) -> None:
    """Its update would silently be wrong, although the first model's is right."""
    generator, critic = DistributedDataParallel(nn.Linear(2, 2)), nn.Linear(2, 2)
    registered = register({"generator": generator, "critic": critic, "first": sgd(generator), "second": sgd(critic)})
    with pytest.raises(SessionError, match="critic="):
        choose(registered)
    wrapped = DistributedDataParallel(critic)
    assert choose(register({"generator": generator, "critic": wrapped, "both": sgd(generator, critic)})) == 2


def test_models_that_no_optimizer_trains_need_no_weights(process_group: None) -> None:
    student, teacher = DistributedDataParallel(nn.Linear(2, 2)), nn.Linear(2, 2)
    head = nn.Linear(2, 2).requires_grad_(False)
    assert choose(register({"student": student, "teacher": teacher, "head": head, "sgd": sgd(student, head)})) == 1


def test_a_model_may_be_given_both_bare_and_wrapped(process_group: None) -> None:
    model = nn.Linear(2, 2)
    assert choose(register({"bare": model, "ddp": DistributedDataParallel(model), "sgd": sgd(model)})) == 1


def test_a_model_given_under_two_names_is_weighted_once(process_group: None) -> None:
    """Otherwise, the batches accumulated after the first would get the factor that corrects their weight twice."""
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    optimizer = sgd(model)
    registered = register({"model": model, "same": model, "sgd": optimizer})
    weightings = choose_weightings(registered, True, 3, UpdateCount([optimizer]))
    for share in (Share(0, 1, 4), Share(0, 1, 2)):
        for weighting in weightings:
            weighting.set(share)
    model(torch.ones(1, 2)).sum().backward()
    (parameter,) = model.parameters()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [[0.5, 0.5]]


def test_a_model_that_also_takes_turns_is_weighted(process_group: None) -> None:
    """DDP accepts one communication hook; weighting and crossover share it."""
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    with behind(NotedGate()):
        weft.crossover(model)
        assert model._comm_hooks
        registered = register({"model": model, "sgd": sgd(model)})
        (weighting,) = choose_weightings(registered, True, 3, UpdateCount(registered.optimizers.values()))
        weighting.set(Share(0, 1, 4))
        model(torch.ones(1, 2)).sum().backward()
    (parameter,) = model.parameters()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [[0.25, 0.25]]


def test_a_model_whose_own_hook_replaces_the_average_is_refused(process_group: None) -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))
    with behind(NotedGate()):
        weft.crossover(model, comm_hook=allreduce_hook)
    with pytest.raises(SessionError, match="comm_hook="):
        choose(register({"model": model, "sgd": sgd(model)}))


def test_without_a_registered_optimizer_some_model_must_be_weighted(process_group: None) -> None:
    with pytest.raises(SessionError, match="model="):
        choose(register({"model": nn.Linear(2, 2)}))
