from __future__ import annotations

import pytest
import torch
from benchmarks.models import Workload, find_workload
from benchmarks.overlap_scenarios import Timed

from weft.errors import UsageError

TIMED = Timed(num_parameters=2_400, num_layers=4, compute_s=0.0)
WORKLOADS = [find_workload(name, TIMED) for name in ("transformer", "resnet", "mlp", "tiny", "timed")]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_two_copies_start_from_the_same_numbers(workload: Workload) -> None:
    first, second = workload.model().state_dict(), workload.model().state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_ranks_see_different_data_and_runs_the_same(workload: Workload) -> None:
    assert torch.equal(workload.batches(1, 2)[1][0], workload.batches(1, 2)[1][0])
    assert not torch.equal(workload.batches(0, 1)[0][0], workload.batches(1, 1)[0][0])


@pytest.mark.parametrize("workload", [w for w in WORKLOADS if w.name in ("tiny", "timed")], ids=lambda w: w.name)
def test_training_lowers_the_loss(workload: Workload) -> None:
    model = workload.model()
    optimizer = workload.make_optimizer(model.parameters())
    batch = workload.batches(0, 1)[0]
    losses = []
    for _ in range(8):
        loss = workload.criterion(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_fsdp_gets_blocks_that_hold_most_parameters(workload: Workload) -> None:
    model = workload.model()
    in_blocks = sum(p.numel() for block in workload.blocks(model) for p in block.parameters())
    assert in_blocks > 0.7 * sum(p.numel() for p in model.parameters())


def test_the_transformer_has_about_25_million_parameters() -> None:
    num_parameters = sum(p.numel() for p in find_workload("transformer").model().parameters())
    assert 24e6 < num_parameters < 26e6


def test_the_cnn_has_batch_norm() -> None:
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in find_workload("resnet").model().modules())


def test_an_unknown_model_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'vgg'.*transformer"):
        find_workload("vgg")
