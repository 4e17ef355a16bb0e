"""``optimizer.state`` is the same as with DDP: never empty by mistake, readable by one worker, writable by all."""

from __future__ import annotations

import copy
import io
import random
from collections import defaultdict
from typing import Any

import pytest
import torch
import torch.distributed as dist

from training import Run, Tangle, Tower, adamw, assert_equal_states, assert_same, made, sgd, with_ddp, with_weft
from weft.errors import OverlapError
from workers import on_workers


def busy(generator: random.Random) -> None:
    """Some of the other workers get ahead, others fall behind."""
    for _ in range(generator.randrange(0, 4)):
        torch.randn(200, 200) @ torch.randn(200, 200)


def load_what_was_saved(workers: int) -> None:
    generator = random.Random(dist.get_rank())
    expected, found = with_weft(made(Tangle), adamw, enabled=False), with_weft(made(Tangle), adamw)
    for step in range(10):
        for run in (expected, found):
            run.train(1, first=step)
        for _ in range(3):  # also twice and more between two steps
            busy(generator)
            found.optimizer.load_state_dict(found.optimizer.state_dict())
        busy(generator)
        if dist.get_rank() == step % workers:
            assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_two_workers_that_reload_their_state_continue_unchanged() -> None:
    load_what_was_saved(2)


@on_workers(3)
def test_three_workers_that_reload_their_state_continue_unchanged() -> None:
    load_what_was_saved(3)


@on_workers(3)
def test_one_worker_saves_while_the_others_have_loaded_already() -> None:
    """Rank 0 saves all workers' state from before the load."""
    expected, found = with_weft(made(Tower), adamw, enabled=False), with_weft(made(Tower), adamw)
    for run in (expected, found):
        run.train(2)
    young = copy.deepcopy(expected.optimizer.state_dict())
    for run in (expected, found):
        run.train(2, first=2)
    generator = random.Random(dist.get_rank())
    before = expected.optimizer.state_dict()
    for _ in range(10):
        if dist.get_rank() == 0:
            busy(generator)
            assert_equal_states(found.optimizer.state_dict(), before)
        found.optimizer.load_state_dict(young)
        before = young
    expected.optimizer.load_state_dict(young)
    for run in (expected, found):
        run.train(2, first=4)
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_accelerate_wraps_an_overlapped_optimizer_with_device_placement() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    expected, found = with_ddp(made(Tower), adamw), with_weft(made(Tower), adamw)
    for run in (expected, found):
        run.train(2)
    for _ in range(5):
        wrapped = accelerator.prepare_optimizer(found.optimizer, device_placement=True)
    found.optimizer = wrapped
    for run in (expected, found):
        run.train(2, first=2)
    assert_same(found.state(), expected.state())
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


def first_weight(run: Run) -> torch.nn.Parameter:
    return next(iter(run.model.parameters()))


@on_workers(2)
def test_state_of_one_parameter_reads_as_with_ddp_on_one_worker_alone() -> None:
    expected, found = with_ddp(made(Tower), adamw), with_weft(made(Tower), adamw)
    assert first_weight(found) not in found.optimizer.state
    for run in (expected, found):
        run.train(3)
    if dist.get_rank() == 1:
        for p, q in zip(found.model.parameters(), expected.model.parameters(), strict=True):
            mine, theirs = found.optimizer.state[p], expected.optimizer.state[q]
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
            assert mine["exp_avg"].norm().item() == theirs["exp_avg"].norm().item()
            assert type(mine["exp_avg"] + 1) is torch.Tensor
        assert len(found.optimizer.state) == len(expected.optimizer.state)
        assert list(found.optimizer.state) == list(found.model.parameters())
        assert first_weight(found) in found.optimizer.state
    for run in (expected, found):
        run.train(2, first=3)
    assert_same(found.state(), expected.state())


def scale_in_place(run: Run) -> None:
    for p in run.model.parameters():
        run.optimizer.state[p]["exp_avg"].mul_(0.5)
        run.optimizer.state[p]["exp_avg_sq"].view(-1)[:3] = 0.25


def scale_all_at_once(run: Run) -> None:
    torch._foreach_mul_([state["exp_avg"] for state in run.optimizer.state.values()], 0.5)


def assign_keys(run: Run) -> None:
    for _, state in run.optimizer.state.items():
        for key, value in state.items():
            if key != "step":
                state[key] = value * 0.75


def assign_states(run: Run) -> None:
    for p, state in run.optimizer.state.items():
        run.optimizer.state[p] = {key: value.clone() for key, value in state.items()}


def delete_one(run: Run) -> None:
    del run.optimizer.state[first_weight(run)]
    assert run.optimizer.state.pop(first_weight(run), None) is None
    last = list(run.model.parameters())[-1]
    assert run.optimizer.state.pop(last)["exp_avg"].shape == last.shape


def clear(run: Run) -> None:
    run.optimizer.state.clear()


def start_over(run: Run) -> None:
    run.optimizer.state = defaultdict(dict)


def move_as_lightning_does(run: Run) -> None:
    for _, state in run.optimizer.state.items():
        for key, value in state.items():
            state[key] = value.to("cpu", non_blocking=True)


@pytest.mark.parametrize(
    "write",
    [
        scale_in_place,
        scale_all_at_once,
        assign_keys,
        assign_states,
        delete_one,
        clear,
        start_over,
        move_as_lightning_does,
    ],
)
@on_workers(2)
def test_writes_to_the_optimizer_state_take_effect_as_with_ddp(write: Any) -> None:
    expected, found = with_ddp(made(Tower), adamw), with_weft(made(Tower), adamw)
    for run in (expected, found):
        run.train(3)
        write(run)
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())
    for run in (expected, found):
        run.train(3, first=3)
    assert_same(found.state(), expected.state())
    assert_equal_states(found.optimizer.state_dict(), expected.optimizer.state_dict())


@on_workers(2)
def test_state_kept_across_a_step_is_refused_instead_of_being_silently_stale() -> None:
    run = with_weft(made(Tower), adamw).train(2)
    state = run.optimizer.state[first_weight(run)]
    moments, kept = state["exp_avg"], state["exp_avg"].clone()
    run.train(1, first=2)
    for use in (lambda: moments + 1, lambda: moments.zero_(), lambda: state["exp_avg"]):
        with pytest.raises(OverlapError, match=r"read optimizer\.state"):
            use()
    assert not torch.equal(kept, run.optimizer.state[first_weight(run)]["exp_avg"])


@on_workers(2)
def test_a_copied_or_pickled_optimizer_is_a_plain_optimizer() -> None:
    expected, found = with_ddp(made(Tower), sgd), with_weft(made(Tower), sgd)
    for run in (expected, found):
        run.train(3)
    file = io.BytesIO()
    torch.save(found.optimizer, file)
    file.seek(0)
    for twin in (copy.deepcopy(found.optimizer), torch.load(file, weights_only=False)):
        assert type(twin.state) is defaultdict
        assert_equal_states(twin.state_dict(), expected.optimizer.state_dict())
    model, optimizer = copy.deepcopy((found.model, found.optimizer))
    loss = model.loss(3)
    loss.backward()
    optimizer.step()  # alone: no other worker takes part
    for run in (expected, found):
        run.train(2, first=3)
    assert_same(found.state(), expected.state())


@on_workers(2)
def test_saved_state_is_made_of_ordinary_tensors() -> None:
    run = with_weft(made(Tower), adamw).train(1)
    for state in run.optimizer.state_dict()["state"].values():
        assert type(state) is dict
        assert {type(value) for value in state.values()} == {torch.Tensor}
    assert run.handle is not None
    run.handle.detach()
    assert type(run.optimizer.state) is defaultdict
    assert {type(value) for state in run.optimizer.state.values() for value in state.values()} == {torch.Tensor}
