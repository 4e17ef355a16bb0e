"""Optimizer state is sharded, but users see ordinary state dicts, for any number of workers."""

from __future__ import annotations

import copy
import datetime
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.hang_limit import HANG_S
from torch import nn

import weft
from training import Tangle, Tower, adamw, assert_equal_states, assert_same, grouped, made, sgd, with_ddp, with_weft
from workers import call_on_workers, on_workers


@on_workers(2)
def test_every_worker_gets_the_whole_state() -> None:
    expected, found = with_ddp(made(Tangle), grouped), with_weft(made(Tangle), grouped)
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())
    for run in (expected, found):
        run.train(3)
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


@on_workers(2)
def test_a_late_state_request_is_answered_while_the_others_wait_for_its_gradients() -> None:
    expected, found = with_ddp(made(Tangle), grouped), with_weft(made(Tangle), grouped, bucket_bytes=512)
    for run in (expected, found):
        run.train(2)
    if dist.get_rank() == 1:

        def say(gradient: torch.Tensor) -> None:
            hook.remove()
            dist.send(torch.zeros(1), 0)

        hook = found.model.scale.register_hook(say)
    else:
        dist.recv(torch.zeros(1), 1)  # the other worker is in its next step
        assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())
    for run in (found, expected):
        run.train(2, first=2)
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


@pytest.mark.parametrize("overlapped", [True, False])
@on_workers(2)
def test_state_requested_too_late_is_an_error_while_the_others_wait_in_their_step(overlapped: bool) -> None:
    expected, found = with_ddp(made(Tower), adamw).train(3), with_weft(made(Tower), adamw, enabled=overlapped).train(2)
    assert found.handle is not None
    schedule: Any = found.handle.schedule
    found.optimizer.zero_grad()
    if dist.get_rank() == 0:
        last = found.model.layers[0].weight
        hook = last.register_hook(_interrupt) if overlapped else None  # otherwise, nothing is sent until the end
        with pytest.raises(KeyboardInterrupt) if hook else nullcontext():
            found.backward(2)
        dist.recv(torch.zeros(1), 1)
        with pytest.raises(weft.errors.OverlapError, match="has already begun its step"):
            found.optimizer.state_dict()
        if hook:
            hook.remove()
            last.grad = None
    else:
        found.backward(2)
        apply = schedule._apply
        schedule._apply = lambda *args: (dist.send(torch.zeros(1), 0), apply(*args))
    found.optimizer.step()
    if not overlapped:
        assert_same(found.state(), expected.state())
        assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


def _interrupt(gradient: torch.Tensor) -> None:
    raise KeyboardInterrupt


@on_workers(2)
def test_state_can_be_saved_after_a_step_that_failed() -> None:
    found = with_weft(made(Tower), adamw).train(2)
    [group] = found.optimizer.param_groups
    learning_rate, group["lr"] = group["lr"], "fast"
    found.backward(2)
    with pytest.raises(TypeError):
        found.optimizer.step()
    group["lr"] = learning_rate
    assert len(found.optimizer.state_dict()["state"]) == len(list(found.model.parameters()))


@on_workers(3)
def test_one_worker_alone_can_save_while_the_others_keep_training() -> None:
    expected, found = with_weft(made(Tangle), adamw, enabled=False), with_weft(made(Tangle), adamw)
    for step in range(6):
        for run in (expected, found):
            run.train(1, first=step)
        if dist.get_rank() == step % 3:
            mine = found.optimizer.state_dict()
            # no worker is ahead: each needs the gradients of the one that asks
            assert mine["state"][0]["step"] == step + 1
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


@on_workers(2)
def test_state_requested_after_every_step_is_right_while_buckets_are_tuned() -> None:
    expected, found = with_ddp(made(Tower), adamw), with_weft(made(Tower), adamw, tune=True)
    for step in range(12):
        for run in (expected, found):
            run.train(1, first=step)
        if dist.get_rank() == 0:
            assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


class LastLayerFirst(nn.Module):
    """Its first step shows another order of gradients than that of its parameters, so the plan changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        return x


@on_workers(4)
def test_state_read_in_a_step_hook_while_another_worker_changes_its_plan_is_answered() -> None:
    model = made(LastLayerFirst)
    optimizer = adamw(model)
    saved: list[dict[str, Any]] = []

    def save(*_: object) -> None:
        if dist.get_rank() == 3 and not saved:
            dist.recv(torch.zeros(1), 0)  # it waits only for workers 1 and 2 to learn the new plan
            saved.append(optimizer.state_dict())

    optimizer.register_step_post_hook(save)  # before weft's own, so it runs while this worker is still in its step
    group = dist.new_group(timeout=datetime.timedelta(seconds=20))
    handle = weft.overlap(model, optimizer, bucket_bytes=512, process_group=group)
    meet, began = handle.schedule.meet, []

    def met() -> None:
        if dist.get_rank() == 0 and not began:
            began.append(True)
            dist.send(torch.zeros(1), 3)
        meet()

    with patch.object(handle.schedule, "meet", met):
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
    assert began or dist.get_rank() > 0
    full = optimizer.state_dict()
    for state in saved:
        assert_equal_states(state, full)
    handle.detach()


def save_after(steps: int, path: str) -> None:
    run = with_weft(made(Tower), adamw).train(steps)
    if dist.get_rank() == 0:
        torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, path)


def train_on(path: str, overlapped: bool) -> dict[str, Any]:
    """Every worker sees the same batches, so that the number of workers does not matter."""
    model = made(Tower)
    run = with_weft(model, adamw, bucket_bytes=512) if overlapped else with_ddp(model, adamw)
    saved = torch.load(path)
    run.model.load_state_dict(saved["model"])
    run.optimizer.load_state_dict(saved["optimizer"])
    assert_equal_states(run.optimizer.state_dict(), saved["optimizer"])
    run.train(3, first=3)
    return {"parameters": run.parameters(), "state": run.optimizer.state_dict()}


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_state_saved_on_two_workers_loads_on_a_different_number(num_workers: int, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint.pt")
    call_on_workers(2, save_after, steps=3, path=path)
    found = call_on_workers(num_workers, train_on, path=path, overlapped=True)
    expected = call_on_workers(num_workers, train_on, path=path, overlapped=False)
    for mine, theirs in zip(found, expected, strict=True):
        if num_workers < 3:
            assert_same(mine["parameters"], theirs["parameters"])
            assert_equal_states(mine["state"], theirs["state"])
        for name, value in theirs["parameters"].items():  # three workers: DDP sums in a different order
            torch.testing.assert_close(mine["parameters"][name], value, rtol=1e-4, atol=1e-4)


@on_workers(2)
def test_loading_an_older_state_discards_later_updates() -> None:
    def make() -> nn.Module:
        return Tangle(rare_ranks=lambda step: [0, 1] if step >= 2 else [])

    def train(run: Any) -> Any:
        run.train(2)
        saved = copy.deepcopy(run.optimizer.state_dict())
        run.train(2, first=2)  # `rare` gets momentum only here
        run.optimizer.load_state_dict(saved)
        return run.train(3, first=2)

    expected, found = train(with_ddp(made(make), sgd)), train(with_weft(made(make), sgd))
    assert_same(found.state(), expected.state())
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


@on_workers(2)
def test_state_that_the_optimizer_had_before_is_kept() -> None:
    def train_alone(model: Any) -> torch.optim.Optimizer:
        optimizer = adamw(model)
        for _ in range(3):  # the same on every rank
            optimizer.zero_grad()
            model(torch.ones(2, 7)).sum().backward()
            optimizer.step()
        return optimizer

    torch.manual_seed(1)
    expected = with_ddp(model := Tower(), lambda m: train_alone(m)).train(3)
    torch.manual_seed(1)
    found = with_weft(Tower(), lambda m: train_alone(m)).train(3)
    assert model is expected.model
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_each_worker_keeps_half_of_the_state() -> None:
    """Counts the shards that exist, not what a state dict shows."""
    run = with_weft(made(Tower), adamw).train(2)
    assert run.handle is not None
    shards: Any = run.handle.schedule
    kept = sum(
        value.numel()
        for update in shards.updates
        if update.optimizer is not None
        for state in update.optimizer.state.values()
        for value in state.values()
        if value.dim()
    )
    whole = 2 * sum(p.numel() for p in run.model.parameters())
    assert 0.4 * whole < kept < 0.6 * whole


LAST_WORD = """
import os, sys, threading, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[4])
import weft
how, rank, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + folder + "/rendezvous", rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Linear(20, 20)
optimizer = torch.optim.AdamW(model.parameters())
weft.overlap(model, optimizer)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()
if how == "two models":
    before = threading.enumerate()
    other = torch.nn.Linear(20, 20)
    handle = weft.overlap(other, torch.optim.AdamW(other.parameters()))
    if rank == 0:  # until worker 1 is at its end, has left the newer model, and waits for us to do the same
        for thread in threading.enumerate():
            if thread.name == "weft-state" and thread not in before:  # none if worker 1 has already left
                thread.join()
if rank == 1 and how == "error":
    raise KeyError("worker 1 fails")
if rank == 0 and how not in ("error", "drop"):
    # Rank 1 has nothing to do any more: it is at the end of the script long before this.
    torch.save(optimizer.state_dict(), folder + "/optimizer.pt")
if how == "destroy":
    dist.destroy_process_group()
if how == "drop":
    from weft.overlap.open_connections import _OPEN
    del model, optimizer
    _OPEN.clear()  # as when the garbage collector finds the process group
    gc.collect()
    deadline_s = time.monotonic() + 10
    while not closing:
        assert time.monotonic() < deadline_s, "the thread answers forever"
        time.sleep(0.01)
print("done", rank)
"""

# As on a busy machine, where closing connections takes long.
CLOSES_SLOWLY = """
import gc, sys, time
sys.path.insert(0, sys.argv[4])
from weft.overlap import state_service
answer, closing = state_service._answer, []
def answer_and_close_slowly(*args):
    answer(*args)
    closing.append(True)
    time.sleep(0.5)
    print("closed")
state_service._answer = answer_and_close_slowly
"""


@pytest.mark.parametrize("how", ["plain", "destroy", "two models", "error"])
def test_the_last_checkpoint_is_written_while_the_other_worker_exits(how: str, tmp_path: Path) -> None:
    codes, results = ends_of_two_workers(LAST_WORD, how, tmp_path)
    if how == "error":
        assert codes[1] != 0
        assert "worker 1 fails" in results[1][1]
        assert codes[0] == 0  # it needed nothing more from the other
        return
    assert codes == [0, 0], results
    assert [stdout.strip() for stdout, _ in results] == ["done 0", "done 1"]
    assert [stderr for _, stderr in results] == ["", ""]
    saved = torch.load(tmp_path / "optimizer.pt")
    assert saved["state"][0]["exp_avg"].shape == (20, 20)
    assert saved["state"][0]["step"] == 3


@pytest.mark.parametrize("how", ["destroy", "drop"])
def test_a_worker_that_has_trained_everything_is_not_aborted_at_its_exit(how: str, tmp_path: Path) -> None:
    """Seen twice in a benchmark: the interpreter shut down while a thread was still closing its connections."""
    codes, results = ends_of_two_workers(CLOSES_SLOWLY + LAST_WORD, how, tmp_path)
    assert codes == [0, 0], results
    assert [sorted(stdout.splitlines()) for stdout, _ in results] == [["closed", "done 0"], ["closed", "done 1"]]


def ends_of_two_workers(script: str, how: str, tmp_path: Path) -> tuple[list[int], list[tuple[str, str]]]:
    """Exit codes, and what was written."""
    source = str(Path(sys.modules["weft"].__file__ or "").parents[1])
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, how, str(rank), str(tmp_path), source],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        results = [worker.communicate(timeout=HANG_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return [worker.returncode for worker in workers], results
