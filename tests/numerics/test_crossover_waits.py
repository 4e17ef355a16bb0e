"""A worker releases its device while it waits for others, and only then."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.hang_limit import HANG_S
from torch.nn.parallel import DistributedDataParallel

import weft
from gates import NotedGate, behind
from training import Tower, adamw, assert_same, batch_generator, made, with_ddp, with_weft
from weft.errors import UsageError
from weft.overlap.transport.gloo import GlooTransport
from weft.process.turns import TURNS
from workers import on_workers


def wait_for(file: Path) -> None:
    """A message from the other worker through a file, since every collective is under test here."""
    deadline_s = time.monotonic() + HANG_S
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise AssertionError("the other worker waits for us without having given its device back")
        time.sleep(0.001)


def _barrier() -> None:
    dist.barrier()


def _metric() -> None:
    dist.all_reduce(torch.ones(3))


def _object() -> None:
    dist.all_gather_object([None, None], "x")


def _asynchronous() -> None:
    dist.all_reduce(torch.ones(3), async_op=True).wait()


def _together() -> None:
    weft.crossover.all_reduce([torch.ones(3), torch.ones(2)])


WAITS: dict[str, Callable[[], None]] = {
    f.__name__.strip("_"): f for f in (_barrier, _metric, _object, _asynchronous, _together)
}


@pytest.mark.parametrize("wait", WAITS)
@on_workers(2)
def test_a_collective_between_steps_does_not_hold_the_device(wait: str, tmp_path: Path) -> None:
    if dist.get_rank() == 1:
        wait_for(tmp_path / "released")
        WAITS[wait]()
        return
    noted = NotedGate(contended=True, on_release=(tmp_path / "released").touch)
    with behind(noted):
        TURNS.compute()
        WAITS[wait]()
        assert not noted.holds  # another job wants it: do not request it again until there is something to compute


@on_workers(2)
def test_a_collective_inside_forward_does_not_hold_the_device_but_takes_it_back(tmp_path: Path) -> None:
    class Asking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = super().forward(x)
            dist.all_reduce(result.detach().clone())
            if dist.get_rank() == 0:
                assert noted.holds
            return result

    model = Asking(2, 2)
    if dist.get_rank() == 1:
        wait_for(tmp_path / "released")
        model(torch.ones(1, 2))
        return
    noted = NotedGate(contended=True, on_release=(tmp_path / "released").touch)
    with behind(noted):
        weft.crossover(model)(torch.ones(1, 2))
        assert noted.events[:3] == ["acquire", "release", "acquire"]


@on_workers(2)
def test_clipping_an_overlapped_model_does_not_hold_the_device() -> None:
    run = with_weft(made(Tower))
    run.train(2)
    noted, held, all_reduce = NotedGate(contended=True), [], GlooTransport.all_reduce

    def of_norms(self: GlooTransport, values: torch.Tensor, maximum: bool = False) -> torch.Tensor:
        total = all_reduce(self, values, maximum)
        held.append(noted.holds)  # once given back, it is not requested again until there is something to compute
        return total

    with behind(noted), patch.object(GlooTransport, "all_reduce", of_norms):
        run.backward(2)
        assert noted.holds
        run.clip("handle")
        assert held == [False]
        run.optimizer.step()
    run.handle.detach()


@pytest.mark.parametrize("kind", ["ddp", "overlap"])
@on_workers(2)
def test_accumulating_passes_keep_the_device(kind: str) -> None:
    noted = NotedGate(contended=True)
    with behind(noted):
        if kind == "ddp":
            run = with_ddp(made(Tower), adamw)
            weft.crossover(run.ddp)
        else:
            run = with_weft(made(Tower), adamw)
        run.train(5)
        before = len(noted.events)
        with run.no_sync():
            run.backward(5)
            first = noted.events[before:].count("release")
            run.backward(6)
            run.backward(7)
        # The first forward may still wait for what the last step has sent.
        assert noted.events[before:].count("release") == first
        run.backward(8)
        run.optimizer.step()
        run.optimizer.zero_grad()
        if kind == "ddp":  # overlap may find that everything has arrived, and then has nothing to wait for
            assert noted.events[before:].count("release") > first
        if run.handle:
            run.handle.detach()


@on_workers(2)
def test_all_gathers_leave_in_one_window_when_another_job_wants_the_device(tmp_path: Path) -> None:
    run = with_weft(made(Tower), adamw)
    run.train(3)
    run.handle.flush()
    if dist.get_rank() == 1:
        wait_for(tmp_path / "released")
        run.backward(3)
        run.optimizer.step()
        run.backward(4)
    else:
        noted = NotedGate(contended=True)
        launch = GlooTransport.launch_gather

        def noting(self: GlooTransport, exchange: Any, tag: int) -> None:
            noted.note("gather")
            launch(self, exchange, tag)

        with behind(noted), patch.object(GlooTransport, "launch_gather", noting):
            run.backward(3)
            noted.events.clear()
            noted.on_release = (tmp_path / "released").touch  # only now does the other worker send its gradients
            run.optimizer.step()
            num_buckets = len(run.handle.schedule.buckets)
            assert num_buckets > 1
            assert noted.events == ["release", *["gather"] * num_buckets], noted.events
            run.optimizer.zero_grad()
            run.backward(4)
            assert noted.events[num_buckets + 1 :] == ["acquire"], noted.events  # forward and backward ran through
    run.handle.detach()


@on_workers(2)
def test_a_script_that_does_not_share_is_left_unchanged() -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    assert weft.crossover(model) is model
    assert not model._comm_hooks
    assert not model._forward_pre_hooks


@on_workers(1)
def test_a_second_communication_hook_is_refused_with_an_alternative() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    with behind(NotedGate()):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        model.register_comm_hook(None, allreduce_hook)
        with pytest.raises(UsageError, match="comm_hook="):
            weft.crossover(model)
        with pytest.raises(UsageError, match="wrap the model"):
            weft.crossover(torch.nn.Linear(2, 2), comm_hook=allreduce_hook)
        with pytest.raises(UsageError, match=r"expected a torch\.nn\.Module"):
            weft.crossover([1])


@on_workers(2)
def test_join_while_taking_turns_has_ddp_bits_or_is_refused() -> None:
    found = []
    for shares in (False, True):
        torch.manual_seed(3)
        model = DistributedDataParallel(torch.nn.Linear(4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with behind(NotedGate()) if shares else nullcontext():
            weft.crossover(model)
            with model.join():
                for step in range(2 + 2 * dist.get_rank()):
                    optimizer.zero_grad()
                    model(torch.randn(2, 4, generator=batch_generator(step))).square().mean().backward()
                    optimizer.step()
            found.append({name: value.detach().clone() for name, value in model.named_parameters()})
            if shares:  # the hook does not know how many workers still have batches
                with (
                    pytest.raises(UsageError, match="divide_by_initial_world_size=True"),
                    model.join(divide_by_initial_world_size=False),
                ):
                    model(torch.ones(1, 4))
    assert_same(found[1], found[0])
