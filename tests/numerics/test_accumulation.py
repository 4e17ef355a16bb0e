"""Gradients accumulated over several backward passes: which cases match DDP bit for bit.  See guarantees.md."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_must_work import REPLICATED

from training import (
    Run,
    Tangle,
    Tower,
    adamw,
    assert_close,
    assert_same,
    made,
    same_as_ddp,
    sgd,
    two_backwards,
    with_ddp,
    with_weft,
)
from weft.errors import OverlapError
from workers import on_workers

OPTIMIZERS: dict[str, Any] = {"sgd": sgd, "adamw": adamw, "replicated": REPLICATED["lamb-like"]}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_workers(2)
def test_two_backwards_without_no_sync_have_ddp_bits(optimizer: str) -> None:
    same_as_ddp(two_backwards, Tower, OPTIMIZERS[optimizer])


@on_workers(2)
def test_two_backwards_that_use_different_parameters_have_ddp_bits() -> None:
    def make() -> Tangle:
        return Tangle(lambda step: [[0, 1], [], [0], [0, 1], [1], [0]][step % 6])

    same_as_ddp(two_backwards, make, sgd)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_workers(2)
def test_steps_without_zeroing_have_ddp_bits(optimizer: str) -> None:
    def loop(run: Run) -> None:
        for step in range(5):
            run.backward(step)
            run.optimizer.step()

    same_as_ddp(loop, Tower, OPTIMIZERS[optimizer])


@on_workers(2)
def test_two_backwards_in_half_precision_follow_ddp_to_rounding() -> None:
    def make() -> Tower:
        return Tower(torch.bfloat16)

    found, expected = two_backwards(with_weft(made(make), sgd)), two_backwards(with_ddp(made(make), sgd))
    assert_close(found.state(), expected.state(), tolerance=0.05)


@on_workers(3)
def test_two_backwards_on_three_workers_have_the_bits_of_overlap_off() -> None:
    found = two_backwards(with_weft(made(Tower), adamw))
    assert_same(found.state(), two_backwards(with_weft(made(Tower), adamw, enabled=False)).state())
    assert_close(found.state(), two_backwards(with_ddp(made(Tower), adamw)).state(), tolerance=1e-3)


@on_workers(2)
def test_two_backwards_while_eager_are_refused() -> None:
    run = with_weft(made(Tower), sgd, eager=True).train(3)
    run.optimizer.zero_grad()
    run.backward(3)
    with pytest.raises(OverlapError, match="eager=False"):
        run.backward(4)
