"""Workers with different numbers of batches: ``handle.join()`` gives what DDP's ``join`` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_several_optimizers import muon_and_adamw
from torch import nn
from torch.distributed.algorithms.join import Join

from training import Run, Tangle, Tower, adamw, assert_close, assert_differ, assert_same, made, sgd, with_ddp, with_weft
from weft.errors import OverlapError
from workers import gathered, on_workers

# Batches of each rank: either rank runs out first.
UNEVEN = [(6, 3), (2, 5), (4, 4), (0, 3)]


def joined(run: Run, **options: Any) -> Any:
    if run.ddp is not None:
        return run.ddp.join(**options)
    assert run.handle is not None
    return run.handle.join(**options)


def epoch(
    run: Run, counts: tuple[int, ...], accumulate: int = 1, clip: str = "", first: int = 0, **options: Any
) -> Run:
    with joined(run, **options):
        run.train(counts[dist.get_rank()], first=first, accumulate=accumulate, clip=clip)
    return run


def both(make: Callable[[], nn.Module], optimizer: Any, loop: Callable[[Run], Any], **options: Any) -> tuple[Run, Run]:
    expected, found = with_ddp(made(make), optimizer), with_weft(made(make), optimizer, **options)
    loop(expected)
    loop(found)
    return found, expected


@pytest.mark.parametrize("divide_by_all", [True, False])
@pytest.mark.parametrize("counts", UNEVEN)
@on_workers(2)
def test_uneven_batches_give_ddp_numbers_with_running_averages(counts: tuple[int, int], divide_by_all: bool) -> None:
    # With DDP, a worker that never ran a backward sends garbage about the parameters it used.
    make = Tangle if min(counts) else lambda: Tangle(lambda step: [0, 1])
    found, expected = both(make, adamw, lambda run: epoch(run, counts, divide_by_initial_world_size=divide_by_all))
    assert_same(found.state(), expected.state())
    assert_same(*gathered(found.state()))


@on_workers(2)
def test_torchs_own_join_is_refused_at_once_and_changes_nothing() -> None:
    expected, found = with_ddp(made(Tower), sgd).train(2), with_weft(made(Tower), sgd).train(2)
    handle: Any = found.handle
    with pytest.raises(OverlapError, match=r"with handle\.join\(\)"):
        Join([handle])
    with pytest.raises(AttributeError, match="join_hook"):  # the model is a plain module: there is nothing to join
        Join([found.model])
    for run in (expected, found):
        epoch(run, (3, 1), first=2)
    assert_same(found.parameters(), expected.parameters())


@on_workers(2)
def test_epochs_with_join_and_steps_without_it_give_ddp_numbers() -> None:
    def loop(run: Run) -> None:
        epoch(run, (3, 1))
        run.train(2, first=10)
        epoch(run, (2, 4), first=20)
        run.train(2, first=30)

    def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)  # DDP's workers have different momentum after a join

    found, expected = both(Tangle, plain_sgd, loop)
    assert_same(found.parameters(), expected.parameters())  # DDP keeps taking buffers from the last rank, not rank 0


@pytest.mark.parametrize("optimizer", [muon_and_adamw, sgd])
@on_workers(2)
def test_uneven_batches_with_accumulation_or_several_optimizers_give_ddp_numbers(optimizer: Any) -> None:
    found, expected = both(Tower, optimizer, lambda run: epoch(run, (5, 2), accumulate=2))
    assert_same(found.state(), expected.state())


@pytest.mark.parametrize("clip", ["torch", "handle"])
@pytest.mark.parametrize("optimizer", [muon_and_adamw, adamw])
@on_workers(2)
def test_clipping_covers_all_shards_including_those_of_a_worker_without_batches(optimizer: Any, clip: str) -> None:
    found, expected = both(Tower, optimizer, lambda run: epoch(run, (2, 5), clip=clip))
    assert_close(found.state(), expected.state())
    assert_differ(found.state(), both(Tower, optimizer, lambda run: epoch(run, (2, 5)))[0].state())


@on_workers(2)
def test_a_scaler_skips_steps_for_a_worker_without_batches_too() -> None:
    def loop(run: Run) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with joined(run):
            for step in range((2, 5)[dist.get_rank()]):
                run.backward(step, lambda loss, broken=step == 3: scaler.scale(loss * float("inf") if broken else loss))
                scaler.step(run.optimizer)
                scaler.update()
                run.optimizer.zero_grad()

    found, expected = both(Tower, adamw, loop)
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_the_learning_rate_is_that_of_the_workers_with_batches() -> None:
    def loop(run: Run) -> None:
        scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1, 0.5)
        with joined(run):
            for step in range((5, 2)[dist.get_rank()]):
                run.train(1, first=step)
                scheduler.step()

    found, expected = both(Tower, adamw, loop)
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_buckets_are_tuned_while_a_worker_has_no_batches() -> None:
    found, expected = both(Tower, adamw, lambda run: epoch(run, (3, 45)), tune=True)
    assert_same(found.state(), expected.state())


@on_workers(3)
def test_three_workers_run_out_of_batches_one_after_the_other() -> None:
    found, expected = both(Tangle, sgd, lambda run: epoch(run, (4, 1, 6)))
    assert_close(found.state(), expected.state())
    assert_same(gathered(found.state())[0], gathered(found.state())[2])


@on_workers(2)
def test_early_termination_is_an_error_on_every_worker_when_asked_for() -> None:
    run = with_weft(made(Tower), sgd)
    with pytest.raises(RuntimeError, match="has no more batches"):
        epoch(run, (2, 4), throw_on_early_termination=True)


@on_workers(2)
def test_even_batches_and_a_disabled_join_change_no_result() -> None:
    plain = with_weft(made(Tower), adamw).train(3)
    assert_same(epoch(with_weft(made(Tower), adamw), (3, 3), enable=False).state(), plain.state())
    assert_same(epoch(with_weft(made(Tower), adamw), (3, 3)).state(), plain.state())


@on_workers(2)
def test_each_worker_keeps_its_state_right_while_it_has_no_batches() -> None:
    """DDP's optimizer of a worker that ends early misses the others' steps; ours has them all."""
    found, expected = both(Tower, adamw, lambda run: epoch(run, (5, 2)))
    saved = found.optimizer.state_dict()
    assert {int(state["step"]) for state in saved["state"].values()} == {5}
    if dist.get_rank() == 0:
        for number, state in expected.optimizer.state_dict()["state"].items():
            assert torch.equal(saved["state"][number]["exp_avg"], state["exp_avg"])
