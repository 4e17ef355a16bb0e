"""weft's own process groups: same timeout as the user's, and gone after detach()."""

from __future__ import annotations

import datetime
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import weft
from hang_limit import HANG_S
from training import Tower, adafactor, adamw, assert_differ, assert_same, made, sgd, with_ddp, with_weft
from weft.errors import OverlapError
from weft.overlap.transport.groups import timeout_of
from workers import call_on_workers, gathered, on_workers


def held_by_this_process() -> dict[str, int]:
    gc.collect()
    return {
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "Python threads": threading.active_count(),
        "process groups": len(dist.distributed_c10d._world.pg_map),
    }


def no_more_than(before: dict[str, int]) -> bool:
    """Less is possible: threads of earlier tests' models end in their own time."""
    return all(number <= before[what] for what, number in held_by_this_process().items())


@pytest.mark.parametrize("optimizer", [adamw, adafactor])
@on_workers(2)
def test_twenty_models_one_after_the_other_leave_no_connections_and_no_threads(optimizer: Any) -> None:
    model = made(Tower)
    made_optimizer = optimizer(model)
    handles = []  # a handle that is kept must not keep connections
    before = {}
    for cycle in range(21):
        handles.append(weft.overlap(model, made_optimizer, bucket_bytes=1024))
        model.loss(cycle).backward()
        made_optimizer.step()
        handles[-1].detach()
        before = before or held_by_this_process()
    assert no_more_than(before)
    assert before["process groups"] == 1


@pytest.mark.parametrize("optimizer", [adamw, adafactor])
@on_workers(2)
def test_models_dropped_without_detach_leave_nothing_behind_once_the_next_one_is_overlapped(optimizer: Any) -> None:
    before = {}
    for cycle in range(4):
        run = with_weft(made(Tower), optimizer).train(2)
        if cycle == 1:
            assert run.handle is not None
            with run.handle.join():
                run.train(1)
        del run  # garbage-collected at a different time on each worker
        if dist.get_rank() == 0:
            gc.collect()
        before = before or held_by_this_process()
    assert no_more_than(before)


@pytest.mark.parametrize("optimizer", [adamw, adafactor])
@on_workers(2, limit_s=60.0)
def test_a_worker_a_step_behind_is_not_left_waiting_by_one_that_has_dropped_its_model(optimizer: Any) -> None:
    run = with_weft(made(Tower), optimizer).train(1)
    run.optimizer.zero_grad()
    run.backward(1)
    if dist.get_rank() == 1:
        run.optimizer.step()
        del run
        gc.collect()
        dist.send(torch.zeros(1), 0)
        ended = None
    else:
        dist.recv(torch.zeros(1), 1)
        run.optimizer.step()
        ended = run.parameters()
    expected = with_ddp(made(Tower), optimizer).train(2).parameters()
    if ended is not None:
        assert_same(ended, expected)


@on_workers(2)
def test_models_dropped_before_their_process_group_is_destroyed_leave_no_threads(tmp_path: Path) -> None:
    rank, before = dist.get_rank(), held_by_this_process()["threads"]
    earlier = set(threading.enumerate())  # those of other tests' models end in their own time
    for life in range(3):
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method=f"file://{tmp_path}/{life}", rank=rank, world_size=2)
        for _ in range(2):
            with_weft(made(Tower), adamw).train(1)
        dist.barrier()
        dist.destroy_process_group()
    # Each thread ends when the other worker has dropped its model, too.
    deadline_s = time.monotonic() + HANG_S
    while held_by_this_process()["threads"] > before or any(
        thread.name == "weft-state" for thread in set(threading.enumerate()) - earlier
    ):
        assert time.monotonic() < deadline_s, [thread.name for thread in threading.enumerate()]
        time.sleep(0.01)


@on_workers(2)
def test_a_worker_that_still_has_its_model_ends_with_one_that_has_dropped_it() -> None:
    earlier = set(threading.enumerate())
    run = with_weft(made(Tower), adamw).train(1)
    assert run.handle is not None
    answering = [thread for thread in set(threading.enumerate()) - earlier if thread.name == "weft-state"]
    assert len(answering) == 1
    kept = run.handle.parts[0].state.service if dist.get_rank() == 1 else None
    dist.barrier()
    dist.destroy_process_group()
    del run
    gc.collect()
    if kept is not None:
        kept.leave()  # as at the end of the process
    # A thread that wakes up while the interpreter shuts down would crash it.
    answering[0].join(HANG_S)
    assert not answering[0].is_alive()


@on_workers(2)
def test_a_model_that_one_worker_still_trains_is_not_closed_because_another_one_is_dropped() -> None:
    expected = with_ddp(made(Tower), adamw)
    kept, dropped = with_weft(made(Tower), adamw), with_weft(made(Tower), adamw)
    for run in (expected, kept, dropped):
        run.train(2)
    on_one = with_weft(made(Tower), adamw)
    held = [on_one] if dist.get_rank() == 0 else []
    del run, dropped, on_one
    other = with_weft(made(Tower), adamw)
    # The user's, and three for each of kept, on_one (rank 0 still has it), and other.  The dropped one's are closed.
    assert held_by_this_process()["process groups"] == 1 + 3 * 3
    for run in (expected, kept):
        run.train(2, first=2)
    other.train(4)
    assert_same(kept.state(), expected.state())
    assert_same(other.state(), expected.state())
    assert len(held) == (dist.get_rank() == 0)


@on_workers(3)
def test_three_workers_that_detach_at_different_times_do_not_disturb_each_other() -> None:
    expected = with_weft(made(Tower), adamw, enabled=False)
    model, optimizer = expected.model, expected.optimizer
    found = with_weft(made(Tower), adamw)
    for cycle in range(5):
        for run in (expected, found):
            run.train(2, first=2 * cycle)
        for late in range(dist.get_rank()):
            torch.randn(200 + 50 * late, 200) @ torch.randn(200, 2000)
        assert found.handle is not None
        found.handle.detach()
        found.handle = weft.overlap(found.model, found.optimizer, bucket_bytes=512)
    assert_same(found.state(), expected.state())
    assert model is expected.model
    assert optimizer is expected.optimizer


@on_workers(2)
def test_detach_works_after_the_process_group_was_destroyed() -> None:
    expected, run = with_ddp(made(Tower)).train(3), with_weft(made(Tower)).train(3)
    dist.barrier()
    dist.destroy_process_group()
    assert run.handle is not None
    run.handle.detach()
    assert_same(run.state(), expected.state())


SHORT_TIMEOUT = datetime.timedelta(seconds=10)
"""Long enough for two steps on a busy machine; the worker that waits this long uses no CPU."""


def train_until_the_other_stops(rendezvous: str) -> str:
    """A worker waits for one that no longer takes part, in a group with a short timeout."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=2,
        timeout=SHORT_TIMEOUT,
    )
    run = with_weft(made(Tower), adamw).train(2)
    assert run.handle is not None
    ours = [g for g in dist.distributed_c10d._world.pg_map if g is not dist.group.WORLD]
    assert len(ours) == 3
    assert {timeout_of(group) for group in ours} == {SHORT_TIMEOUT}
    said = ""
    if rank == 0:
        with pytest.raises(OverlapError, match="stopped or has left") as refusal:
            run.train(1, first=2)
        said = str(refusal.value)
    while rank == 1 and not Path(rendezvous + ".done").exists():
        threading.Event().wait(0.05)
    Path(rendezvous + ".done").touch()
    dist.destroy_process_group()
    return said


def test_a_stopped_worker_is_detected_within_the_users_timeout(tmp_path: Path) -> None:
    waited, _ = call_on_workers(2, train_until_the_other_stops, rendezvous=str(tmp_path / "short"))
    assert "look for the first error in its log" in waited


@on_workers(4)
def test_halves_of_the_workers_can_train_their_own_models_and_then_make_groups_together() -> None:
    halves = [dist.new_group(half) for half in ([0, 2], [1, 3])]
    group = halves[dist.get_rank() % 2]
    if dist.get_rank() % 2:  # the halves need not do the same
        dropped = made(Tower)
        weft.overlap(dropped, sgd(dropped), process_group=group).detach()
    run = with_weft(made(Tower), adamw, process_group=group).train(3)
    own = gathered(run.parameters())
    assert_same(own[0], own[2])
    assert_same(own[1], own[3])
    assert_differ(own[0], own[1])
    assert run.handle is not None
    run.handle.detach()
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group())
    assert total.item() == 4
